//! One domain's part in a physical device.

use super::assigned::Assigned;
use super::emulated::Station;
use super::{Device, Seat};
use crate::domain::{Access, Answer, Domain, PortHandler};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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
    /// Port offsets that must exit, as the monitor last said.
    hooks: AtomicU32,
    /// The guest has the function's ports switched on, at the address where they physically are.
    decoded: AtomicBool,
    /// A line that is passed through is up in the guest.
    raised: AtomicBool,
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
    ) -> Self {
        Self {
            device,
            mode,
            seat,
            assigned,
            station,
            slot,
            pin,
            hooks: AtomicU32::new(u32::MAX),
            decoded: AtomicBool::new(false),
            raised: AtomicBool::new(false),
        }
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// How it is shared.
    pub fn mode(&self) -> Mode {
        self.mode
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

    /// Slot of the virtual PCI bus.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// I/O APIC pin of the guest.
    pub fn pin(&self) -> u8 {
        self.pin
    }

    /// Whether this is a part in `device`.
    pub fn is_of(&self, device: &Device) -> bool {
        core::ptr::eq(&*self.device, device)
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

    /// The guest changed the function's configuration, or has not yet.
    pub fn configured(&self, domain: &Domain, index: usize, effect: ConfigEffect) {
        if let Some(assigned) = &self.assigned {
            return assigned.configured(domain, index as u8, self.slot, &self.device.function, effect);
        }
        if let Some(station) = &self.station {
            return station.configured(domain, index as u8, self.slot, &self.device, effect);
        }
        let enabled = domain.platform.lock().pci.bar(self.slot, 0).is_some_and(|bar| bar.enabled);
        if enabled != self.decoded.swap(enabled, Ordering::SeqCst) {
            self.apply(domain, index);
        }
    }

    /// The monitor wants other accesses to exit.
    pub(super) fn set_hooks(&self, domain: &Domain, index: usize, mask: u32) {
        self.hooks.store(mask, Ordering::SeqCst);
        self.apply(domain, index);
    }

    /// The guest finds something else in its card's memory from now on. `line`: what its software card says.
    pub(super) fn show(&self, domain: &Domain, index: usize, shown: Shown, line: bool) {
        if let Some(station) = &self.station {
            station.show(domain, &self.device, index as u8, shown);
        }
        if !shown.hardware && self.raised.swap(false, Ordering::SeqCst) {
            domain.set_line(self.pin, line);
            self.device.unmask();
        }
    }

    fn apply(&self, domain: &Domain, index: usize) {
        let (base, size) = self.device.ports;
        let hooks = self.hooks.load(Ordering::SeqCst);
        let handler = if self.decoded.load(Ordering::SeqCst) {
            PortHandler::Device(index as u8)
        } else {
            PortHandler::None
        };
        domain.set_ports(base, size, handler, |offset| {
            handler != PortHandler::None && hooks.checked_shr(u32::from(offset)).unwrap_or(1) & 1 == 0
        });
    }

    /// An access to memory of the device that exited.
    pub fn memory(&self, domain: &Domain, bar: u8, gpa: Gpa, access: Access<'_>) -> Answer {
        match (&self.assigned, &self.station) {
            (Some(assigned), _) => assigned.memory(domain, &self.device.function, bar, gpa, access),
            (None, Some(station)) => station.memory(&self.device, bar, gpa, access),
            (None, None) => Answer::Refused,
        }
    }

    /// An access to a hooked port of the device.
    pub fn port(&self, domain: &Domain, port: u16, width: u8, access: Access<'_>) -> Answer {
        use sluice_vpio::Access as Request;
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

    /// The line of a device that is passed through went up.
    pub(super) fn raise(&self, domain: &Domain) {
        self.raised.store(true, Ordering::SeqCst);
        domain.set_line(self.pin, true);
    }

    /// The guest is about to end an interrupt of this pin: the line must show what the device says now.
    pub fn end_of_interrupt(&self, domain: &Domain) {
        match self.seat {
            Seat::Client(client) => {
                self.device.with_monitor(Some(domain), |monitor, _, _| monitor.end_of_interrupt(client));
            }
            // A software card's line shows at all times what it says, and is not raised here.
            Seat::Port(_) | Seat::Owner => {
                if self.raised.swap(false, Ordering::SeqCst) {
                    domain.set_line(self.pin, self.device.software_line(self.seat));
                    self.device.unmask();
                }
            }
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
