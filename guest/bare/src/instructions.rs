//! Instructions that the hypervisor executes in the processor's stead: they must do what the processor would have done.
//!
//! String I/O: when IN or OUT is intercepted, the processor has not looked at the memory operand (APM vol 2, 15.10.2),
//! so its page tables, protection and accessed bits are the hypervisor's to honour. Hooked memory: each operand goes
//! where its own address leads, whichever of them caused the exit.
//!
//! Source: APM vol 2, 5.4 (page-table entries), 8.4.2 (page-fault error codes); vol 3 (each instruction).

use crate::console::println;
use crate::entry::{USER_CODE, USER_DATA};
use crate::machine;
use crate::trap::{self, Fault};
use core::arch::asm;
use core::arch::x86_64::__cpuid;

/// Where the pages of [`PAGES`] are mapped one by one: above what the start maps.
const ALIAS: u64 = 1 << 39;
const PAGE: u64 = 4096;
const COM1: u16 = 0x3f8;
/// The serial port's scratch register: a read gives what was written.
const SCRATCH: u16 = COM1 + 7;
const IO_APIC: u64 = 0xfec0_0000;
const IO_APIC_WINDOW: u64 = IO_APIC + 0x10;
const LOCAL_APIC: u64 = 0xfee0_0000;
const APIC_VERSION: u64 = LOCAL_APIC + 0x30;
const APIC_TPR: u64 = LOCAL_APIC + 0x80;
const ECAM: u64 = 0xe000_0000;
/// What the registers of those numbers hold on this platform.
const APIC_VERSION_VALUE: u64 = 0x5_0014;
const IO_APIC_VERSION_VALUE: u64 = 0x17_0020;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// In the entries of the highest level, where other entries say that they are a page.
const PAGE_SIZE_BIT: u64 = 1 << 7;
const RW: u64 = PRESENT | WRITABLE;

const CR4_SMAP: u64 = 1 << 21;

const GP: u64 = 13;
const PF: u64 = 14;

#[repr(C, align(4096))]
struct Table([u64; 512]);

static mut PAGES: [Table; 4] = [const { Table([0; 512]) }; 4];
static mut TABLE: Table = Table([0; 512]);
static mut DIRECTORY: Table = Table([0; 512]);
static mut POINTERS: Table = Table([0; 512]);

unsafe extern "C" {
    static mut bare_pml4: [u64; 512];
}

/// The page's own address, where nothing but what is tested touches it.
fn page(index: usize) -> u64 {
    &raw const PAGES as u64 + index as u64 * PAGE
}

fn read<T>(at: u64) -> T {
    unsafe { (at as *const T).read_volatile() }
}

fn write<T>(at: u64, value: T) {
    unsafe { (at as *mut T).write_volatile(value) };
}

/// Maps a page at its alias with these bits, or unmaps it with none.
fn map(index: usize, bits: u64) {
    unsafe { TABLE.0[index] = if bits == 0 { 0 } else { page(index) | bits } };
    machine::flush();
}

/// The entry of a page, without its address.
fn bits(index: usize) -> u64 {
    unsafe { (&raw const TABLE.0[index]).read_volatile() & 0xfff }
}

fn build_tables() {
    unsafe {
        DIRECTORY.0[0] = &raw const TABLE as u64 | RW | USER;
        POINTERS.0[0] = &raw const DIRECTORY as u64 | RW | USER;
        bare_pml4[1] = &raw const POINTERS as u64 | RW | USER;
        // The kernel's own half, which is identity-mapped, is the supervisor's alone: SMAP would stop it otherwise.
        bare_pml4[0] &= !USER;
    }
    machine::flush();
}

/// `rep outsb` or `rep insb`; what became of it.
fn string_io(input: bool, port: u16, at: u64, count: u64) -> Option<Fault> {
    let run = || unsafe {
        if input {
            asm!("rep insb", inout("rcx") count => _, inout("rdi") at => _, in("dx") port);
        } else {
            asm!("rep outsb", inout("rcx") count => _, inout("rsi") at => _, in("dx") port);
        }
    };
    trap::attempt(run).map(|_| trap::last())
}

/// The same at privilege level 3, which ends by #UD at the least.
fn user_outs(at: u64, count: u64) -> Fault {
    // rep outsb; ud2
    write(page(3), [0xf3u8, 0x6e, 0x0f, 0x0b]);
    map(3, RW | USER);
    trap::attempt(|| unsafe {
        // The flags give it the right to ports: I/O privilege level 3.
        asm!("push {data}", "push {stack}", "push 0x3002", "push {code}", "push {entry}", "iretq",
            data = const USER_DATA, code = const USER_CODE, stack = in(reg) ALIAS + 4 * PAGE,
            entry = in(reg) ALIAS + 3 * PAGE, in("rcx") count, in("rsi") at, in("dx") SCRATCH);
    });
    trap::last()
}

