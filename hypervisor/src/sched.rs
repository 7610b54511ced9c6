//! Time-sharing of physical processors.
//!
//! Every virtual processor has a home, the physical one that runs it. A home goes round its virtual
//! processors and gives each that has something to do a slice; none can be passed over twice, so none
//! starves. Nothing here switches stacks: a slice is a call of [`exit::run`].

use crate::cpu::{self, Cpu, MAX_CPUS, emulator, timer, tsc};
use crate::domain::Domain;
use crate::domain::vcpu::{RunState, Vcpu, event};
use crate::svm::{self, HostArea, exit};
use crate::sync::SpinLock;
use crate::{device, manage};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

/// Longest time a virtual processor runs while another waits, in nanoseconds.
const SLICE_NS: u64 = 4_000_000;

/// A virtual processor, kept alive by its domain.
#[derive(Clone)]
struct Slot {
    domain: Arc<Domain>,
    index: usize,
}

impl Slot {
    fn vcpu(&self) -> &Vcpu {
        &self.domain.vcpus[self.index]
    }

    /// Whether it wants time at `now`.
    fn is_ready(&self, now: u64) -> bool {
        let vcpu = self.vcpu();
        if !self.domain.may_run() {
            return false;
        }
        match vcpu.state() {
            RunState::Ready => true,
            RunState::Halted => vcpu.wake_at.load(Ordering::SeqCst) <= now,
            RunState::Off => vcpu.events.load(Ordering::SeqCst) & event::SIPI != 0,
            RunState::WaitsForDevice => false,
        }
    }
}

static HOMES: [SpinLock<Vec<Slot>>; MAX_CPUS] = [const { SpinLock::new(Vec::new()) }; MAX_CPUS];

/// Makes the virtual processors of a domain known to their homes.
pub fn admit(domain: &Arc<Domain>) {
    for (index, vcpu) in domain.vcpus.iter().enumerate() {
        if let Some(home) = HOMES.get(vcpu.home as usize) {
            home.lock().push(Slot { domain: domain.clone(), index });
            cpu::kick(vcpu.home);
        }
    }
}

/// Forgets a domain that has ended. Its processors may still be inside their last slice.
pub fn dismiss(domain: &Arc<Domain>) {
    for home in &HOMES {
        home.lock().retain(|slot| !Arc::ptr_eq(&slot.domain, domain));
    }
}

/// The home of virtual processor `id` of a domain that asks for `wanted`, which counts the processors that run guests.
/// Where that says nothing: the home with the fewest virtual processors for the first, the next ones for the others.
pub fn home(wanted: Option<u8>, id: u32) -> u32 {
    let all = emulator::for_guests();
    let Range { start, end } = all.clone();
    let wanted = wanted.map(|index| start + u32::from(index)).filter(|home| *home < end);
    wanted.unwrap_or_else(|| {
        let least = all.min_by_key(|index| HOMES[*index as usize].lock().len()).unwrap_or(start);
        start + (least - start + id) % (end - start).max(1)
    })
}

/// What a physical processor keeps for running guests.
pub struct Processor {
    /// Save areas for going in and out of guests.
    pub host: HostArea,
    index: u32,
    slice_end: u64,
    /// What the timer is set to; `None` once an interrupt was taken, which may have been the timer's,
    /// and the timer may fire early.
    armed: Option<u64>,
    next: usize,
    loaded: Option<Slot>,
}

/// The life of a physical processor once the machine is up.
pub fn run_cpu(cpu: &'static Cpu) -> ! {
    let host = match svm::enable() {
        Ok(host) => host,
        Err(why) => panic!("processor {}: cannot run guests: {why:?}", cpu.index),
    };
    let mut processor =
        Processor { host, index: cpu.index, slice_end: 0, armed: None, next: 0, loaded: None };
    loop {
        processor.service();
        let now = tsc::now();
        match processor.pick(now) {
            Some(slot) => processor.run_slice(slot, now),
            None => processor.rest(now),
        }
    }
}

