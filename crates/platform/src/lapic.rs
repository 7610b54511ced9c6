//! The local APIC of a virtual processor, in xAPIC and x2APIC mode.
//!
//! [`LocalApic`] holds the registers. Accesses come in by [`LocalApic::msr_read`] and
//! [`LocalApic::msr_write`], or in xAPIC mode by [`LocalApic::mmio_load`] and [`LocalApic::mmio_store`], and
//! an [`Effect`] says what the hypervisor has to do. Interrupts come in by [`LocalApic::request`]; before
//! entering the guest the hypervisor asks for [`LocalApic::highest_pending`], and once the processor has taken it
//! says so by [`LocalApic::acknowledge`], or takes that back by [`LocalApic::retract`]. Time is the guest's TSC
//! throughout.
//!
//! Source: Intel SDM vol. 3, chapter 11 (sections named at the items).
//!
//! Deviations: the registers cannot be moved from 0xFEE0_0000; the version is 0x14 with six LVT entries and no
//! EOI-broadcast suppression; LINT0 and LINT1 are connected to nothing; the timer's are in its own file.

mod ipi;
mod routing;
#[cfg(test)]
mod tests;
mod timer;
mod vectors;

use crate::GeneralProtection;
use crate::message::widen;
use ipi::NotSent;
use timer::{Mode, Timer};

pub use ipi::{DeliveryMode, Ipi, Shorthand};
pub use routing::Routing;
pub use timer::Rates;
pub use vectors::Vectors;

/// Where the registers are in xAPIC mode (one 4 KiB page).
pub const BASE: u64 = 0xFEE0_0000;
/// Rate of the timer's input, in kHz: a tick is a nanosecond.
pub const TIMER_KHZ: u32 = 1_000_000;
/// IA32_APIC_BASE.
pub const MSR_APIC_BASE: u32 = 0x1B;
/// IA32_TSC_DEADLINE.
pub const MSR_TSC_DEADLINE: u32 = 0x6E0;
/// First and last MSR of the x2APIC register space.
pub const MSR_X2APIC: core::ops::RangeInclusive<u32> = 0x800..=0x83F;

const MSR_EOI: u32 = 0x80b;

const BASE_BSP: u64 = 1 << 8;
const BASE_X2APIC: u64 = 1 << 10;
const BASE_ENABLE: u64 = 1 << 11;

const LVT_MASKED: u32 = 1 << 16;
const SVR_ENABLE: u32 = 1 << 8;
const VERSION: u32 = 0x0005_0014;

const ERROR_SEND_VECTOR: u32 = 1 << 5;
const ERROR_RECEIVE_VECTOR: u32 = 1 << 6;
const ERROR_REGISTER: u32 = 1 << 7;

/// Register numbers: the MMIO offset divided by 16, or the MSR less 0x800 (table 11-6).
mod reg {
    pub const ID: u32 = 0x02;
    pub const VERSION: u32 = 0x03;
    pub const TPR: u32 = 0x08;
    pub const APR: u32 = 0x09;
    pub const PPR: u32 = 0x0A;
    pub const EOI: u32 = 0x0B;
    pub const REMOTE_READ: u32 = 0x0C;
    pub const LDR: u32 = 0x0D;
    pub const DFR: u32 = 0x0E;
    pub const SVR: u32 = 0x0F;
    pub const ISR: u32 = 0x10;
    pub const TMR: u32 = 0x18;
    pub const IRR: u32 = 0x20;
    pub const ESR: u32 = 0x28;
    pub const ICR: u32 = 0x30;
    pub const ICR_HIGH: u32 = 0x31;
    pub const LVT: u32 = 0x32;
    pub const LVT_LAST: u32 = 0x37;
    pub const INITIAL_COUNT: u32 = 0x38;
    pub const CURRENT_COUNT: u32 = 0x39;
    pub const DIVIDE: u32 = 0x3E;
    pub const SELF_IPI: u32 = 0x3F;
}