fn show(name: &str, good: bool, found: impl core::fmt::Debug) {
    if good {
        println!("SLUICE-RESULT {name}=ok");
    } else {
        println!("SLUICE-RESULT {name}=failed");
        println!("{name}: {found:x?}");
    }
}

fn page_fault(fault: Option<Fault>, address: u64, error: u64) -> bool {
    fault.is_some_and(|fault| (fault.vector, fault.address, fault.error) == (PF, address, error))
}

/// A string that ends in a page that is not there; then the page is there, and the rest follows.
fn string_io_at_a_missing_page() {
    const TEXT: &[u8] = b"SLUICE-RESULT outs=abcdefghijklmnopqrstuvwxyz\n";
    const FIRST: u64 = 30;
    let (start, missing) = (ALIAS + PAGE - FIRST, ALIAS + PAGE);
    for (index, byte) in TEXT.iter().enumerate() {
        write(page(0) + PAGE - FIRST + index as u64, *byte);
    }
    let left = TEXT.len() as u64 - FIRST;
    map(0, RW);
    map(1, 0);
    let fault = string_io(false, COM1, start, TEXT.len() as u64);
    map(1, RW);
    let rest = fault.unwrap_or_default();
    let resumed = string_io(false, COM1, rest.rsi, rest.rcx);
    let good = page_fault(fault, missing, 0) && (rest.rcx, rest.rsi) == (left, missing) && resumed.is_none();
    show("outs.fault", good, (fault, resumed));
    show("outs.accessed", (bits(0), bits(1)) == (RW | ACCESSED, RW | ACCESSED), (bits(0), bits(1)));

    machine::outb(SCRATCH, 0x5a);
    write(page(0) + PAGE - 8, 0u64);
    write(page(1), 0u64);
    map(0, RW);
    map(1, 0);
    let fault = string_io(true, SCRATCH, missing - 8, 16);
    let before = (read::<u64>(page(0) + PAGE - 8), read::<u64>(page(1)));
    map(1, RW);
    let rest = fault.unwrap_or_default();
    let resumed = string_io(true, SCRATCH, rest.rdi, rest.rcx);
    let good = page_fault(fault, missing, 2) && (rest.rcx, rest.rdi) == (8, missing) && resumed.is_none();
    show("ins.fault", good, (fault, resumed));
    let all = 0x5a5a_5a5a_5a5a_5a5a;
    let after = (read::<u64>(page(0) + PAGE - 8), read::<u64>(page(1)));
    show("ins.data", before == (all, 0) && after == (all, all), (before, after));
    let dirty = RW | ACCESSED | DIRTY;
    show("ins.dirty", (bits(0), bits(1)) == (dirty, dirty), (bits(0), bits(1)));
    let upper = unsafe { [bare_pml4[1], POINTERS.0[0], DIRECTORY.0[0]] };
    show("ins.upper", upper.iter().all(|entry| entry & ACCESSED != 0), upper);
}

/// Protection that only the page tables know of.
fn string_io_against_protection() {
    map(0, PRESENT);
    show("ins.read_only", page_fault(string_io(true, SCRATCH, ALIAS, 4), ALIAS, 3), trap::last());
    show("ins.clean", bits(0) & DIRTY == 0, bits(0));
    unsafe { bare_pml4[1] |= PAGE_SIZE_BIT };
    map(0, RW);
    show("outs.reserved", page_fault(string_io(false, SCRATCH, ALIAS, 4), ALIAS, 9), trap::last());
    unsafe { bare_pml4[1] &= !PAGE_SIZE_BIT };
    // The first address bit that the processor lacks, if it does not have all 52.
    let width = __cpuid(0x8000_0008).eax & 0xff;
    map(0, RW | 1 << width.min(51));
    let fault = string_io(true, SCRATCH, ALIAS, 4);
    show("ins.reserved", width == 52 || page_fault(fault, ALIAS, 11), fault);
    map(0, RW);
    let fault = user_outs(ALIAS, 4);
    show("outs.user", (fault.vector, fault.address, fault.error, fault.rcx) == (PF, ALIAS, 5, 4), fault);
    map(0, RW | USER);
    let fault = user_outs(ALIAS, 4);
    show("outs.own", (fault.vector, fault.rcx) == (6, 0), fault);
    for (name, input) in [("outs.canonical", false), ("ins.canonical", true)] {
        let fault = string_io(input, SCRATCH, 1 << 47, 4);
        let good = fault.is_some_and(|fault| (fault.vector, fault.error, fault.rcx) == (GP, 0, 4));
        show(name, good, fault);
    }
    // The page before the hole is the highest of the lower half, which is not mapped: the fault is its own.
    let fault = string_io(false, SCRATCH, (1 << 47) - 4, 4);
    show("outs.below_hole", page_fault(fault, (1 << 47) - 4, 0), fault);
}

