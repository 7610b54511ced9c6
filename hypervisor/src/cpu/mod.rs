//! Physical processors: per-processor state, and what every processor sets up for itself.
//!
//! [`Cpu`] is one processor's state, found through the GS base: [`this`]. Neighbours: [`idt`] takes exceptions and
//! interrupts, [`gdt`] holds descriptor tables and stacks, [`smp`] starts the others, [`apic`] drives the local interrupt
//! controllers, [`frequency`] and [`timer`] keep time.

pub mod apic;
pub mod fpu;
pub mod frequency;
pub mod gdt;
pub mod idt;
pub mod qemu_tcg;
pub mod smp;
pub mod timer;
pub mod vector;

use crate::x86::{self, MAX_CPUS, control, msr, rdmsr, wrmsr};
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The boot processor. It serves the management channel, whatever its role.
pub const BOOT: u32 = 0;

/// What a physical processor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// It runs guests. The first with this role serves their devices, too.
    Guests,
    /// It runs none: it only does what is the hypervisor's.
    Service,
    /// It runs none: it serves networks ([`dedicate`]).
    Engine,
}

/// One physical processor.
#[repr(C)]
pub struct Cpu {
    /// Address of this structure, first so that `gs:[0]` finds it.
    this: *const Cpu,
    /// Position in [`get`]; [`BOOT`] is the boot processor.
    pub index: u32,
    /// Identifier of its local APIC.
    pub apic_id: u32,
    /// See [`Self::role`].
    role: AtomicU8,
    /// Set once it runs on its own stack and tables.
    pub online: AtomicBool,
    /// Interrupts taken, by anything.
    pub interrupts: AtomicU64,
    /// NMIs taken and ignored.
    pub nmis: AtomicU64,
    /// Interrupts taken that nobody asked for, of any vector; among `interrupts`.
    pub spurious: AtomicU64,
    /// See [`announce`].
    news: AtomicBool,
    /// For the owner of the run loop (scheduler, SVM): this processor's own structure there.
    pub local: AtomicPtr<()>,
    /// Descriptor tables and stacks.
    pub(crate) tables: gdt::Tables,
}

// SAFETY: `this` points at the structure itself, which is never moved nor freed once registered; the descriptor
// tables are written only before the processor they belong to is started. The rest is atomic or never changes.
unsafe impl Sync for Cpu {}
// SAFETY: as above.
unsafe impl Send for Cpu {}

static CPUS: [AtomicPtr<Cpu>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The processor that runs this.
#[inline]
pub fn this() -> &'static Cpu {
    let cpu: *const Cpu;
    // SAFETY: every processor loads its GS base with its `Cpu`, whose first field is its own address, before it
    // calls anything but early boot code (`gdt::install`), and the run loop restores it after a guest ran.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) cpu, options(nostack, preserves_flags, readonly));
        &*cpu
    }
}

/// As [`this`], but trusts no register: `None` before the processor is set up, or with a guest's GS base loaded.
pub fn try_this() -> Option<&'static Cpu> {
    let base = msr::rdmsr(msr::GS_BASE) as *const Cpu;
    (0..count()).filter_map(get).find(|cpu| core::ptr::eq(*cpu, base))
}

/// Number of processors, once all have been found (`smp::start`).
pub fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// The processor of that index.
pub fn get(index: u32) -> Option<&'static Cpu> {
    // SAFETY: entries are null or leaked allocations, never freed.
    CPUS.get(index as usize).and_then(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() })
}

/// Every processor found so far, in the order of their index.
pub fn all() -> impl Iterator<Item = &'static Cpu> {
    (0..count()).filter_map(get)
}

impl Cpu {
    /// What it is for, once that is decided ([`smp::assign_roles`]).
    pub fn role(&self) -> Role {
        match self.role.load(Ordering::Relaxed) {
            role if role == Role::Service as u8 => Role::Service,
            role if role == Role::Engine as u8 => Role::Engine,
            _ => Role::Guests,
        }
    }
}

/// The processors with a role, in the order of their index.
pub fn in_role(role: Role) -> impl Iterator<Item = &'static Cpu> {
    all().filter(move |cpu| cpu.role() == role)
}

static DEVICE_SERVER: AtomicU32 = AtomicU32::new(BOOT);

/// The processor that serves devices: it takes their lines and polls what drives them. The first that runs guests.
#[inline]
pub fn device_server() -> u32 {
    DEVICE_SERVER.load(Ordering::Relaxed)
}

/// Gives a processor its role.
fn set_role(cpu: &Cpu, role: Role) {
    cpu.role.store(role as u8, Ordering::Relaxed);
    let first = in_role(Role::Guests).next().map_or(BOOT, |cpu| cpu.index);
    DEVICE_SERVER.store(first, Ordering::Relaxed);
}

/// The processors that a configuration counts, in the order of their index: all but those for service.
pub fn counted() -> impl Iterator<Item = &'static Cpu> {
    all().filter(|cpu| cpu.role() != Role::Service)
}

/// Takes a processor, which the configuration counts so, for engines. `None`: there is none, or no other would be left for guests, or it is the
/// boot processor, which has other things to do. It is to be [kicked](kick) when there is something to serve.
pub fn dedicate(nth: u8) -> Option<u32> {
    let cpu = counted().nth(nth.into()).filter(|cpu| cpu.index != BOOT)?;
    if !in_role(Role::Guests).any(|other| other.index != cpu.index) {
        return None;
    }
    set_role(cpu, Role::Engine);
    Some(cpu.index)
}