/// The LVT entries in the order of their registers, 0x32-0x37 (11.5.1).
mod lvt {
    pub const TIMER: usize = 0;
    pub const ERROR: usize = 5;
    /// Bits that software may write: vector, mask, and what else the entry has.
    pub const WRITABLE: [u32; 6] = [0x7_00FF, 0x1_07FF, 0x1_07FF, 0x1_A7FF, 0x1_A7FF, 0x1_00FF];
    /// Read-only bits, which may be written back: delivery status and remote IRR.
    pub const READ_ONLY: u32 = 1 << 12 | 1 << 14;
}

/// What a register access asks of the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Nothing: the guest may be entered again as it was.
    None,
    /// An interrupt is requested. Ask [`LocalApic::highest_pending`] whether it can be delivered; if it cannot, watch the task
    /// priority, which the guest may lower without the APIC's knowing.
    Pending,
    /// Deliver this to other processors, or to this one among them.
    Ipi(Ipi),
    /// A level-triggered interrupt of this vector ended: tell the I/O APIC. If another is requested, ask as for [`Self::Pending`], too.
    Eoi {
        /// The vector.
        vector: u8,
        /// Another is requested.
        pending: bool,
    },
    /// [`LocalApic::timer_deadline`] may have changed.
    TimerChanged,
}

/// The local APIC of one virtual processor.
#[derive(Clone, Debug)]
pub struct LocalApic {
    id: u32,
    base: u64,
    tpr: u8,
    ldr: u32,
    dfr: u32,
    svr: u32,
    irr: Vectors,
    isr: Vectors,
    tmr: Vectors,
    /// Errors as software last latched them, and those since.
    esr: u32,
    errors: u32,
    icr: u64,
    lvt: [u32; 6],
    timer: Timer,
}

impl LocalApic {
    /// The APIC of the processor with this id, after power-up: xAPIC mode, software-disabled. Processor 0
    /// is the one that boots.
    pub fn new(id: u32, rates: Rates) -> Self {
        let bsp = if id == 0 { BASE_BSP } else { 0 };
        Self {
            id,
            base: BASE | BASE_ENABLE | bsp,
            tpr: 0,
            ldr: 0,
            dfr: u32::MAX,
            svr: 0xFF,
            irr: Vectors::default(),
            isr: Vectors::default(),
            tmr: Vectors::default(),
            esr: 0,
            errors: 0,
            icr: 0,
            lvt: [LVT_MASKED; 6],
            timer: Timer::new(rates),
        }
    }

    /// The effect of INIT: everything but the id and the mode goes back to its state at power-up (11.4.7.3,
    /// 11.12.5.1).
    pub fn reset(&mut self) {
        *self = Self { base: self.base, ..Self::new(self.id, self.timer.rates()) };
        self.ldr = if self.is_x2apic() { x2apic_ldr(self.id) } else { 0 };
    }

    /// The APIC id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// IA32_APIC_BASE.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Is it in x2APIC mode?
    pub fn is_x2apic(&self) -> bool {
        self.base & BASE_X2APIC != 0
    }

    /// Do its registers answer at [`BASE`]?
    pub fn is_xapic(&self) -> bool {
        self.base & (BASE_X2APIC | BASE_ENABLE) == BASE_ENABLE
    }

    /// Is it enabled, by the base register and by software (11.4.7)?
    pub fn is_enabled(&self) -> bool {
        self.base & BASE_ENABLE != 0 && self.svr & SVR_ENABLE != 0
    }

    // Interrupts (11.8).

    /// Accepts an interrupt. One that arrives while software has the APIC disabled is lost (11.4.7.2).
    pub fn request(&mut self, vector: u8, level: bool) {
        if !self.is_enabled() {
            return;
        }
        if vector < 16 {
            return self.raise_error(ERROR_RECEIVE_VECTOR);
        }
        self.irr.insert(vector);
        self.tmr.set(vector, level);
    }

    /// The vector to deliver next, if one has a higher priority than the processor (11.8.3.1).
    pub fn highest_pending(&self) -> Option<u8> {
        if !self.is_enabled() {
            return None;
        }
        self.irr.highest().filter(|vector| vector >> 4 > self.ppr() >> 4)
    }

