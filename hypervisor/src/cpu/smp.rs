//! Starting the other processors: INIT, then two start-up messages (Intel MultiProcessor Specification 1.4, B.4).
//!
//! A processor starts in real mode in the trampoline, a page below 1 MiB. It enters long mode on tables of its own
//! root: the kernel half of the final tables, and the trampoline's page, read-only, at its physical address; then it
//! jumps to [`ap_entry`] on its own stack, which changes to the final tables.

use super::{Cpu, Role, apic, gdt, idt, qemu_tcg, register, timer};
use crate::handover::{BootInfo, RegionKind};
use crate::mm::{self, Hpa, PAGE};
use crate::sync::Once;
use crate::x86::{self, tsc};
use crate::{cpu, firmware::acpi};
use core::arch::global_asm;
use core::sync::atomic::Ordering;

// Runs with CS = page >> 4 and IP = 0. It must not depend on where it lies: addresses of its own are made from CS, and
// the three words at `trampoline_data` are filled in for each processor before it is started. The page is mapped
// read-only once paging is on, so nothing is written then.
global_asm!(
    ".section .rodata.trampoline, \"a\", @progbits",
    ".code16",
    ".balign 16",
    "trampoline_start:",
    "    cli",
    "    cld",
    "    mov %cs, %ax",
    "    mov %ax, %ds",
    "    movzx %ax, %ebx",
    "    shl $4, %ebx",
    "    lea (trampoline_gdt - trampoline_start)(%ebx), %eax",
    "    mov %eax, trampoline_gdt_pointer - trampoline_start + 2",
    "    lea (trampoline_32 - trampoline_start)(%ebx), %eax",
    "    mov %eax, trampoline_jump_32 - trampoline_start",
    "    lea (trampoline_64 - trampoline_start)(%ebx), %eax",
    "    mov %eax, trampoline_jump_64 - trampoline_start",
    "    lgdtl trampoline_gdt_pointer - trampoline_start",
    "    mov %cr0, %eax",
    "    or $1, %al",
    "    mov %eax, %cr0",
    "    ljmpl *(trampoline_jump_32 - trampoline_start)",
    ".code32",
    "trampoline_32:",
    "    mov $0x10, %ax",
    "    mov %ax, %ds",
    "    mov %ax, %es",
    "    mov %ax, %ss",
    "    mov $0x20, %eax", // CR4.PAE
    "    mov %eax, %cr4",
    "    mov (trampoline_root - trampoline_start)(%ebx), %eax",
    "    mov %eax, %cr3",
    "    mov $0xc0000080, %ecx", // EFER: LME and NXE
    "    rdmsr",
    "    or $0x900, %eax",
    "    wrmsr",
    "    mov $0x80010033, %eax", // CR0: PG, WP, NE, ET, MP, PE
    "    mov %eax, %cr0",
    "    ljmpl *(trampoline_jump_64 - trampoline_start)(%ebx)",
    ".code64",
    "trampoline_64:",
    "    mov (trampoline_stack - trampoline_start)(%rbx), %rsp",
    "    mov (trampoline_cpu - trampoline_start)(%rbx), %rdi",
    "    mov (trampoline_entry - trampoline_start)(%rbx), %rax",
    "    xor %ebp, %ebp",
    "    push %rbp",
    "    jmp *%rax",
    ".balign 8",
    "trampoline_gdt:",
    "    .quad 0",
    "    .quad 0x00cf9b000000ffff", // 0x08: 32-bit code
    "    .quad 0x00cf93000000ffff", // 0x10: data
    "    .quad 0x00af9b000000ffff", // 0x18: 64-bit code
    "trampoline_gdt_pointer:",
    "    .short 31",
    "    .long 0",
    "    .balign 8",
    "trampoline_jump_32:",
    "    .long 0",
    "    .short 0x08",
    "    .balign 8",
    "trampoline_jump_64:",
    "    .long 0",
    "    .short 0x18",
    "    .balign 8",
    "trampoline_data:",
    "trampoline_root:  .quad 0",
    "trampoline_stack: .quad 0",
    "trampoline_cpu:   .quad 0",
    "trampoline_entry: .quad 0",
    "trampoline_end:",
    ".code64",
    ".text",
    options(att_syntax),
);

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_data: u8;
    static trampoline_end: u8;
}

