//! Physical I/O APICs (82093AA data sheet), found in the MADT; all inputs masked until routed. The 8259s are
//! moved out of the way and masked.
//!
//! Inputs are named by global system interrupt (GSI). [`route_isa`] translates ISA interrupts, and
//! [`crate::firmware::acpi::pci_gsi`] PCI interrupt pins.

use crate::firmware::acpi;
use crate::iommu;
use crate::mm::{self, Hpa};
use crate::sync::{Rank, SpinLock};
use crate::x86::port::outb;
use arrayvec::ArrayVec;

pub use crate::firmware::acpi::Trigger;

const SELECT: usize = 0;
const WINDOW: usize = 0x10;
/// End of interrupt, by vector; from version 0x20 on (ICH9 data sheet, 13.5.4).
const END: usize = 0x40;
const HAS_END: u32 = 0x20;
const VERSION: u32 = 1;
const REDIRECTION: u32 = 0x10;

const POLARITY_LOW: u32 = 1 << 13;
const LEVEL: u32 = 1 << 15;
const MASKED: u32 = 1 << 16;

struct IoApic {
    id: u8,
    registers: *mut u8,
    first: u32,
    inputs: u32,
    has_end: bool,
}

// SAFETY: the pointer leads to device registers in the direct map, valid on every processor.
unsafe impl Send for IoApic {}

impl IoApic {
    fn read(&mut self, register: u32) -> u32 {
        // SAFETY: select and window lie in the mapped page of registers; `&mut` keeps the pair together.
        unsafe {
            self.registers.add(SELECT).cast::<u32>().write_volatile(register);
            self.registers.add(WINDOW).cast::<u32>().read_volatile()
        }
    }

    /// Ends the level-triggered interrupt of the input with that redirection register, which is masked.
    fn end(&mut self, register: u32) {
        let entry = self.read(register);
        if self.has_end {
            // SAFETY: as for `read`; the register only clears the remote IRR of inputs with this vector.
            unsafe { self.registers.add(END).cast::<u32>().write_volatile(entry & 0xff) };
        } else {
            // An edge has no remote IRR.
            self.write(register, entry & !LEVEL);
            self.write(register, entry);
        }
    }

    fn write(&mut self, register: u32, value: u32) {
        // SAFETY: as for `read`; an input can only raise a vector, and every vector has a gate.
        unsafe {
            self.registers.add(SELECT).cast::<u32>().write_volatile(register);
            self.registers.add(WINDOW).cast::<u32>().write_volatile(value);
        }
    }
}

static ALL: SpinLock<ArrayVec<IoApic, 8>> = SpinLock::new(Rank::IoApics, ArrayVec::new_const());

/// Finds and masks everything. Once, on the boot processor.
pub fn init() {
    disable_8259();
    let mut all = ALL.lock();
    for entry in acpi::io_apics() {
        let registers = mm::map_mmio(Hpa::new(entry.address.into()), mm::PAGE);
        let mut io_apic =
            IoApic { id: entry.id, registers, first: entry.first_gsi, inputs: 0, has_end: false };
        let version = io_apic.read(VERSION);
        io_apic.inputs = (version >> 16 & 0xff) + 1;
        io_apic.has_end = version & 0xff >= HAS_END;
        for input in 0..io_apic.inputs {
            io_apic.write(REDIRECTION + input * 2, MASKED);
        }
        log::info!(
            "I/O APIC at {:#x}: GSI {}-{}",
            entry.address,
            io_apic.first,
            io_apic.first + io_apic.inputs - 1
        );
        if all.try_push(io_apic).is_err() {
            log::warn!("more I/O APICs than are supported");
        }
    }
}

/// Remaps the 8259s to the vectors from 0xe0 and masks them: even a spurious interrupt then is no exception.
fn disable_8259() {
    for (command, data, vector, cascade) in [(0x20, 0x21, 0xe0, 4), (0xa0, 0xa1, 0xe8, 2)] {
        outb(command, 0x11);
        outb(data, vector);
        outb(data, cascade);
        outb(data, 0x01);
        outb(data, 0xff);
    }
}

/// Runs `act` on the input of `gsi`, with the index of its low redirection register; `None` if there is no such input.
fn with<R>(gsi: u32, act: impl FnOnce(&mut IoApic, u32) -> R) -> Option<R> {
    let mut all = ALL.lock();
    let io_apic = all.iter_mut().find(|a| (a.first..a.first + a.inputs).contains(&gsi))?;
    let register = REDIRECTION + (gsi - io_apic.first) * 2;
    Some(act(io_apic, register))
}

/// Number of inputs: GSIs are below this.
pub fn inputs() -> u32 {
    ALL.lock().iter().map(|a| a.first + a.inputs).max().unwrap_or(0)
}

/// Sends `gsi` as `vector` to the processor with that local APIC, masked until [`unmask`]. Returns whether there is
/// such an input, and whether the destination can be written (8 bits without interrupt remapping).
pub fn route(gsi: u32, vector: u8, apic_id: u32, trigger: Trigger) -> bool {
    let (level, low) = match trigger {
        Trigger::EdgeHigh => (false, false),
        Trigger::EdgeLow => (false, true),
        Trigger::LevelHigh => (true, false),
        Trigger::LevelLow => (true, true),
    };
    let trigger = if level { sluice_iommu::Trigger::Level } else { sluice_iommu::Trigger::Edge };
    let interrupt = sluice_iommu::Interrupt { apic_id, vector, trigger };
    let routed = with(gsi, |io_apic, register| {
        let plain = || {
            let mode = if level { LEVEL } else { 0 };
            (apic_id <= 0xfe).then(|| u64::from(apic_id) << 56 | u64::from(mode | u32::from(vector)))
        };
        let Some(entry) = iommu::redirection(io_apic.id, interrupt).or_else(plain) else { return false };
        let polarity = if low { POLARITY_LOW } else { 0 };
        io_apic.write(register, MASKED);
        io_apic.write(register + 1, (entry >> 32) as u32);
        io_apic.write(register, MASKED | polarity | entry as u32);
        true
    });
    routed == Some(true)
}

/// Lets no interrupt of `gsi` through. A level that is asserted stays pending in its device.
pub fn mask(gsi: u32) {
    with(gsi, |io_apic, register| {
        let value = io_apic.read(register);
        io_apic.write(register, value | MASKED);
    });
}

/// Masks `gsi`, and ends its interrupt here rather than by the local APIC's message: an interrupt that an IOMMU has
/// remapped may arrive as an edge, for which there is none.
pub fn mask_and_end(gsi: u32) {
    with(gsi, |io_apic, register| {
        let value = io_apic.read(register);
        io_apic.write(register, value | MASKED);
        io_apic.end(register);
    });
}

/// Lets interrupts of `gsi` through.
pub fn unmask(gsi: u32) {
    with(gsi, |io_apic, register| {
        let value = io_apic.read(register);
        io_apic.write(register, value & !MASKED);
    });
}

/// Sends an ISA interrupt, with the overrides of the MADT applied, as `vector` to the processor with that local APIC, and lets
/// it through.
pub fn route_isa(irq: u8, vector: u8, apic_id: u32) {
    let (gsi, trigger) = acpi::isa_override(irq).unwrap_or((irq.into(), Trigger::EdgeHigh));
    route(gsi, vector, apic_id, trigger);
    unmask(gsi);
}