impl Processor {
    fn home(&self) -> &'static SpinLock<Vec<Slot>> {
        &HOMES[self.index as usize]
    }

    /// The next virtual processor in turn that wants time.
    fn pick(&mut self, now: u64) -> Option<Slot> {
        let home = self.home().lock();
        let count = home.len();
        for step in 0..count {
            let at = (self.next + step) % count;
            if home[at].is_ready(now) {
                self.next = at + 1;
                return Some(home[at].clone());
            }
        }
        None
    }

    fn run_slice(&mut self, slot: Slot, now: u64) {
        self.load(&slot);
        let vcpu = slot.vcpu();
        vcpu.wake_from(RunState::Halted);
        self.slice_end = now.saturating_add(tsc::ticks_from_ns(SLICE_NS));
        exit::run(&slot.domain, vcpu, self);
    }

    /// Brings a virtual processor's extended state into the registers.
    fn load(&mut self, slot: &Slot) {
        if let Some(last) = &self.loaded {
            if Arc::ptr_eq(&last.domain, &slot.domain) && last.index == slot.index {
                return;
            }
            let mut context = last.vcpu().context.lock();
            context.fpu.save();
            context.tsc_aux = cpu::rdmsr(cpu::msr::TSC_AUX);
            context.breakpoints = cpu::read_breakpoints();
        }
        let mut context = slot.vcpu().context.lock();
        context.fpu.restore();
        cpu::write_breakpoints(context.breakpoints);
        let (id, home) = (slot.vcpu().id, self.index);
        if slot.domain.vcpus.iter().any(|other| other.id != id && other.home == home) {
            // A sibling that runs here has the same address space identifier and other page tables.
            context.vmcb.control.tlb_control = 1;
        }
        // SAFETY: TSC_AUX only feeds RDTSCP and RDPID.
        unsafe { cpu::wrmsr(cpu::msr::TSC_AUX, context.tsc_aux) };
        drop(context);
        self.loaded = Some(slot.clone());
    }

    /// Nothing to run: sleeps until a timer or an interrupt.
    fn rest(&mut self, now: u64) {
        if self.loaded.as_ref().is_some_and(|slot| slot.domain.has_ended()) {
            // Its state is in the registers and will be overwritten; its memory must not wait for that.
            self.loaded = None;
        }
        if self.index == 0 && manage::wants_service() {
            return;
        }
        let wake = self.next_wake(&self.home().lock(), now);
        self.arm(wake);
        cpu::idle();
        self.armed = None;
    }

    /// When after `now` a halted virtual processor of this home or a device wants attention. One
    /// that wants it already waits for the end of the slice.
    fn next_wake(&self, home: &[Slot], now: u64) -> u64 {
        let halted = home
            .iter()
            .filter(|slot| slot.domain.may_run() && slot.vcpu().state() == RunState::Halted)
            .map(|slot| slot.vcpu().wake_at.load(Ordering::SeqCst))
            .filter(|at| *at > now)
            .min()
            .unwrap_or(u64::MAX);
        halted.min(device::next_poll(self.index))
    }

    fn arm(&mut self, deadline: u64) {
        if self.armed != Some(deadline) {
            self.armed = Some(deadline);
            if deadline == u64::MAX { timer::disarm() } else { timer::set_deadline(deadline) }
        }
    }

    /// Takes the physical interrupts that ended the guest's run.
    pub fn take_interrupts(&mut self) {
        cpu::with_interrupts_window();
        self.armed = None;
    }

    /// Work that is not the guest's: device interrupts, the management channel.
    pub fn service(&mut self) {
        device::service(self.index);
        if self.index == 0 {
            manage::service();
        }
    }

    /// Decides how long the guest may run on. Returns false when its slice is over and another waits.
    pub fn prepare_timer(&mut self, guest_deadline: Option<u64>, now: u64) -> bool {
        let home = self.home().lock();
        let alone = home.len() <= 1;
        if now >= self.slice_end && !alone {
            let loaded = self.loaded.as_ref();
            let other = |slot: &&Slot| {
                loaded.is_none_or(|own| !Arc::ptr_eq(&own.domain, &slot.domain) || own.index != slot.index)
            };
            if home.iter().filter(other).any(|slot| slot.is_ready(now)) {
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
