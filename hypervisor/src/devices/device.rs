//! A physical function: identity, interrupt line, place behind an IOMMU, reset, and when it wants to be polled.

use crate::cpu;
use crate::firmware::acpi;
use crate::iommu::{self, DmaEndpoint};
use crate::irq::line::{self, Line};
use crate::pci::{self, Bdf, reset};
use crate::x86::tsc;
use alloc::string::{String, ToString};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_abi::config;
use sluice_iommu::{Containment, RequesterId};
use sluice_platform::pci::Identity;

/// ISA interrupt of the first channel of an IDE controller in compatibility mode (PCI IDE Controller Specification 1.0, 2.1).
const COMPATIBLE_IDE_IRQ: u8 = 14;

/// One physical function.
pub struct Device {
    /// Its index in the configuration.
    pub index: usize,
    /// Its name in the configuration.
    pub name: String,
    /// What configuration space says of it.
    pub function: pci::Function,
    /// Base and number of its ports; zeros if it has none.
    pub ports: (u16, u16),
    /// No other function decodes anything on the pages of its memory BARs.
    pub has_own_pages: bool,
    /// Most bits per second that guests behind it send to the wire, if it is a NIC that the hypervisor drives.
    pub rate: Option<u64>,
    gsi: Option<u32>,
    reset: Option<reset::Method>,
    /// Where it stands behind an IOMMU.
    endpoint: Option<DmaEndpoint>,
    /// A guest or a driver had it since it was reset by firmware.
    used: AtomicBool,
    /// TSC from which it may be used after a reset.
    ready_at: AtomicU64,
    /// Its line was raised, and nobody has looked at that yet.
    asserted: AtomicBool,
    /// Its line is masked at the physical I/O APIC.
    masked: AtomicBool,
    interrupts: AtomicU64,
    /// TSC at which it wants to be polled; `u64::MAX`: never.
    poll_at: AtomicU64,
    /// The same in nanoseconds, as it was wanted.
    poll_wanted: AtomicU64,
}

impl Device {
    /// The function that is `configured` at `index` of the configuration.
    pub fn new(
        index: usize,
        configured: &config::Device,
        function: pci::Function,
        has_own_pages: bool,
    ) -> Self {
        let config::Device { name, rate, .. } = configured;
        let pin = function.pin.checked_sub(1);
        let gsi = match pci::is_compatible_ide(&function) {
            true => {
                Some(acpi::isa_override(COMPATIBLE_IDE_IRQ).map_or(COMPATIBLE_IDE_IRQ.into(), |(gsi, _)| gsi))
            }
            false => pin.and_then(|pin| acpi::pci_gsi(function.bdf.bus, function.bdf.device, pin)),
        };
        let ports = function.bars.iter().find(|bar| bar.io);
        let ports = ports.map_or((0, 0), |bar| (bar.address as u16, bar.size as u16));
        let line = gsi.map_or("no interrupt line".into(), |gsi| alloc::format!("gsi {gsi}"));
        log::info!(
            "device {name}: {} [{:04x}:{:04x}] ports {:#x}+{:#x} {line}",
            function.bdf,
            function.vendor,
            function.device,
            ports.0,
            ports.1
        );
        for bar in function.bars.iter().filter(|bar| !bar.io) {
            log::info!("device {name}: memory {:#x}+{:#x}", bar.address, bar.size);
        }
        if let Some(rom) = &function.rom {
            log::info!("device {name}: expansion ROM {:#x}+{:#x}", rom.address, rom.size);
        }
        Self {
            index,
            name: name.to_string(),
            ports,
            has_own_pages,
            rate: *rate,
            gsi,
            reset: reset::method(&function),
            endpoint: iommu::endpoint_of(function.bdf),
            function,
            used: AtomicBool::new(false),
            ready_at: AtomicU64::new(0),
            asserted: AtomicBool::new(false),
            masked: AtomicBool::new(true),
            interrupts: AtomicU64::new(0),
            poll_at: AtomicU64::new(u64::MAX),
            poll_wanted: AtomicU64::new(u64::MAX),
        }
    }

    /// As which requester it stands on the bus.
    pub fn requester(&self) -> RequesterId {
        let Bdf { bus, device, function } = self.function.bdf;
        RequesterId::new(bus, device, function)
    }

    /// Who it says it is.
    pub fn identity(&self) -> Identity {
        let pci::Function { vendor, device, class, revision, subsystem, .. } = self.function;
        let (subsystem_vendor, subsystem) = subsystem;
        Identity { vendor, device, class, revision, subsystem_vendor, subsystem }
    }

    // --- DMA ----------------------------------------------------------------------------------

    /// Where it stands behind an IOMMU, if it masters the bus.
    pub fn dma_endpoint(&self) -> Option<DmaEndpoint> {
        self.endpoint.filter(|_| self.function.masters_bus())
    }