/// Starts every processor of the MADT, one after the other. The boot processor is registered already.
pub fn start(info: &BootInfo) {
    let own = apic::id();
    if acpi::apic_ids().iter().all(|id| *id == own) {
        return;
    }
    let Some(page) = low_page(info) else {
        log::error!("no memory below 1 MiB to start processors with");
        return;
    };
    let root = mm::trampoline_root(Hpa::new(page)).expect("memory for page tables");
    for id in acpi::apic_ids().iter().copied().filter(|id| *id != own) {
        let Some(cpu) = register(id) else {
            log::warn!("processor with APIC {id}: more than {} or no memory for it", x86::MAX_CPUS);
            continue;
        };
        place_trampoline(page, root, cpu);
        start_one(page, cpu);
    }
}

/// Decides what each processor is for, once all run: they run guests. But not the boot processor of several where it must not.
pub fn assign_roles() {
    if cpu::count() > 1
        && qemu_tcg::disturbs_the_first()
        && let Some(boot) = cpu::get(cpu::BOOT)
    {
        cpu::set_role(boot, Role::Service);
    }
    let count = |role| cpu::in_role(role).count();
    log::info!("{} processors for guests, {} for service only", count(Role::Guests), count(Role::Service));
}

/// A page below 1 MiB that the firmware says is usable: the highest, away from what BIOSes keep low.
fn low_page(info: &BootInfo) -> Option<u64> {
    info.memory
        .iter()
        .filter(|region| region.kind == RegionKind::Usable)
        .filter_map(|region| {
            let page = (region.end.min(0x9_f000) & !(PAGE - 1)).checked_sub(PAGE)?;
            (page >= region.start.max(PAGE)).then_some(page)
        })
        .max()
}

fn place_trampoline(page: u64, root: u64, cpu: &'static Cpu) {
    let start = &raw const trampoline_start;
    let bytes = &raw const trampoline_end as usize - start as usize;
    let data = &raw const trampoline_data as usize - start as usize;
    let target = mm::virt(Hpa::new(page));
    let words = [root, cpu.tables.stack_top(), core::ptr::from_ref(cpu) as u64, ap_entry as *const () as u64];
    // SAFETY: the page is usable memory below 1 MiB, which the frame allocator never hands out and no processor uses at
    // this moment; code and data together are far smaller than a page, and the data words are 8-aligned.
    unsafe {
        core::ptr::copy_nonoverlapping(start, target, bytes);
        target.add(data).cast::<[u64; 4]>().write_volatile(words);
    }
}

/// How long a processor may take to start, in microseconds: 10 seconds. A thread of an emulator that a busy host does not
/// run is the slowest.
const PATIENCE_US: u64 = 10_000_000;

fn start_one(page: u64, cpu: &'static Cpu) {
    let vector = (page >> 12) as u8;
    apic::send_init(cpu.apic_id);
    tsc::delay_us(10_000);
    // The second start-up message is for processors that missed the first.
    for patience_us in [200, PATIENCE_US] {
        apic::send_startup(cpu.apic_id, vector);
        let mut waited = 0;
        while waited < patience_us {
            if cpu.online.load(Ordering::Acquire) {
                return;
            }
            tsc::delay_us(10);
            waited += 10;
        }
    }
    panic!("processor {} (APIC {}) does not start", cpu.index, cpu.apic_id);
}

/// First Rust code of a started processor, on its own stack.
extern "C" fn ap_entry(cpu: &'static Cpu) -> ! {
    // SAFETY: the final tables map the image and this stack as the trampoline's do; the rest is first set-up, in order.
    unsafe {
        x86::write_cr3(mm::root());
        gdt::install(cpu);
    }
    idt::install();
    cpu::init_control();
    apic::init();
    timer::init();
    cpu.online.store(true, Ordering::Release);
    ap_main(cpu)
}

/// What started processors go on to.
static NEXT: Once<fn(&'static Cpu) -> !> = Once::new();

/// Lets the started processors go on to `next`.
pub fn release(next: fn(&'static Cpu) -> !) {
    NEXT.call_once(|| next);
}

fn ap_main(cpu: &'static Cpu) -> ! {
    log::info!("processor {} (APIC {}) runs", cpu.index, cpu.apic_id);
    loop {
        if let Some(next) = NEXT.get() {
            next(cpu)
        }
        cpu::with_interrupts_window();
        core::hint::spin_loop();
    }
}
