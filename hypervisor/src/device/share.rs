//! One domain's part in a physical device.

use super::assigned::Assigned;
use super::emulated::Station;
use super::{Device, Seat};
use crate::cpu;
use crate::domain::{Access, Answer, Domain, PortHandler, VirtualFunction};
use crate::sync::{Rank, SpinLock};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_abi::config::Mode;
use sluice_abi::report::{Count, ShareReport};
use sluice_emulated::Shown;
use sluice_memory::Gpa;
use sluice_platform::pci::{BarKind, BuildError, Builder, ConfigEffect, Function, Identity};
use sluice_vpio::{ClientId, Monitor, Outcome, Reaction, Refusal};

/// What a domain keeps for each of its devices.
pub struct Share {
    device: Arc<Device>,
    mode: Mode,
    seat: Seat,
    /// A function that is passed through.
    assigned: Option<Assigned>,
    /// A software card.
    station: Option<Station>,
    slot: u8,
    pin: u8,
    /// What decides which ports of a monitor's client are direct.
    ports: SpinLock<Ports>,
    /// A line that is passed through is up in the guest. Changed under the lock of the device.
    raised: AtomicBool,
}

/// What decides which ports are direct. The lock around it is held until the domain's port table says the same, so that what
/// was decided last is what is installed last.
struct Ports {
    /// Offsets that must exit, by bit, as the monitor last said.
    hooks: u32,
    /// The guest has the function's ports switched on, at the address where they physically are.
    decoded: bool,
}

impl Share {
    pub(super) fn new(
        device: Arc<Device>,
        mode: Mode,
        seat: Seat,
        assigned: Option<Assigned>,
        station: Option<Station>,
        slot: u8,
        pin: u8,
    ) -> Arc<Self> {
        Arc::new(Self {
            device,
            mode,
            seat,
            assigned,
            station,
            slot,
            pin,
            ports: SpinLock::new(Rank::Share, Ports { hooks: u32::MAX, decoded: false }),
            raised: AtomicBool::new(false),
        })
    }

    /// This domain, to the monitor; `None` where there is none.
    pub fn client(&self) -> Option<ClientId> {
        self.seat.client()
    }

    /// What this domain is to the device.
    pub(super) fn seat(&self) -> Seat {
        self.seat
    }

    /// What is kept of a function that is passed through.
    pub fn assigned(&self) -> Option<&Assigned> {
        self.assigned.as_ref()
    }

    /// Its software card goes on at this TSC, in the domain's time: a processor of the domain's must learn of that.
    pub(super) fn resume_at(&self, domain: &Domain, tsc: u64) {
        let Some(station) = &self.station else { return };
        station.resume_at(tsc);
        let here = cpu::this().index;
        // A home of the domain's that is in here looks before it sleeps, and at the end of the slice at the latest.
        let elsewhere = domain.vcpus.first().filter(|_| domain.vcpus.iter().all(|vcpu| vcpu.home != here));
        if let Some(vcpu) = elsewhere.filter(|_| tsc != u64::MAX) {
            cpu::kick(vcpu.home);
        }
    }

    /// The function as the guest's PCI bus shows it. Its ports stay where they physically are, since
    /// the I/O permission map cannot move them.
    ///
    /// # Errors
    /// The physical function has what a virtual one cannot.
    pub fn function(&self) -> Result<Function, BuildError> {
        let physical = &self.device.function;
        let (base, size) = self.device.ports;
        let identity = self.station.as_ref().map(Station::identity).unwrap_or(Identity {
            vendor: physical.vendor,
            device: physical.device,
            class: physical.class,
            revision: physical.revision,
            subsystem_vendor: physical.subsystem.0,
            subsystem: physical.subsystem.1,
        });
        let pin = if self.station.is_some() { 1 } else { physical.pin.min(1) };
        let builder = Builder::new(identity).interrupt(pin, self.pin).fixed_ports();
        match (&self.assigned, &self.station) {
            (Some(assigned), _) => assigned.describe(builder, physical).build(),
            (None, Some(station)) => station.describe(builder).build(),
            (None, None) => builder.bar(0, BarKind::Io, u64::from(size), u64::from(base)).build(),
        }
    }

