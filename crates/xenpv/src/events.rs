//! Event channels: 64 words of bits that the guest and the hypervisor share. Each port tells one of the guest's processors.

use crate::abi::{Error, shared_info, vcpu_info};
use crate::processor::Poll;
use crate::{Guest, Host};
use sluice_pagetypes::Mfn;

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
    /// A virtual interrupt; of the timer's kind every processor has its own.
    Virq(u32),
    /// The guest itself.
    Ipi,
    /// An interrupt line of its devices.
    Line(u32),
}

/// Timer.
pub(crate) const VIRQ_TIMER: u32 = 0;
/// A key of the machine's console, for the guest to say how it is.
const VIRQ_DEBUG: u32 = 1;
/// Performance counters.
const VIRQ_COUNTERS: u32 = 13;
/// Input for the initial domain's console.
pub(crate) const VIRQ_CONSOLE: u32 = 2;
/// Numbers of virtual interrupts.
const VIRQS: u32 = 24;

/// A port, and the processor that it tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Binding {
    pub port: Port,
    pub processor: u32,
}

pub(crate) struct Channels([Binding; PORTS]);

impl Channels {
    pub(crate) fn new() -> Self {
        let mut ports = [Binding::default(); PORTS];
        ports[CONSOLE as usize].port = Port::Console;
        Self(ports)
    }

    fn position(&self, wanted: impl Fn(&Binding) -> bool) -> Option<u32> {
        self.0.iter().position(wanted).map(|port| port as u32)
    }

    pub(crate) fn find(&self, wanted: Port) -> Option<u32> {
        self.position(|binding| binding.port == wanted)
    }

    /// Port 0 is none.
    fn bind(&mut self, to: Binding) -> Result<u32, Error> {
        let free = (1u32..).zip(self.0.iter_mut().skip(1)).find(|(_, binding)| binding.port == Port::Free);
        let (number, binding) = free.ok_or(Error::NoSpace)?;
        *binding = to;
        Ok(number)
    }

    fn get(&mut self, port: u32) -> Result<&mut Binding, Error> {
        let known = self.0.get_mut(port as usize).ok_or(Error::Invalid)?;
        if known.port == Port::Free { Err(Error::Invalid) } else { Ok(known) }
    }