    /// The highest vector requested, whatever the priorities.
    pub fn highest_requested(&self) -> Option<u8> {
        self.irr.highest()
    }

    /// Is any vector requested, whatever the priorities?
    pub fn any_requested(&self) -> bool {
        !self.irr.is_empty()
    }

    /// Was the last request of `vector` a level-triggered one?
    pub fn is_level(&self, vector: u8) -> bool {
        self.tmr.contains(vector)
    }

    /// The processor took `vector`: from requested to in service.
    pub fn acknowledge(&mut self, vector: u8) {
        self.irr.remove(vector);
        self.isr.insert(vector);
    }

    /// The processor did not take `vector` after all: from in service back to requested.
    pub fn retract(&mut self, vector: u8) {
        if self.isr.contains(vector) {
            self.isr.remove(vector);
            self.irr.insert(vector);
        }
    }

    /// Ends the interrupt of highest priority in service; the vector if the I/O APIC has to know (11.8.5).
    pub fn eoi(&mut self) -> Option<u8> {
        let vector = self.isr.highest()?;
        self.isr.remove(vector);
        self.tmr.contains(vector).then_some(vector)
    }

    /// EOI written.
    fn end_of_interrupt(&mut self) -> Effect {
        let ended = self.eoi();
        let pending = self.any_requested();
        match ended {
            Some(vector) => Effect::Eoi { vector, pending },
            None if pending => Effect::Pending,
            None => Effect::None,
        }
    }

    /// Is an interrupt in service?
    pub fn has_in_service(&self) -> bool {
        !self.isr.is_empty()
    }

    /// Is `vector` requested or in service?
    pub fn is_busy(&self, vector: u8) -> bool {
        self.irr.contains(vector) || self.isr.contains(vector)
    }

    /// Task priority: class in bits 7:4.
    pub fn tpr(&self) -> u8 {
        self.tpr
    }

    /// CR8: the task priority class (11.8.6).
    pub fn cr8(&self) -> u8 {
        self.tpr >> 4
    }

    /// A write of CR8, of which bits 3:0 count: bits 3:0 of the task priority are clear then (11.8.6).
    pub fn set_cr8(&mut self, class: u8) {
        self.tpr = class << 4;
    }

    /// CR8 of the processor, which its guest may write without an exit, is `class`. A write of the class that was there
    /// does not show: bits 3:0 of the task priority stay.
    pub fn observe_cr8(&mut self, class: u8) {
        if class != self.cr8() {
            self.set_cr8(class);
        }
    }

    /// Processor priority (11.8.3.1).
    pub fn ppr(&self) -> u8 {
        let serviced = self.isr.highest().unwrap_or(0) & 0xF0;
        if self.tpr & 0xF0 >= serviced { self.tpr } else { serviced }
    }

    /// What a sender has to know to find this APIC. It changes with IA32_APIC_BASE, by [`LocalApic::reset`],
    /// and in xAPIC mode with the registers at 0xD0 and 0xE0.
    pub fn routing(&self) -> Routing {
        Routing { id: self.id, x2apic: self.is_x2apic(), ldr: self.ldr, dfr: self.dfr }
    }

    /// Is this APIC among the destinations?
    pub fn matches(&self, dest: u32, logical: bool) -> bool {
        self.routing().matches(dest, logical)
    }

    // Timer (11.5.4).

    /// Guest TSC at which the timer next has something to deliver; `None` while it is idle or masked.
    pub fn timer_deadline(&self) -> Option<u64> {
        self.timer.next().filter(|_| self.lvt[lvt::TIMER] & LVT_MASKED == 0)
    }

    /// Lets time pass until `now`: true if the timer was due and its interrupt is now requested.
    pub fn poll_timer(&mut self, now: u64) -> bool {
        let entry = self.lvt[lvt::TIMER];
        let deliver = self.timer.expire(now) && entry & LVT_MASKED == 0;
        if deliver {
            self.request(entry as u8, false);
        }
        deliver
    }

    /// The guest's TSC went from `from` to `to` other than by time: a timer that counts is none the wiser.
    pub fn tsc_moved(&mut self, from: u64, to: u64) {
        self.timer.tsc_moved(from, to);
    }