    /// The monitor wants other accesses to exit.
    pub(super) fn set_hooks(&self, domain: &Domain, index: usize, hooks: u32) {
        let mut ports = self.ports.lock();
        ports.hooks = hooks;
        self.install(domain, index, &ports);
    }

    /// The guest finds something else in its card's memory from now on. `line`: what its software card says. The caller holds the
    /// lock of the device.
    pub(super) fn show(&self, domain: &Domain, index: usize, shown: Shown, line: bool) {
        if let Some(station) = &self.station {
            station.show(domain, &self.device, index as u8, shown);
        }
        if !shown.hardware {
            self.lower(domain, line);
        }
    }

    fn install(&self, domain: &Domain, index: usize, ports: &Ports) {
        let (base, size) = self.device.ports;
        let Ports { hooks, decoded } = *ports;
        let handler = if decoded { PortHandler::Device(index as u8) } else { PortHandler::None };
        domain.set_ports(base, size, handler, |offset| {
            decoded && hooks.checked_shr(u32::from(offset)).unwrap_or(1) & 1 == 0
        });
    }

    /// The line of a device that is passed through went up. The caller holds the lock of the device.
    pub(super) fn raise(&self, domain: &Domain) {
        self.raised.store(true, Ordering::SeqCst);
        domain.set_line(self.pin, true);
    }

    /// A line that is passed through is so no more, or its interrupt has been dealt with: the guest's shows `line`, which is what
    /// its software card says. The caller holds the lock of the device.
    fn lower(&self, domain: &Domain, line: bool) {
        if self.raised.swap(false, Ordering::SeqCst) {
            domain.set_line(self.pin, line);
            self.device.unmask();
        }
    }
}

impl VirtualFunction for Share {
    fn slot(&self) -> u8 {
        self.slot
    }

    fn pin(&self) -> u8 {
        self.pin
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        let mut inner = self.device.inner.lock();
        for client in inner.clients.iter_mut().filter(|client| client.seat == self.seat) {
            client.domain = Arc::downgrade(domain);
            client.index = index;
        }
        drop(inner);
        if self.mode == Mode::Passthrough
            && let (Some(endpoint), Some((tag, root))) = (self.device.dma_endpoint(), domain.device_space())
        {
            endpoint.attach(tag, root);
        }
        if self.client().is_none() {
            self.device.unmask();
        }
    }

    fn detach(&self) {
        let device = &self.device;
        let report = device.share_report(self);
        match self.seat {
            Seat::Client(client) => {
                device.with_monitor(None, |monitor, raw, now| monitor.detach(raw, client, now));
            }
            Seat::Owner => device.take_back(self),
            Seat::Port(port) => {
                device.with_shared_nic(|shared, env| shared.unplug(env, port));
            }
        }
        let mut inner = device.inner.lock();
        inner.past.extend(report);
        inner.clients.retain(|client| client.seat != self.seat);
        device.rest(&mut inner);
    }

    fn configured(&self, domain: &Domain, index: usize, effect: ConfigEffect) {
        if let Some(assigned) = &self.assigned {
            return assigned.configured(domain, index as u8, self.slot, &self.device.function, effect);
        }
        if let Some(station) = &self.station {
            return station.configured(domain, index as u8, self.slot, &self.device, effect);
        }
        let mut ports = self.ports.lock();
        let decoded = domain.platform.lock().pci.bar(self.slot, 0).is_some_and(|bar| bar.enabled);
        if ports.decoded != decoded {
            ports.decoded = decoded;
            #[cfg(feature = "widen-races")]
            crate::x86::tsc::delay_us(2_000);
            self.install(domain, index, &ports);
        }
    }

