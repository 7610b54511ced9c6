//! The life of a physical processor: it runs one of its virtual processors after the other, and does what is not theirs in between.
//!
//! Nothing here switches stacks: a slice is a call of [`exit::run`]. What a domain's functions have left to do
//! ([`Domain::resume`](crate::domain::Domain::resume)) is done within its slices. For a virtual processor that does not run it is
//! a turn of its own, of one call, whose time is its own, too.

use crate::cpu::{self, Cpu, Role, timer};
use crate::domain::vcpu::BlockReason;
use crate::exit::{self, Slice};
use crate::sched::{self, Outlook, Slot, Turn};
use crate::svm::{self, HostArea};
use crate::x86::{self, msr, tsc};
use crate::{devices, manage};
use sluice_platform::share::{self, Order, Share};

/// Longest time a virtual processor runs while another waits, in nanoseconds.
const SLICE_NS: u64 = 4_000_000;

/// Shortest time, in nanoseconds, that it runs before one that has woken takes its place: what it has begun to ask for is done together.
const GRAIN_NS: u64 = 50_000;

/// What a physical processor keeps for running guests.
struct Processor {
    /// Save areas for going in and out of guests.
    host: HostArea,
    index: u32,
    order: Order,
    /// Since when somebody runs, with which share, and until when at most.
    since: u64,
    share: Share,
    slice_end: u64,
    /// What others want beside who runs.
    outlook: Outlook,
    /// Who runs has to make room for another.
    makes_room: bool,
    /// What the timer is set to; `None` once an interrupt was taken, which may have been the timer's,
    /// and the timer may fire early.
    armed: Option<u64>,
    loaded: Option<Slot>,
    /// What it may hold of guests.
    #[cfg(feature = "check-flushes")]
    translations: sluice_memory::flushes::Translations,
}

/// A turn of a virtual processor that does not run: its domain's cards go on, and the time is its own.
fn serve_cards(slot: &Slot, share: Share, now: u64) {
    slot.domain.resume(now);
    let took = tsc::now().wrapping_sub(now);
    slot.vcpu.charge(took);
    slot.vcpu.set_share(share.and(took, true));
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
        order: Order::new(tsc::ticks_from_ns(share::CREDIT_NS), tsc::ticks_from_ns(share::SWITCH_NS)),
        since: 0,
        share: Share::default(),
        slice_end: 0,
        outlook: Outlook::OLD,
        makes_room: false,
        armed: None,
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
        let turn = sched::home_of(processor.index).pick(&mut processor.order, now);
        match turn {
            Some((slot, Turn::Run, share)) => processor.run_slice(slot, share, now),
            Some((slot, Turn::Cards, share)) => serve_cards(&slot, share, now),
            None => processor.rest(now),
        }
    }
}

impl Processor {
    fn run_slice(&mut self, slot: Slot, share: Share, now: u64) {
        self.load(&slot);
        self.outlook = Outlook::OLD;
        let vcpu = &slot.vcpu;
        vcpu.unblock(BlockReason::Halt);
        (self.since, self.share, self.makes_room) = (now, share, false);
        self.slice_end = now.saturating_add(tsc::ticks_from_ns(SLICE_NS));
        exit::run(&slot.domain, vcpu, self);
        let now = tsc::now();
        self.note_alone(now);
        vcpu.set_share(self.share_at(now, !self.makes_room));
    }

    /// The share of who runs, if it halts now or goes on.
    fn share_at(&self, now: u64, halts: bool) -> Share {
        self.share.and(now.saturating_sub(self.since), halts)
    }

    /// Brings a virtual processor's extended state into the registers.
    fn load(&mut self, slot: &Slot) {
        if let Some(last) = &self.loaded {
            if last == slot {
                return;
            }
            let mut context = last.vcpu.context.lock();
            context.fpu.save();
            context.tsc_aux = x86::rdmsr(msr::TSC_AUX);
            context.breakpoints = x86::read_breakpoints();
        }
        let context = slot.vcpu.context.lock();
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
        self.outlook = sched::home_of(self.index).look(None, &self.order, now);
        self.arm(self.next_wake());
        cpu::idle();
        self.armed = None;
    }

    /// Looks at what others want, if that may have changed since it did so last.
    fn look(&mut self, now: u64) {
        if cpu::this().take_news() || self.outlook.wakes <= now {
            self.note_alone(now);
            self.outlook = sched::home_of(self.index).look(self.loaded.as_ref(), &self.order, now);
        }
    }

    /// What who runs has had while nobody else wanted to, those who come now do not get beforehand.
    fn note_alone(&mut self, now: u64) {
        if !self.outlook.is_wanted {
            self.order.alone(self.share_at(now, false));
        }
    }

    /// Until when the virtual processor that runs may go on; `None`: another comes first.
    fn end_of_slice(&mut self, now: u64) -> Option<u64> {
        if self.outlook.is_lone {
            return Some(u64::MAX);
        }
        if now >= self.slice_end {
            if sched::home_of(self.index).is_wanted_by_another(self.loaded.as_ref(), now) {
                return None;
            }
            self.slice_end = now.saturating_add(tsc::ticks_from_ns(SLICE_NS));
        }
        if !self.outlook.claim.takes_place(&self.order, self.share_at(now, false)) {
            return Some(self.slice_end);
        }
        let grain_end = self.since.saturating_add(tsc::ticks_from_ns(GRAIN_NS));
        (now < grain_end).then_some(self.slice_end.min(grain_end))
    }

    /// When somebody wants attention.
    fn next_wake(&self) -> u64 {
        self.outlook.wakes.min(devices::next_poll(self.index)).min(manage::next_service(self.index))
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
        self.look(now);
        let Some(end) = self.end_of_slice(now) else {
            self.makes_room = true;
            return false;
        };
        self.arm(end.min(self.next_wake()).min(guest_deadline.unwrap_or(u64::MAX)));
        true
    }
}