    // MSRs.

    /// RDMSR of IA32_APIC_BASE, IA32_TSC_DEADLINE or an x2APIC register, at guest TSC `now`.
    #[inline]
    pub fn msr_read(&self, msr: u32, now: u64) -> Result<u64, GeneralProtection> {
        match msr {
            MSR_APIC_BASE => Ok(self.base),
            MSR_TSC_DEADLINE => Ok(self.timer.deadline(now)),
            _ => match self.x2apic_register(msr)? {
                reg::EOI | reg::SELF_IPI | reg::DFR | reg::ICR_HIGH | reg::APR | reg::REMOTE_READ => {
                    Err(GeneralProtection)
                }
                reg::ICR => Ok(self.icr),
                register => self.read(register, now).map(u64::from).ok_or(GeneralProtection),
            },
        }
    }

    /// WRMSR of IA32_APIC_BASE, IA32_TSC_DEADLINE or an x2APIC register, at guest TSC `now`.
    pub fn msr_write(&mut self, msr: u32, value: u64, now: u64) -> Result<Effect, GeneralProtection> {
        // After each interrupt: told from others once.
        if msr == MSR_EOI && value == 0 && self.is_x2apic() {
            return Ok(self.end_of_interrupt());
        }
        match msr {
            MSR_APIC_BASE => self.write_base(value),
            MSR_TSC_DEADLINE => {
                self.poll_timer(now);
                self.timer.set_deadline(value);
                Ok(Effect::TimerChanged)
            }
            _ => {
                let register = self.x2apic_register(msr)?;
                if value & !x2apic_writable(register).ok_or(GeneralProtection)? != 0 {
                    return Err(GeneralProtection);
                }
                match register {
                    reg::ICR => Ok(self.write_icr(value)),
                    reg::SELF_IPI => Ok(self.send_to_self(value as u8)),
                    _ => self.write(register, value as u32, now).ok_or(GeneralProtection),
                }
            }
        }
    }

    fn x2apic_register(&self, msr: u32) -> Result<u32, GeneralProtection> {
        if self.is_x2apic() && MSR_X2APIC.contains(&msr) { Ok(msr & 0x3F) } else { Err(GeneralProtection) }
    }

    /// Mode changes (figure 11-27): x2APIC is entered from xAPIC and left by disabling only.
    fn write_base(&mut self, value: u64) -> Result<Effect, GeneralProtection> {
        const MODE: u64 = BASE_ENABLE | BASE_X2APIC;
        if value & !(MODE | BASE_BSP) != BASE {
            return Err(GeneralProtection);
        }
        match (self.base & MODE, value & MODE) {
            (from, to) if from == to => return Ok(Effect::None),
            (BASE_ENABLE, MODE) => self.ldr = x2apic_ldr(self.id),
            (0, BASE_ENABLE) => {}
            (_, 0) => *self = Self::new(self.id, self.timer.rates()),
            _ => return Err(GeneralProtection),
        }
        // Which processor boots is not software's to say.
        self.base = (self.base & BASE_BSP) | BASE | (value & MODE);
        Ok(Effect::TimerChanged)
    }

    // Memory-mapped registers.