    fn processor(&self, port: u32) -> u32 {
        self.0.get(port as usize).map_or(0, |binding| binding.processor)
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
    /// Marks a port as pending, and tells its processor unless it was pending or the guest does not want to hear of it.
    pub(crate) fn raise(&mut self, host: &mut impl Host, port: u32) {
        let (index, bit) = place(port);
        let frame = self.layout.shared_info;
        if set_bits(host, frame, shared_info::PENDING / 8 + index, bit) & bit != 0 {
            return;
        }
        if host.word(frame, shared_info::MASK / 8 + index) & bit == 0 {
            self.signal(host, port);
        }
        self.end_polls(host, port);
    }

    /// Tells the processor of a pending port.
    fn signal(&mut self, host: &mut impl Host, port: u32) {
        let Some(processor) = self.processor(self.channels.processor(port)) else { return };
        let (id, (frame, offset)) = (processor.id, processor.info);
        set_bits(host, frame, (offset + vcpu_info::SELECTOR) / 8, 1 << (port / 64));
        host.write(frame, offset + vcpu_info::PENDING, &[1]);
        self.wake(host, id);
    }

    /// Has a processor look whether it has something to do; the one that asks does so anyway.
    fn wake(&self, host: &mut impl Host, processor: u32) {
        if processor != self.cpu.id {
            host.wake(processor);
        }
    }

    /// Ends the waiting of processors for a port.
    fn end_polls(&mut self, host: &mut impl Host, port: u32) {
        let waits = |poll: Option<(Poll, u64)>| {
            poll.is_some_and(|(for_what, _)| for_what == Poll::Any || for_what == Poll::One(port))
        };
        let own = self.cpu.id;
        for processor in self.processors_mut().filter(|processor| waits(processor.poll)) {
            processor.poll = None;
            if processor.id != own {
                host.wake(processor.id);
            }
        }
    }

    /// SCHEDOP_poll: waits until one of so many ports is pending, or a time has come (0: none does). Returns whether it has to wait.
    pub(crate) fn poll(&mut self, host: &impl Host, arg: u64) -> Result<bool, Error> {
        /// Ports that may be named.
        const MOST: u64 = PORTS as u64;
        let [list, count, until] = self.words(host, arg)?;
        let count = count & u64::from(u32::MAX);
        if count > MOST {
            return Err(Error::Invalid);
        }
        let mut first = 0;
        for at in (0..count).rev() {
            [first] = self.halves(host, list.wrapping_add(at * 4))?;
            if first as usize >= PORTS {
                return Err(Error::Invalid);
            }
            let (index, bit) = place(first);
            if host.word(self.layout.shared_info, shared_info::PENDING / 8 + index) & bit != 0 {
                return Ok(false);
            }
        }
        let is_told = self.cpu.is_pending(host) && !self.cpu.upcall_mask(host);
        if is_told || until != 0 && until <= host.now() {
            return Ok(false);
        }
        self.cpu.poll = Some((if count == 1 { Poll::One(first) } else { Poll::Any }, until));
        Ok(true)
    }

    /// Whether an event waits for the processor, whether or not it wants to be told.
    pub fn is_pending(&self, host: &impl Host) -> bool {
        self.cpu.is_pending(host)
    }

    /// Raises a virtual interrupt where the guest has bound it.
    pub(crate) fn raise_virq(&mut self, host: &mut impl Host, virq: u32) {
        if let Some(port) = self.channels.find(Port::Virq(virq)) {
            self.raise(host, port);
        }
    }

    /// Looks whether the processor's timer is due. It waits for nothing any more.
    pub fn tick(&mut self, host: &mut impl Host) {
        self.cpu.poll = None;
        if self.cpu.deadline.is_some_and(|deadline| deadline <= host.now()) {
            self.cpu.deadline = None;
            let own = Binding { port: Port::Virq(VIRQ_TIMER), processor: self.cpu.id };
            if let Some(port) = self.channels.position(|binding| *binding == own) {
                self.raise(host, port);
            }
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
                let binding = self.binding(Port::Virq(virq), vcpu)?;
                // Those of the machine's come once, to whoever has bound them.
                let is_bound = match is_each(virq) {
                    true => self.channels.position(|other| *other == binding),
                    false => self.channels.find(Port::Virq(virq)),
                };
                if is_bound.is_some() {
                    return Err(Error::Exists);
                }
                self.answer(host, arg.wrapping_add(8), binding)
            }
            op::BIND_PIRQ => {
                let [line] = self.halves(host, arg)?;
                let line = Port::Line(self.own_line(line)?);
                if self.channels.find(line).is_some() {
                    return Err(Error::Exists);
                }
                self.answer(host, arg.wrapping_add(8), Binding { port: line, processor: 0 })
            }
            op::BIND_IPI => {
                let [vcpu] = self.halves(host, arg)?;
                let binding = self.binding(Port::Ipi, vcpu)?;
                self.answer(host, arg.wrapping_add(4), binding)
            }
            op::ALLOC_UNBOUND => {
                let binding = Binding { port: Port::Unbound, processor: 0 };
                self.answer(host, arg.wrapping_add(4), binding)
            }
            op::CLOSE => {
                let [port] = self.halves(host, arg)?;
                let binding = self.channels.get(port)?;
                if binding.port == Port::Console {
                    return Err(Error::Invalid);
                }
                *binding = Binding::default();
                Ok(0)
            }
            op::SEND => {
                let [port] = self.halves(host, arg)?;
                match self.channels.get(port)?.port {
                    Port::Console => self.drain_console(host),
                    Port::Ipi => self.raise(host, port),
                    Port::Unbound => {}
                    Port::Virq(_) | Port::Line(_) | Port::Free => return Err(Error::Invalid),
                }
                Ok(0)
            }
            op::STATUS => {
                let [_, port] = self.halves(host, arg)?;
                let binding = self.channels.0.get(port as usize).copied().ok_or(Error::Invalid)?;
                let (status, detail) = match binding.port {
                    Port::Free => (0u32, 0),
                    Port::Unbound => (1, 0),
                    Port::Console => (2, 0),
                    Port::Line(line) => (3, line),
                    Port::Virq(virq) => (4, virq),
                    Port::Ipi => (5, 0),
                };
                let mut answer = [0; 12];
                answer[0..4].copy_from_slice(&status.to_le_bytes());
                answer[4..8].copy_from_slice(&binding.processor.to_le_bytes());
                answer[8..12].copy_from_slice(&detail.to_le_bytes());
                self.copy_out(host, arg.wrapping_add(8), &answer)?;
                Ok(0)
            }
            op::BIND_VCPU => {
                let [port, vcpu] = self.halves(host, arg)?;
                if vcpu >= self.layout.processors {
                    return Err(Error::NoEntry);
                }
                let binding = self.channels.get(port)?;
                // Xen's rule: what belongs to one processor stays with it.
                if binding.port == Port::Ipi || matches!(binding.port, Port::Virq(virq) if is_each(virq)) {
                    return Err(Error::Invalid);
                }
                binding.processor = vcpu;
                Ok(0)
            }
            op::UNMASK => {
                let [port] = self.halves(host, arg)?;
                self.channels.get(port)?;
                let ((index, bit), frame) = (place(port), self.layout.shared_info);
                change_bits(host, frame, shared_info::MASK / 8 + index, |mask| mask & !bit);
                if host.word(frame, shared_info::PENDING / 8 + index) & bit != 0 {
                    self.signal(host, port);
                }
                Ok(0)
            }
            _ => Err(Error::NoCall),
        }
    }

    /// What tells a processor, if there is such a one.
    fn binding(&self, port: Port, processor: u32) -> Result<Binding, Error> {
        if processor < self.layout.processors { Ok(Binding { port, processor }) } else { Err(Error::NoEntry) }
    }

    /// Binds a port and writes its number.
    fn answer(&mut self, host: &mut impl Host, at: u64, to: Binding) -> Result<u64, Error> {
        self.place(host, at, true)?;
        let port = self.channels.bind(to)?;
        self.copy_out(host, at, &port.to_le_bytes())?;
        Ok(0)
    }
}

/// The word of a port, and the bit in it.
fn place(port: u32) -> (usize, u64) {
    (port as usize / 64, 1 << (port % 64))
}

/// Whether every processor has a virtual interrupt of this kind: the timer, the debug key, the performance counters.
fn is_each(virq: u32) -> bool {
    matches!(virq, VIRQ_TIMER | VIRQ_DEBUG | VIRQ_COUNTERS)
}

/// Sets bits of a word that processors of the guest's change at the same time. Returns what it was.
fn set_bits(host: &mut impl Host, frame: Mfn, index: usize, bits: u64) -> u64 {
    change_bits(host, frame, index, |word| word | bits)
}

fn change_bits(host: &mut impl Host, frame: Mfn, index: usize, change: impl Fn(u64) -> u64) -> u64 {
    /// A guest that changes the word as often has something else in mind.
    const TRIES: u32 = 64;
    let mut old = host.word(frame, index);
    for _ in 0..TRIES {
        match host.replace(frame, index, old, change(old)) {
            Ok(()) => return old,
            Err(found) => old = found,
        }
    }
    host.write(frame, index * 8, &change(old).to_le_bytes());
    old
}