/// SMAP: the kernel touches a user's page only with RFLAGS.AC set.
fn supervisor_mode_access_prevention() {
    map(0, RW | USER);
    machine::set_cr4(machine::cr4() | CR4_SMAP);
    show("smap.outs", page_fault(string_io(false, SCRATCH, ALIAS, 4), ALIAS, 1), trap::last());
    show("smap.ins", page_fault(string_io(true, SCRATCH, ALIAS, 4), ALIAS, 3), trap::last());
    let fault = trap::attempt(|| unsafe {
        asm!("movsd", inout("rsi") IO_APIC_WINDOW => _, inout("rdi") ALIAS => _);
    });
    show("smap.movs", page_fault(fault.map(|_| trap::last()), ALIAS, 3), trap::last());
    let fault = trap::attempt(|| unsafe {
        asm!("stac", "rep outsb", "clac", inout("rcx") 4u64 => _, inout("rsi") ALIAS => _, in("dx") SCRATCH);
    });
    show("smap.allowed", fault.is_none(), trap::last());
    machine::set_cr4(machine::cr4() & !CR4_SMAP);
}

/// Each operand has its own address, of memory or of registers.
fn moves_between_memory_and_registers() {
    let at = page(2);
    write(at, [0x20u32, 0]);
    unsafe { asm!("movsd", inout("rsi") at => _, inout("rdi") APIC_TPR => _) };
    let tpr = read::<u32>(APIC_TPR);
    unsafe { asm!("movsd", inout("rsi") APIC_VERSION => _, inout("rdi") at + 4 => _) };
    let words = read::<[u32; 2]>(at);
    show("movs", (tpr, words) == (0x20, [0x20, APIC_VERSION_VALUE as u32]), (tpr, words));
    unsafe { asm!("movsd", inout("rsi") APIC_TPR => _, inout("rdi") IO_APIC => _) };
    let select = read::<u32>(IO_APIC);
    show("movs.registers", select == 0x20, select);
    write(IO_APIC, 1u32);
    let (pushed, narrow): (u64, u64);
    unsafe {
        asm!("push qword ptr [{at}]", "pop {pushed}", "push 0", "push word ptr [{at}]", "pop {narrow:x}",
            "add rsp, 8", "movzx {narrow}, {narrow:x}", at = in(reg) APIC_VERSION,
            pushed = out(reg) pushed, narrow = out(reg) narrow);
    }
    show("push", (pushed, narrow) == (APIC_VERSION_VALUE, 0x14), (pushed, narrow));
    unsafe { asm!("push 1", "pop qword ptr [{}]", in(reg) IO_APIC) };
    let window: u32 = read(IO_APIC_WINDOW);
    show("pop", window == IO_APIC_VERSION_VALUE as u32, window);
}

/// REP goes on by its operand's size, also in registers, and to its end.
fn repeated_instructions() {
    let (mut rcx, mut rsi, eax): (u64, u64, u32) = (33, LOCAL_APIC, 0);
    write(APIC_TPR, 0x30u32);
    let mut eax = eax;
    unsafe { asm!("rep lodsd", inout("rcx") rcx, inout("rsi") rsi, inout("eax") eax) };
    show("lods", (rcx, rsi, eax) == (0, APIC_TPR + 4, 0x30), (rcx, rsi, eax));
    let mut rdi = APIC_TPR - 4;
    rcx = 2;
    unsafe { asm!("rep stosd", inout("rcx") rcx, inout("rdi") rdi, in("eax") 0x40) };
    let tpr = read::<u32>(APIC_TPR);
    show("stos", (rcx, rdi, tpr) == (0, APIC_TPR + 4, 0x40), (rcx, rdi, tpr));
    // More than fits one exit.
    (rcx, rsi) = (1000, IO_APIC + 0x10);
    unsafe { asm!("rep lodsd", inout("rcx") rcx, inout("rsi") rsi, out("eax") _) };
    show("lods.long", (rcx, rsi) == (0, IO_APIC + 0x10 + 4000), (rcx, rsi));
    // The destination ends before the source does.
    map(0, RW);
    map(1, 0);
    let fault = trap::attempt(|| unsafe {
        asm!("rep movsd", inout("rcx") 8u64 => _, inout("rsi") IO_APIC => _, inout("rdi") ALIAS + PAGE - 8 => _);
    })
    .map(|_| trap::last());
    let rest = fault.unwrap_or_default();
    let good = page_fault(fault, ALIAS + PAGE, 2) && (rest.rcx, rest.rsi) == (6, IO_APIC + 8);
    show("movs.fault", good, fault);
    show("movs.dirty", bits(0) == RW | ACCESSED | DIRTY, bits(0));
}