    /// A read of any width at `offset` in the register page, at guest TSC `now`.
    ///
    /// Defined are reads of four bytes at a multiple of 16; what others do differs between processors (SDM vol. 3,
    /// 11.4.1). Here each byte is the one that is there: of a register in the first four of its 16 bytes, zero in the
    /// rest. That is what Linux KVM (`kvm_lapic_reg_read`) gives for reads that stay within the first four bytes; it
    /// leaves the buffer of all others as it was.
    pub fn mmio_load(&mut self, offset: u32, buffer: &mut [u8], now: u64) {
        if !self.is_xapic() {
            return buffer.fill(u8::MAX);
        }
        let mut from = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let in_register = (16 - from % 16) as usize;
            let (part, after) = rest.split_at_mut(in_register.min(rest.len()));
            let value = if from % 16 < 4 { self.mmio_read(from & !15, now) } else { 0 };
            let bytes = u128::from(value).to_le_bytes();
            part.iter_mut().zip(bytes.iter().skip(from as usize % 16)).for_each(|(to, from)| *to = *from);
            from = from.wrapping_add(part.len() as u32);
            rest = after;
        }
    }

    /// A write of any width at `offset` in the register page, at guest TSC `now`.
    ///
    /// Only four bytes at a multiple of 16 reach a register; anything else is undefined (SDM vol. 3, 11.4.1), and is
    /// ignored, as by Linux KVM (`apic_mmio_write`).
    pub fn mmio_store(&mut self, offset: u32, bytes: &[u8], now: u64) -> Effect {
        match bytes.try_into() {
            Ok(bytes) if offset.is_multiple_of(16) => self.mmio_write(offset, u32::from_le_bytes(bytes), now),
            _ => Effect::None,
        }
    }

    /// A 32-bit read at `offset` in the register page, at guest TSC `now`.
    pub fn mmio_read(&mut self, offset: u32, now: u64) -> u32 {
        if !self.is_xapic() {
            return u32::MAX;
        }
        let register = offset >> 4;
        match register {
            reg::ICR => self.icr as u32,
            reg::ICR_HIGH => (self.icr >> 32) as u32,
            reg::ID => self.id << 24,
            reg::EOI | reg::SELF_IPI => 0,
            _ => self.read(register, now).unwrap_or_else(|| {
                self.raise_error(ERROR_REGISTER);
                0
            }),
        }
    }

    /// A 32-bit write at `offset` in the register page, at guest TSC `now`.
    pub fn mmio_write(&mut self, offset: u32, value: u32, now: u64) -> Effect {
        if !self.is_xapic() {
            return Effect::None;
        }
        match offset >> 4 {
            reg::ICR => self.write_icr(self.icr & !0xFFFF_FFFF | u64::from(value)),
            reg::ICR_HIGH => {
                self.icr = self.icr & 0xFFFF_FFFF | u64::from(value & 0xFF00_0000) << 32;
                Effect::None
            }
            reg::LDR => {
                self.ldr = value & 0xFF00_0000;
                Effect::None
            }
            reg::DFR => {
                self.dfr = value | 0x0FFF_FFFF;
                Effect::None
            }
            reg::SELF_IPI => Effect::None,
            register => self.write(register, value, now).unwrap_or_else(|| {
                self.raise_error(ERROR_REGISTER);
                self.pending()
            }),
        }
    }

    // Registers common to both modes. `None`: there is no such register.

    #[inline]
    fn read(&self, register: u32, now: u64) -> Option<u32> {
        Some(match register {
            reg::ID => self.id,
            reg::VERSION => VERSION,
            reg::TPR => self.tpr.into(),
            reg::PPR | reg::APR => self.ppr().into(),
            reg::REMOTE_READ => 0,
            reg::LDR => self.ldr,
            reg::DFR => self.dfr,
            reg::SVR => self.svr,
            reg::ISR..reg::TMR => self.isr.word(register - reg::ISR),
            reg::TMR..reg::IRR => self.tmr.word(register - reg::TMR),
            reg::IRR..reg::ESR => self.irr.word(register - reg::IRR),
            reg::ESR => self.esr,
            reg::LVT..=reg::LVT_LAST => *self.lvt.get((register - reg::LVT) as usize)?,
            reg::INITIAL_COUNT => self.timer.initial(),
            reg::CURRENT_COUNT => self.timer.current(now),
            reg::DIVIDE => self.timer.divide(),
            _ => return None,
        })
    }

    fn write(&mut self, register: u32, value: u32, now: u64) -> Option<Effect> {
        match register {
            reg::TPR => {
                self.tpr = value as u8;
                return Some(self.pending());
            }
            reg::EOI => return Some(self.end_of_interrupt()),
            reg::SVR => {
                self.poll_timer(now);
                self.svr = value & 0x1FF;
                if value & SVR_ENABLE == 0 {
                    self.lvt.iter_mut().for_each(|entry| *entry |= LVT_MASKED);
                }
                return Some(Effect::TimerChanged);
            }
            reg::ESR => {
                self.esr = self.errors;
                self.errors = 0;
            }
            reg::LVT..=reg::LVT_LAST => return self.write_lvt((register - reg::LVT) as usize, value, now),
            reg::INITIAL_COUNT => {
                self.poll_timer(now);
                self.timer.set_initial(value, now);
                return Some(Effect::TimerChanged);
            }
            reg::DIVIDE => {
                self.poll_timer(now);
                self.timer.set_divide(value, now);
                return Some(Effect::TimerChanged);
            }
            // Read-only: a write does nothing.
            reg::ID | reg::VERSION | reg::APR | reg::PPR | reg::REMOTE_READ | reg::CURRENT_COUNT => {}
            reg::ISR..reg::ESR => {}
            _ => return None,
        }
        Some(Effect::None)
    }

    fn write_lvt(&mut self, index: usize, value: u32, now: u64) -> Option<Effect> {
        if index == lvt::TIMER {
            // What fell due under the old entry is delivered, or lost, by the old entry.
            self.poll_timer(now);
        }
        let forced = if self.svr & SVR_ENABLE == 0 { LVT_MASKED } else { 0 };
        *self.lvt.get_mut(index)? = value & lvt::WRITABLE.get(index)? | forced;
        if index != lvt::TIMER {
            return Some(Effect::None);
        }
        self.timer.set_mode(Mode::of(value));
        Some(Effect::TimerChanged)
    }

    /// Sends what the command register says. A fixed interrupt to its sender alone never leaves this APIC.
    fn write_icr(&mut self, value: u64) -> Effect {
        self.icr = value & !(1 << 12);
        let high = (value >> 32) as u32;
        let dest = if self.is_x2apic() { high } else { widen((high >> 24) as u8) };
        match ipi::decode(value as u32, dest) {
            Ok(Ipi { shorthand: Shorthand::SelfOnly, vector, .. }) => {
                self.request(vector, false);
                self.pending()
            }
            Ok(ipi) => Effect::Ipi(ipi),
            Err(NotSent::IllegalVector) => {
                self.raise_error(ERROR_SEND_VECTOR);
                self.pending()
            }
            Err(NotSent::Ignored) => Effect::None,
        }
    }

    fn send_to_self(&mut self, vector: u8) -> Effect {
        if vector < 16 {
            self.raise_error(ERROR_SEND_VECTOR)
        } else {
            self.request(vector, false)
        }
        self.pending()
    }

    fn pending(&self) -> Effect {
        if self.any_requested() { Effect::Pending } else { Effect::None }
    }

    /// Records an error and raises its interrupt (11.5.3). An error entry with an illegal vector of its own
    /// only records that.
    fn raise_error(&mut self, error: u32) {
        self.errors |= error;
        let entry = self.lvt[lvt::ERROR];
        if entry & LVT_MASKED != 0 {
            return;
        }
        match entry as u8 {
            0..16 => self.errors |= ERROR_RECEIVE_VECTOR,
            vector => self.request(vector, false),
        }
    }
}

/// The logical id of an x2APIC: its cluster of 16, and its bit in it (11.12.10.2).
fn x2apic_ldr(id: u32) -> u32 {
    id >> 4 << 16 | 1 << (id & 0xF)
}

/// The bits that a WRMSR may set without a fault; `None` if the register cannot be written (table 11-6).
fn x2apic_writable(register: u32) -> Option<u64> {
    Some(match register {
        reg::EOI | reg::ESR => 0,
        reg::TPR | reg::SELF_IPI => 0xFF,
        reg::SVR => 0x1FF,
        reg::ICR => !u64::from(ipi::RESERVED),
        reg::LVT..=reg::LVT_LAST => {
            u64::from(lvt::WRITABLE.get((register - reg::LVT) as usize)? | lvt::READ_ONLY)
        }
        reg::INITIAL_COUNT => 0xFFFF_FFFF,
        reg::DIVIDE => 0b1011,
        _ => return None,
    })
}