    /// What keeps it from what is not its guest's.
    pub fn containment(&self) -> Containment {
        match self.endpoint {
            _ if !self.function.masters_bus() => Containment::NoBusMaster,
            None => Containment::Missing,
            Some(endpoint) => Containment::Iommu {
                remaps_interrupts: endpoint.remaps_interrupts(),
                firmware_memory: !endpoint.unity().is_empty(),
            },
        }
    }

    // --- reset --------------------------------------------------------------------------------

    /// Whether the next user finds nothing that an earlier one left in it.
    pub fn is_clean(&self) -> bool {
        !self.used.load(Ordering::SeqCst) || self.reset.is_some()
    }

    /// Begins to reset it, after use; its bus mastering is off. Returns how, if there is a way.
    pub fn reset(&self) -> Option<reset::Method> {
        if let Some(method) = self.reset {
            self.ready_at.store(reset::start(&self.function, method), Ordering::SeqCst);
        }
        self.used.store(true, Ordering::SeqCst);
        self.reset
    }

    /// Waits until the last reset is over.
    pub fn wait_ready(&self) {
        while tsc::now() < self.ready_at.load(Ordering::SeqCst) {
            core::hint::spin_loop();
        }
    }

    /// Makes the function decode its addresses and raise no interrupts; its bus mastering is off.
    pub fn decode(&self) {
        self.function.write_bars();
        pci::messages::disable(&self.function);
        let decode = pci::COMMAND_IO | pci::COMMAND_MEMORY;
        self.function.bdf.set_command(decode, pci::COMMAND_MASTER | pci::COMMAND_NO_INTX);
    }

    /// Makes the function begin nothing and raise no line. It goes on decoding its addresses, which nobody is shown:
    /// emulators that take them away while other processors access registers can crash (docs/debug.md).
    pub fn leave_bus(&self) {
        self.function.bdf.set_command(pci::COMMAND_NO_INTX, pci::COMMAND_MASTER);
    }

    // --- interrupts ---------------------------------------------------------------------------

    fn line(&self) -> Option<&'static Line> {
        self.gsi.and_then(line::of)
    }

    /// Its line's number at the physical I/O APICs.
    pub fn gsi(&self) -> Option<u32> {
        self.gsi
    }

    /// Its line was raised, perhaps by it, and is masked now.
    pub fn line_raised(&self) {
        self.asserted.store(true, Ordering::SeqCst);
        self.masked.store(true, Ordering::SeqCst);
        self.count_interrupt();
    }

    /// Whether its line was raised since the last call.
    pub fn take_asserted(&self) -> bool {
        self.asserted.swap(false, Ordering::SeqCst)
    }

    /// Counts an interrupt.
    pub fn count_interrupt(&self) {
        self.interrupts.fetch_add(1, Ordering::Relaxed);
    }

    /// Interrupts so far, lines and messages.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// Whether its line is masked.
    pub fn is_masked(&self) -> bool {
        self.masked.load(Ordering::Relaxed)
    }

    /// The last interrupt of the line has been dealt with, as far as this device is concerned.
    pub fn unmask(&self) {
        if let Some(line) = self.line() {
            self.masked.store(false, Ordering::SeqCst);
            line.open(self.index);
        }
    }

    /// Nobody takes its interrupts any more.
    pub fn close_line(&self) {
        if let Some(line) = self.line() {
            self.masked.store(true, Ordering::SeqCst);
            line.close(self.index);
        }
    }

    // --- time ---------------------------------------------------------------------------------

    /// TSC at which it wants to be polled; `u64::MAX`: never.
    pub fn poll_at(&self) -> u64 {
        self.poll_at.load(Ordering::Relaxed)
    }

    /// Its poll is made now; what it wants is asked after that.
    pub fn forget_poll(&self) {
        self.poll_at.store(u64::MAX, Ordering::SeqCst);
        // Last: who wants the same meanwhile has it wanted again.
        self.poll_wanted.store(u64::MAX, Ordering::SeqCst);
    }

    /// Notes when it wants to be polled, in nanoseconds. To be called after whatever may have changed that: what it wants already costs a look.
    pub fn poll_next(&self, wanted: Option<u64>) {
        let wanted = wanted.unwrap_or(u64::MAX);
        if wanted == self.poll_wanted.load(Ordering::Relaxed) {
            return;
        }
        self.poll_wanted.store(wanted, Ordering::SeqCst);
        let at = match wanted {
            u64::MAX => u64::MAX,
            at => tsc::now().saturating_add(tsc::ticks_from_ns(at.saturating_sub(tsc::uptime_ns()))),
        };
        let server = cpu::device_server();
        if at < self.poll_at.swap(at, Ordering::Relaxed) && cpu::this().index != server {
            cpu::kick(server);
        }
    }
}