/// Comparisons of strings.
fn comparisons() {
    let at = page(2);
    write(at, APIC_VERSION_VALUE as u32);
    let (mut rcx, mut rsi, mut rdi) = (4u64, at, APIC_VERSION);
    let equal: u8;
    unsafe {
        asm!("repe cmpsb", "sete {}", out(reg_byte) equal, inout("rcx") rcx, inout("rsi") rsi, inout("rdi") rdi)
    };
    show("cmps", (rcx, rsi, rdi, equal) == (0, at + 4, APIC_VERSION + 4, 1), (rcx, rsi, rdi, equal));
    write(at + 2, 6u8);
    (rcx, rsi, rdi) = (4, at, APIC_VERSION);
    let above: u8;
    unsafe {
        asm!("repe cmpsb", "seta {}", out(reg_byte) above, inout("rcx") rcx, inout("rsi") rsi, inout("rdi") rdi)
    };
    show("cmps.differ", (rcx, rsi, rdi, above) == (1, at + 3, APIC_VERSION + 3, 1), (rcx, rsi, rdi, above));
    (rcx, rdi) = (40, LOCAL_APIC);
    unsafe {
        asm!("repne scasd", inout("rcx") rcx, inout("rdi") rdi, in("eax") APIC_VERSION_VALUE as u32);
    }
    show("scas", (rcx, rdi) == (27, APIC_VERSION + 4), (rcx, rdi));
}

/// Moves of vector registers, as a compiler's copy of a structure makes them.
fn vector_moves() {
    let words: [u32; 4] = core::array::from_fn(|index| read(ECAM + 4 * index as u64));
    let expected = words.iter().rev().fold(0u128, |all, word| all << 32 | u128::from(*word));
    let mut seen = [0u128; 3];
    unsafe {
        asm!("movups xmm3, [{from}]", "movdqa xmm12, [{from}]", "movq xmm5, [{from}]", "movups [{to}], xmm3",
            "movups [{to} + 16], xmm12", "movups [{to} + 32], xmm5", from = in(reg) ECAM, to = in(reg) &raw mut seen,
            out("xmm3") _, out("xmm12") _, out("xmm5") _);
    }
    let low = u128::from(expected as u64);
    show("sse.load", seen == [expected, expected, low] && words[0] != u32::MAX, (words, seen));
    // The lowest word is the number of a register, the others are none.
    let value: u128 = 0xffff_ffff_ffff_ffff_ffff_ffff_0000_0001;
    let mut windows = [0u32; 3];
    unsafe {
        write(IO_APIC, 0u32);
        asm!("movdqu xmm15, [{}]", "movaps [{}], xmm15", in(reg) &raw const value, in(reg) IO_APIC, out("xmm15") _);
        windows[0] = read(IO_APIC_WINDOW);
        write(IO_APIC, 0u32);
        asm!("movd xmm1, {:e}", "movd [{}], xmm1", in(reg) 1, in(reg) IO_APIC, out("xmm1") _);
        asm!("movd xmm1, [{}]", "movd {:e}, xmm1", in(reg) IO_APIC_WINDOW, out(reg) windows[1], out("xmm1") _);
        write(IO_APIC, 0u32);
        asm!("movnti [{}], {:e}", in(reg) IO_APIC, in(reg) 1);
        windows[2] = read(IO_APIC_WINDOW);
    }
    show("sse.store", windows == [IO_APIC_VERSION_VALUE as u32; 3], windows);
    let fault = trap::attempt(|| unsafe { asm!("movaps xmm1, [{}]", in(reg) ECAM + 8, out("xmm1") _) });
    show("sse.aligned", fault == Some(GP as u8), fault);
}