/// Makes the state of a processor; its tables and stacks are ready, it is not yet running on them.
/// Returns `None` when [`MAX_CPUS`] is reached or memory runs out.
pub(crate) fn register(apic_id: u32) -> Option<&'static Cpu> {
    let index = COUNT.load(Ordering::Acquire);
    let slot = CPUS.get(index as usize)?;
    let cpu = alloc::boxed::Box::leak(alloc::boxed::Box::new(Cpu {
        this: core::ptr::null(),
        index,
        apic_id,
        role: AtomicU8::new(Role::Guests as u8),
        online: AtomicBool::new(false),
        interrupts: AtomicU64::new(0),
        nmis: AtomicU64::new(0),
        spurious: AtomicU64::new(0),
        news: AtomicBool::new(false),
        local: AtomicPtr::new(core::ptr::null_mut()),
        tables: gdt::Tables::new(index)?,
    }));
    cpu.this = cpu;
    cpu.tables.link();
    slot.store(cpu, Ordering::Release);
    COUNT.store(index + 1, Ordering::Release);
    Some(cpu)
}

/// Sets the bits of CR0, CR4, EFER and PAT that all hypervisor code relies on. Page tables must map code as
/// read-only before this.
pub fn init_control() {
    // SAFETY: NXE is required by the page tables in use and has been set by the boot path; WP, PGE and MCE restrict
    // or speed up, and change nothing else; TS and EM clear so that guest FPU state can be switched. PAT keeps
    // entries 0-3 (the only ones the page tables use) at their reset values.
    unsafe {
        wrmsr(msr::EFER, rdmsr(msr::EFER) | msr::EFER_NXE);
        let mut cr0 = x86::read_cr0();
        cr0 |= control::CR0_WP | control::CR0_NE | control::CR0_MP;
        cr0 &= !(control::CR0_TS | control::CR0_EM | control::CR0_CD | 1 << 29);
        x86::write_cr0(cr0);
        let mut cr4 = x86::read_cr4();
        cr4 |= control::CR4_PGE | control::CR4_MCE | control::CR4_OSFXSR | control::CR4_OSXMMEXCPT;
        if x86::cpuid(1, 0).ecx & 1 << 26 != 0 {
            cr4 |= control::CR4_OSXSAVE;
        }
        // No page is ever mapped for user mode, so SMEP and SMAP would guard nothing; SMEP costs nothing.
        if x86::cpuid_checked(7, 0).ebx & 1 << 7 != 0 {
            cr4 |= control::CR4_SMEP;
        }
        x86::write_cr4(cr4);
        wrmsr(msr::PAT, 0x0007_0406_0007_0406);
    }
}

/// Takes pending interrupts: opens the interrupt flag for one instruction. Hold no lock.
#[inline]
pub fn with_interrupts_window() {
    // SAFETY: handlers save what they use, and hypervisor code that opens a window holds no lock.
    unsafe { asm!("sti", "nop", "cli") };
}

/// Halts until an interrupt and takes it. Interrupts that are pending already end it at once. Hold no lock.
#[inline]
pub fn idle() {
    // SAFETY: as for `with_interrupts_window`; STI delays interrupts by one instruction, so none is lost
    // between it and HLT.
    unsafe { asm!("sti", "hlt", "cli") };
}

/// Stops this processor for good.
pub fn halt() -> ! {
    loop {
        // SAFETY: with interrupts off, HLT only ends by NMI or the like, and the loop halts again.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

/// Interrupts another processor: out of its guest, or out of [`idle`]. Nothing if there is no such processor.
#[inline]
pub fn kick(index: u32) {
    if let Some(cpu) = get(index) {
        apic::send_ipi(cpu.apic_id, vector::KICK);
    }
}

/// Something has changed that a processor looks at before it enters a guest or sleeps: it looks again. One that is in a guest, or asleep, has to be
/// [`kick`]ed, too, and after this.
#[inline]
pub fn announce(index: u32) {
    if let Some(cpu) = get(index) {
        cpu.news.store(true, Ordering::SeqCst);
    }
}

impl Cpu {
    /// Whether something was announced since it last asked this. Only it may ask.
    #[inline]
    pub fn take_news(&self) -> bool {
        // A load alone, which is what it mostly comes to, is cheaper than an exchange.
        self.news.load(Ordering::SeqCst) && self.news.swap(false, Ordering::SeqCst)
    }
}

/// Set while the machine is stopping: processors that take an NMI then halt.
static HALTING: AtomicBool = AtomicBool::new(false);

/// Stops all other processors by NMI; used once, on the way out.
pub fn halt_others() {
    HALTING.store(true, Ordering::Release);
    if count() > 1 {
        apic::send_nmi_to_others();
        // They need no more than a moment, and their answer is not waited for: one may hang.
        for _ in 0..100_000 {
            core::hint::spin_loop();
        }
    }
}

/// Whether [`halt_others`] was called.
pub(crate) fn is_halting() -> bool {
    HALTING.load(Ordering::Acquire)
}
