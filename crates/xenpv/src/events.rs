//! Event channels: 64 words of bits that the guest and the hypervisor share.

use crate::abi::{Error, shared_info, vcpu_info};
use crate::memory::{byte, word};
use crate::{Guest, Host};

/// Ports that a guest may have.
pub(crate) const PORTS: usize = 128;
/// The console's port: it is there from the start.
pub(crate) const CONSOLE: u32 = 1;

/// What a port is bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Port {
    /// Nothing.
    #[default]
    Free,
    /// Another domain may bind it: none does.
    Unbound,
    /// The console.
    Console,
    /// A virtual interrupt.
    Virq(u32),
    /// The guest itself.
    Ipi,
    /// An interrupt line of its devices.
    Line(u32),
}

/// Timer.
pub(crate) const VIRQ_TIMER: u32 = 0;
/// Input for the initial domain's console.
pub(crate) const VIRQ_CONSOLE: u32 = 2;
/// Numbers of virtual interrupts.
const VIRQS: u32 = 24;

pub(crate) struct Channels([Port; PORTS]);

impl Channels {
    pub(crate) fn new() -> Self {
        let mut ports = [Port::Free; PORTS];
        ports[CONSOLE as usize] = Port::Console;
        Self(ports)
    }

    pub(crate) fn find(&self, wanted: Port) -> Option<u32> {
        self.0.iter().position(|port| *port == wanted).map(|port| port as u32)
    }

    /// Port 0 is none.
    fn bind(&mut self, to: Port) -> Result<u32, Error> {
        let free = (1u32..).zip(self.0.iter_mut().skip(1)).find(|(_, port)| **port == Port::Free);
        let (number, port) = free.ok_or(Error::NoSpace)?;
        *port = to;
        Ok(number)
    }

    fn get(&self, port: u32) -> Result<Port, Error> {
        let known = self.0.get(port as usize).copied().ok_or(Error::Invalid)?;
        if known == Port::Free { Err(Error::Invalid) } else { Ok(known) }
    }
}

mod op {
    pub const BIND_VIRQ: u64 = 1;
    pub const BIND_PIRQ: u64 = 2;
    pub const CLOSE: u64 = 3;
    pub const SEND: u64 = 4;
    pub const STATUS: u64 = 5;
    pub const ALLOC_UNBOUND: u64 = 6;
    pub const BIND_IPI: u64 = 7;
    pub const BIND_VCPU: u64 = 8;
    pub const UNMASK: u64 = 9;
}

impl Guest {
    /// Marks a port as pending. Returns whether the guest is to be told.
    pub(crate) fn raise(&mut self, host: &mut impl Host, port: u32) -> bool {
        let (at, bit) = place(port);
        let frame = self.layout.shared_info;
        let pending = word(host, frame, shared_info::PENDING + at);
        host.write(frame, shared_info::PENDING + at, &(pending | bit).to_le_bytes());
        let masked = word(host, frame, shared_info::MASK + at) & bit != 0;
        if pending & bit == 0 && !masked {
            self.signal(host, port);
        }
        pending & bit == 0 && !masked
    }

    /// Tells the processor of a pending port.
    fn signal(&mut self, host: &mut impl Host, port: u32) {
        let (frame, offset) = self.info;
        let selector = word(host, frame, offset + vcpu_info::SELECTOR) | 1 << (port / 64);
        host.write(frame, offset + vcpu_info::SELECTOR, &selector.to_le_bytes());
        host.write(frame, offset + vcpu_info::PENDING, &[1]);
    }

    /// Whether an event waits, whether or not the guest wants to be told.
    pub fn is_pending(&self, host: &impl Host) -> bool {
        byte(host, self.info.0, self.info.1 + vcpu_info::PENDING) != 0
    }

    /// Raises a virtual interrupt where the guest has bound it.
    pub(crate) fn raise_virq(&mut self, host: &mut impl Host, virq: u32) {
        if let Some(port) = self.channels.find(Port::Virq(virq)) {
            self.raise(host, port);
        }
    }

    /// Looks whether the timer is due.
    pub fn tick(&mut self, host: &mut impl Host) {
        if self.deadline.is_some_and(|deadline| deadline <= host.now()) {
            self.deadline = None;
            self.raise_virq(host, VIRQ_TIMER);
        }
    }