    fn port(&self, domain: &Domain, port: u16, width: u8, access: Access<'_>) -> Answer {
        use sluice_vpio::RegisterAccess as Request;
        if let Some(station) = &self.station {
            return station.io(&self.device, port, width, access);
        }
        let offset = port.wrapping_sub(self.device.ports.0);
        let single = access.len() == usize::from(width);
        let Some(client) = self.client() else { return Answer::Refused };
        self.device
            .with_monitor(Some(domain), |monitor, raw, now| match access {
                Access::Read(buffer) if single => {
                    let outcome = monitor.access(raw, client, now, Request::Read { offset, width });
                    if let Outcome::Done(value) | Outcome::Refused(Refusal { value, .. }) = outcome {
                        for (to, from) in buffer.iter_mut().zip(value.to_le_bytes()) {
                            *to = from;
                        }
                    }
                    outcome
                }
                Access::Write(bytes) if single => {
                    let mut word = [0; 4];
                    for (to, from) in word.iter_mut().zip(bytes) {
                        *to = *from;
                    }
                    let value = u32::from_le_bytes(word);
                    monitor.access(raw, client, now, Request::Write { offset, width, value })
                }
                Access::Read(into) => {
                    monitor.access(raw, client, now, Request::ReadString { offset, width, into })
                }
                Access::Write(from) => {
                    monitor.access(raw, client, now, Request::WriteString { offset, width, from })
                }
            })
            .map_or(Answer::Refused, |outcome| match outcome {
                Outcome::Done(_) => Answer::Attend,
                Outcome::Refused(refusal) => match refusal.reaction {
                    Reaction::Discard | Reaction::Interrupt => Answer::Refused,
                    Reaction::DeferredError => Answer::Failed { deferred: true },
                    Reaction::MachineCheck => Answer::Failed { deferred: false },
                },
                Outcome::Wait => Answer::Wait,
            })
    }

    fn memory(&self, domain: &Domain, bar: u8, gpa: Gpa, access: Access<'_>) -> Answer {
        match (&self.assigned, &self.station) {
            (Some(assigned), _) => assigned.memory(domain, &self.device.function, bar, gpa, access),
            (None, Some(station)) => station.memory(&self.device, bar, gpa, access),
            (None, None) => Answer::Refused,
        }
    }

    fn end_of_interrupt(&self, domain: &Domain) {
        match self.seat {
            Seat::Client(client) => {
                self.device.with_monitor(Some(domain), |monitor, _, _| monitor.end_of_interrupt(client));
            }
            // A software card's line shows at all times what it says, and is not raised here.
            Seat::Port(_) | Seat::Owner => {
                if self.raised.load(Ordering::SeqCst) {
                    self.device.with_line(self.seat, |line| self.lower(domain, line));
                }
            }
        }
    }

    fn halted(&self, domain: &Domain) {
        if let Some(client) = self.client() {
            self.device.with_monitor(Some(domain), |monitor, raw, now| monitor.halted(raw, client, now));
        }
    }

    fn resumes_at(&self) -> u64 {
        self.station.as_ref().map_or(u64::MAX, Station::resumes_at)
    }

    fn resume(&self, now: u64) {
        if let Some(station) = &self.station {
            station.resume(&self.device, now);
        }
    }
}

/// The counters of one client.
pub(super) fn report(domain: &str, monitor: &Monitor, client: ClientId) -> ShareReport {
    let share = ShareReport { domain: domain.into(), mode: "vpio".into(), ..ShareReport::default() };
    let Some(counters) = monitor.counters(client) else { return share };
    let by_register = counters.hooked_by_register.iter().enumerate();
    let hooked_by_register = by_register
        .filter(|(_, count)| **count != 0)
        .map(|(index, count)| Count {
            name: monitor.register_name(index).unwrap_or("?").into(),
            value: *count,
        })
        .collect();
    ShareReport {
        hooked_elements: counters.hooked_elements,
        hooked_instructions: counters.hooked_instructions,
        hooked_by_register,
        forwarded_elements: counters.forwarded_elements,
        tx_packets: counters.tx_packets,
        rx_packets: counters.rx_packets,
        rx_dropped: counters.rx_dropped,
        refused: counters.refused,
        waits: counters.waits,
        wait_ns: counters.wait_ns,
        held_ns: counters.held_ns,
        ..share
    }
}