/// Registers of 32 bits, of which a part is read, and not written.
fn widths() {
    write(APIC_TPR, 0x20u32);
    write(APIC_TPR, 0x50u8);
    write(APIC_TPR, 0x50u16);
    write(APIC_TPR, 0x50u64);
    write(APIC_TPR + 4, 0x50u32);
    let kept = read::<u32>(APIC_TPR);
    show("apic.narrow_write", kept == 0x20, kept);
    let bytes: [u8; 3] = [read(APIC_VERSION), read(APIC_VERSION + 1), read(APIC_VERSION + 2)];
    let other = (read::<u16>(APIC_VERSION + 2), read::<u64>(APIC_VERSION), read::<u32>(APIC_VERSION + 4));
    let good = bytes == [0x14, 0, 5] && other == (5, APIC_VERSION_VALUE, 0);
    show("apic.narrow_read", good, (bytes, other));
    write(IO_APIC, 1u8);
    let other = (read::<u8>(IO_APIC_WINDOW + 2), read::<u16>(IO_APIC_WINDOW), read::<u64>(IO_APIC_WINDOW));
    show("ioapic.widths", other == (0x17, 0x20, IO_APIC_VERSION_VALUE), other);
    write(APIC_TPR, 0u32);
}

/// Reads a register by the code at the first alias, which leaves it in EAX or in ECX: what both hold then, of 1 and 2.
fn load_at_alias(operand: u64) -> (u32, u32) {
    let (mut eax, mut ecx) = (1u32, 2u32);
    unsafe {
        asm!("call {code}", code = in(reg) ALIAS, in("rdi") operand, inout("eax") eax, inout("ecx") ecx);
    }
    (eax, ecx)
}

/// The same so many times: what they hold after the last.
fn load_repeatedly(times: usize, operand: u64) -> (u32, u32) {
    for _ in 1..times {
        load_at_alias(operand);
    }
    load_at_alias(operand)
}

/// A move that has been made before is made again only where it is still the one at its address: page tables may lead to another page by now, and
/// the page may hold another.
fn moves_that_are_made_again() {
    // `mov eax, [rdi]; ret`, and the same with ECX.
    const TO_EAX: [u8; 3] = [0x8b, 0x07, 0xc3];
    const TO_ECX: [u8; 3] = [0x8b, 0x0f, 0xc3];
    const VERSION: u32 = IO_APIC_VERSION_VALUE as u32;
    let lead = |alias: usize, to: u64| {
        unsafe { TABLE.0[alias] = to | RW };
        machine::flush();
    };
    let runs = |times| load_repeatedly(times, IO_APIC_WINDOW);
    let check = |name: &str, found: (u32, u32), wanted: (u32, u32)| show(name, found == wanted, found);
    write(IO_APIC, 1u32);
    write(page(0), TO_EAX);
    write(page(1), TO_ECX);
    lead(0, page(0));
    check("again.first", runs(3), (VERSION, 2));
    lead(0, page(1));
    check("again.other_page", runs(1), (1, VERSION));
    lead(0, page(0));
    check("again.back", runs(2), (VERSION, 2));
    write(page(2), page(1) | RW);
    unsafe { DIRECTORY.0[0] = page(2) | RW | USER };
    machine::flush();
    check("again.other_table", runs(1), (1, VERSION));
    unsafe { DIRECTORY.0[0] = &raw const TABLE as u64 | RW | USER };
    machine::flush();
    check("again.old_table", runs(2), (VERSION, 2));
    write(page(0), TO_ECX);
    check("again.other_code", runs(2), (1, VERSION));
    write(page(0), TO_EAX);
    // The first half is memory, and what exits is the second, at the beginning of a page.
    lead(1, page(3));
    lead(2, IO_APIC);
    write(page(3) + PAGE - 2, 0xbeefu16);
    check("again.begin_of_page", load_repeatedly(3, ALIAS + 2 * PAGE), (1, 2));
    check("again.half", load_at_alias(ALIAS + 2 * PAGE - 2), (0x1_beef, 2));
    (0..3).for_each(|alias| map(alias, 0));
}

/// Runs all. What ends by an exception that nobody expects does not keep the others from being run.
pub fn run() {
    build_tables();
    let parts: [fn(); 9] = [
        string_io_at_a_missing_page,
        string_io_against_protection,
        supervisor_mode_access_prevention,
        moves_between_memory_and_registers,
        repeated_instructions,
        comparisons,
        vector_moves,
        widths,
        moves_that_are_made_again,
    ];
    for (number, part) in parts.iter().enumerate() {
        if trap::attempt(part).is_some() {
            println!("part {number} ended early: {:x?}", trap::last());
        }
    }
    println!("SLUICE-RESULT done=ok");
}