    /// HYPERVISOR_event_channel_op.
    pub(crate) fn event_channel_op(
        &mut self,
        host: &mut impl Host,
        cmd: u64,
        arg: u64,
    ) -> Result<u64, Error> {
        match cmd {
            op::BIND_VIRQ => {
                let [virq, vcpu] = self.halves(host, arg)?;
                if virq >= VIRQS {
                    return Err(Error::Invalid);
                }
                only(vcpu)?;
                if self.channels.find(Port::Virq(virq)).is_some() {
                    return Err(Error::NoEntry);
                }
                self.answer(host, arg.wrapping_add(8), Port::Virq(virq))
            }
            op::BIND_PIRQ => {
                let [line] = self.halves(host, arg)?;
                let line = Port::Line(self.own_line(line)?);
                if self.channels.find(line).is_some() {
                    return Err(Error::Exists);
                }
                self.answer(host, arg.wrapping_add(8), line)
            }
            op::BIND_IPI => {
                let [vcpu] = self.halves(host, arg)?;
                only(vcpu)?;
                self.answer(host, arg.wrapping_add(4), Port::Ipi)
            }
            op::ALLOC_UNBOUND => self.answer(host, arg.wrapping_add(4), Port::Unbound),
            op::CLOSE => {
                let [port] = self.halves(host, arg)?;
                if self.channels.get(port)? == Port::Console {
                    return Err(Error::Invalid);
                }
                if let Some(port) = self.channels.0.get_mut(port as usize) {
                    *port = Port::Free;
                }
                Ok(0)
            }
            op::SEND => {
                let [port] = self.halves(host, arg)?;
                match self.channels.get(port)? {
                    Port::Console => self.drain_console(host),
                    Port::Ipi => {
                        self.raise(host, port);
                    }
                    Port::Unbound => {}
                    Port::Virq(_) | Port::Line(_) | Port::Free => return Err(Error::Invalid),
                }
                Ok(0)
            }
            op::STATUS => {
                let [_, port] = self.halves(host, arg)?;
                let (status, detail) = match self.channels.0.get(port as usize).ok_or(Error::Invalid)? {
                    Port::Free => (0u32, 0),
                    Port::Unbound => (1, 0),
                    Port::Console => (2, 0),
                    Port::Line(line) => (3, *line),
                    Port::Virq(virq) => (4, *virq),
                    Port::Ipi => (5, 0),
                };
                let mut answer = [0; 12];
                answer[0..4].copy_from_slice(&status.to_le_bytes());
                answer[8..12].copy_from_slice(&detail.to_le_bytes());
                self.copy_out(host, arg.wrapping_add(8), &answer)?;
                Ok(0)
            }
            op::BIND_VCPU => {
                let [port, vcpu] = self.halves(host, arg)?;
                self.channels.get(port)?;
                only(vcpu).map(|()| 0)
            }
            op::UNMASK => {
                let [port] = self.halves(host, arg)?;
                self.channels.get(port)?;
                let ((at, bit), frame) = (place(port), self.layout.shared_info);
                let mask = word(host, frame, shared_info::MASK + at) & !bit;
                host.write(frame, shared_info::MASK + at, &mask.to_le_bytes());
                if word(host, frame, shared_info::PENDING + at) & bit != 0 {
                    self.signal(host, port);
                }
                Ok(0)
            }
            _ => Err(Error::NoCall),
        }
    }

    /// Binds a port and writes its number.
    fn answer(&mut self, host: &mut impl Host, at: u64, to: Port) -> Result<u64, Error> {
        self.place(host, at, true)?;
        let port = self.channels.bind(to)?;
        self.copy_out(host, at, &port.to_le_bytes())?;
        Ok(0)
    }
}

/// The word of a port, as an offset, and the bit in it.
fn place(port: u32) -> (usize, u64) {
    (port as usize / 64 * 8, 1 << (port % 64))
}

/// There is one processor.
fn only(vcpu: u32) -> Result<(), Error> {
    if vcpu == 0 { Ok(()) } else { Err(Error::NoEntry) }
}
