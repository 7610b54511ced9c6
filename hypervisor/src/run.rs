//! The life of a physical processor: it goes round its virtual processors, and does what is not theirs in between.
//!
//! Nothing here switches stacks: a slice is a call of [`exit::run`]. What a domain's functions have left to do
//! ([`Domain::resume`](crate::domain::Domain::resume)) is done within its slices. For a virtual processor that does not run it is
//! a turn of its own, of one call: the others of the home have at least a slice each for one such call.

use crate::cpu::{self, Cpu, Role, timer};
use crate::domain::vcpu::BlockReason;
use crate::exit::{self, Slice};
use crate::sched::{self, Home, Slot, Turn};
use crate::svm::{self, HostArea};
use crate::x86::{self, msr, tsc};
use crate::{devices, manage};

/// Longest time a virtual processor runs while another waits, in nanoseconds.
const SLICE_NS: u64 = 4_000_000;

/// What a physical processor keeps for running guests.
struct Processor {
    /// Save areas for going in and out of guests.
    host: HostArea,
    index: u32,
    slice_end: u64,
    /// What the timer is set to; `None` once an interrupt was taken, which may have been the timer's,
    /// and the timer may fire early.
    armed: Option<u64>,
    next: usize,
    loaded: Option<Slot>,
    /// What it may hold of guests.
    #[cfg(feature = "check-flushes")]
    translations: sluice_memory::flushes::Translations,
}

/// A turn of a virtual processor that does not run: its domain's cards go on, and the time is its own.
fn serve_cards(slot: &Slot, now: u64) {
    slot.domain.resume(now);
    slot.vcpu().charge(tsc::now().wrapping_sub(now));
}

/// The life of a physical processor once the machine is up.
pub fn run_cpu(cpu: &'static Cpu) -> ! {
    let host = match svm::enable() {
        Ok(host) => host,
        Err(why) => panic!("processor {}: cannot run guests: {why:?}", cpu.index),
    };
    let mut processor = Processor {
        host,
        index: cpu.index,
        slice_end: 0,
        armed: None,
        next: 0,
        loaded: None,
        #[cfg(feature = "check-flushes")]
        translations: Default::default(),
    };
    loop {
        if cpu.role() == Role::Engine {
            devices::vif::run(cpu);
        }
        processor.service();
        let now = tsc::now();
        // The home is unlocked again before anybody runs.
        let turn = sched::home_of(processor.index).pick(&mut processor.next, now);
        match turn {
            Some((slot, Turn::Run)) => processor.run_slice(slot, now),
            Some((slot, Turn::Cards)) => {
                serve_cards(&slot, now);
                // What its cards did may be what it waited for.
                let now = tsc::now();
                if slot.wants(now) == Some(Turn::Run) {
                    processor.run_slice(slot, now);
                }
            }
            None => processor.rest(now),
        }
    }
}

impl Processor {
    fn run_slice(&mut self, slot: Slot, now: u64) {
        self.load(&slot);
        let vcpu = slot.vcpu();
        vcpu.unblock(BlockReason::Halt);
        self.slice_end = now.saturating_add(tsc::ticks_from_ns(SLICE_NS));
        exit::run(&slot.domain, vcpu, self);
    }

    /// Brings a virtual processor's extended state into the registers.
    fn load(&mut self, slot: &Slot) {
        if let Some(last) = &self.loaded {
            if last == slot {
                return;
            }
            let mut context = last.vcpu().context.lock();
            context.fpu.save();
            context.tsc_aux = x86::rdmsr(msr::TSC_AUX);
            context.breakpoints = x86::read_breakpoints();
        }
        let context = slot.vcpu().context.lock();
        context.fpu.restore();
        x86::write_breakpoints(context.breakpoints);
        // SAFETY: TSC_AUX only feeds RDTSCP and RDPID.
        unsafe { x86::wrmsr(msr::TSC_AUX, context.tsc_aux) };
        drop(context);
        self.loaded = Some(slot.clone());
    }

    /// Nothing to run: sleeps until a timer or an interrupt.
    fn rest(&mut self, now: u64) {
        if self.loaded.as_ref().is_some_and(|slot| slot.domain.has_ended()) {
            // Its state is in the registers and will be overwritten; its memory must not wait for that.
            self.loaded = None;
        }
        if self.index == cpu::BOOT && (manage::wants_service() || manage::send_when_idle()) {
            return;
        }
        let wake = self.next_wake(&sched::home_of(self.index), now);
        self.arm(wake);
        cpu::idle();
        self.armed = None;
    }

    /// When after `now` somebody wants attention.
    fn next_wake(&self, home: &Home, now: u64) -> u64 {
        home.next_wake(now).min(devices::next_poll(self.index)).min(manage::next_service(self.index))
    }

    fn arm(&mut self, deadline: u64) {
        if self.armed != Some(deadline) {
            self.armed = Some(deadline);
            if deadline == u64::MAX { timer::disarm() } else { timer::set_deadline(deadline) }
        }
    }
}

impl Slice for Processor {
    fn host(&mut self) -> &mut HostArea {
        &mut self.host
    }

    #[cfg(feature = "check-flushes")]
    fn translations(&mut self) -> &mut sluice_memory::flushes::Translations {
        &mut self.translations
    }

    fn take_interrupts(&mut self) {
        cpu::with_interrupts_window();
        self.armed = None;
    }

    fn service(&mut self) {
        devices::service(self.index);
        if self.index == cpu::BOOT {
            manage::service();
        }
    }

    fn prepare_timer(&mut self, guest_deadline: Option<u64>, now: u64) -> bool {
        let home = sched::home_of(self.index);
        let alone = home.is_lone();
        if now >= self.slice_end && !alone {
            if home.is_wanted_by_another(self.loaded.as_ref(), now) {
                return false;
            }
            self.slice_end = now.saturating_add(tsc::ticks_from_ns(SLICE_NS));
        }
        let slice = if alone { u64::MAX } else { self.slice_end };
        let others = self.next_wake(&home, now);
        drop(home);
        self.arm(slice.min(others).min(guest_deadline.unwrap_or(u64::MAX)));
        true
    }
}
