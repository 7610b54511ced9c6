//! Memory that is not the guest's: hypervisor, other guests, registers, nothing; by every instruction
//! that can touch memory, at every alignment, across pages.

use super::Tally;
use crate::console::println;
use crate::entry::{BootInfo, MAPPED};
use crate::machine;
use crate::random::Random;
use crate::trap;
use core::arch::asm;

/// RAM of its own that the instructions may write.
static mut SCRATCH: [u8; 8192] = [0; 8192];

macro_rules! forms {
    ($random:ident, $at:ident, $value:ident, $($code:expr),+ $(,)?) => {{
        let scratch = &raw mut SCRATCH as u64;
        let mut which = $random.below([$($code),+].len() as u64);
        $(
            if which == 0 {
                // Nothing the compiler keeps is touched: all registers in use are named or saved.
                unsafe { asm!(
                    "push rbx", "push rbp", "mov rbx, r11", $code, "pop rbp", "pop rbx",
                    inout("rdi") $at => _, inout("rsi") scratch => _, inout("rax") $value => _,
                    inout("rcx") $value & 0xff => _, inout("rdx") $value >> 7 => _, in("r11") $value,
                    out("r8") _, out("r9") _, out("r10") _,
                ) };
                return;
            }
            which = which.wrapping_sub(1);
        )+
        let _ = which;
    }};
}

/// One instruction with a memory operand at `at`.
fn touch(at: u64, value: u64, random: &mut Random) {
    forms!(
        random,
        at,
        value,
        "mov al, [rdi]",
        "mov ax, [rdi]",
        "mov eax, [rdi]",
        "mov rax, [rdi]",
        "mov [rdi], al",
        "mov [rdi], ax",
        "mov [rdi], eax",
        "mov [rdi], rax",
        "mov [rdi], ah",
        "mov byte ptr [rdi], 0x5a",
        "mov qword ptr [rdi], -1",
        "movzx eax, byte ptr [rdi]",
        "movsx rax, word ptr [rdi]",
        "movsxd rax, dword ptr [rdi]",
        "movbe rax, [rdi]",
        "movbe [rdi], eax",
        "movnti [rdi], eax",
        "movnti [rdi], rax",
        "add [rdi], rax",
        "adc eax, [rdi]",
        "sub [rdi], al",
        "sbb [rdi], eax",
        "and dword ptr [rdi], 1",
        "or byte ptr [rdi], 2",
        "xor [rdi], ax",
        "cmp [rdi], rax",
        "test [rdi], eax",
        "inc qword ptr [rdi]",
        "lock dec dword ptr [rdi]",
        "not byte ptr [rdi]",
        "neg word ptr [rdi]",
        "xchg [rdi], al",
        "xchg [rdi], rax",
        "lock xadd [rdi], rax",
        "xadd [rdi], al",
        "lock cmpxchg [rdi], rdx",
        "cmpxchg [rdi], dl",
        "cmpxchg8b [rdi]",
        "lock cmpxchg16b [rdi]",
        "bt [rdi], rax",
        "lock bts [rdi], eax",
        "btr word ptr [rdi], 5",
        "btc [rdi], rax",
        "shl dword ptr [rdi], 3",
        "rcr byte ptr [rdi], cl",
        "sar qword ptr [rdi]",
        "shld [rdi], eax, 3",
        "mul qword ptr [rdi]",
        "imul rax, [rdi], 3",
        "div byte ptr [rdi]",
        "idiv dword ptr [rdi]",
        "popcnt rax, [rdi]",
        "bsf rax, [rdi]",
        "lzcnt eax, [rdi]",
        "crc32 eax, byte ptr [rdi]",
        "sete [rdi]",
        "cmovne rax, [rdi]",
        "lea rsp, [rsp-8]; pop qword ptr [rdi]",
        "push qword ptr [rdi]; pop rax",
        "movsb",
        "movsq",
        "xchg rsi, rdi; movsd",
        "mov ecx, 700; rep movsb",
        "mov ecx, 90; xchg rsi, rdi; rep movsq",
        "mov rsi, rdi; mov ecx, 80; rep movsd",
        "std; mov ecx, 9; rep movsw; cld",
        "mov ecx, 1000; rep stosb",
        "stosq",
        "xchg rsi, rdi; lodsd",
        "xchg rsi, rdi; mov ecx, 30; rep lodsb",
        "scasb",
        "mov ecx, 9; repne scasd",
        "cmpsb",
        "mov ecx, 9; repe cmpsq",
        ".byte 0x67; mov eax, [edi]",
        ".byte 0x66, 0x66, 0x66, 0x2e; mov [rdi], rax",
        "movups xmm0, [rdi]",
        "movups [rdi], xmm0",
        "movaps xmm1, [rdi]",
        "movdqu [rdi], xmm1",
        "movntdq [rdi], xmm0",
        "movss xmm0, [rdi]",
        "movsd [rdi], xmm0",
        "movq [rdi], mm0",
        "movd xmm0, [rdi]",
        "paddb xmm0, [rdi]",
        "cvtsi2sd xmm0, qword ptr [rdi]",
        "maskmovdqu xmm0, xmm1",
        "pextrb [rdi], xmm0, 1",
        "lddqu xmm0, [rdi]",
        "fld qword ptr [rdi]",
        "fstp qword ptr [rdi]",
        "fld tbyte ptr [rdi]",
        "fnstcw [rdi]",
        "fldenv [rdi]",
        "fbld [rdi]",
        "fxsave [rdi]",
        "fxrstor [rdi]",
        "ldmxcsr [rdi]",
        "stmxcsr [rdi]",
        "fninit; fnsave [rdi]",
        "mov eax, 7; xor edx, edx; xsave [rdi]",
        "mov eax, 7; xor edx, edx; xrstor [rdi]",
        "prefetchw [rdi]",
        "clflush [rdi]",
        "clflushopt [rdi]",
        "invlpg [rdi]",
        "clwb [rdi]",
        "sgdt [rdi]",
        "sidt [rdi]",
        "lgdt [rdi]; lgdt [bare_gdt_pointer]",
        "sldt [rdi]",
        "str [rdi]",
        "smsw [rdi]",
        "verr word ptr [rdi]",
        "lar eax, word ptr [rdi]",
        "lldt word ptr [rdi]",
        "mov [rdi], ds",
        "lfs rax, [rdi]",
        "call rdi",
        "jmp rdi",
        "call [rdi]",
        "push rax; jmp [rdi]",
        "mov rsp, rdi; push rax",
        "mov rsp, rdi; pop rax",
        "mov rsp, rdi; call 2f; 2: ret",
        "lea rsp, [rdi+8]; enter 64, 3",
        "mov rsp, rdi; pushfq",
        "mov rsp, rdi; iretq",
        "mov rbp, rdi; leave",
        "mov rsp, rdi; int3",
        "mov rax, rdi; clzero",
        "mov rax, rdi; monitor",
        "wbinvd",
        "xlatb",
        "mov rbx, rdi; xlatb",
        "movabs rax, [0xfec00000]",
        "movabs [0xfee00080], eax",
        "invpcid rax, [rdi]",
        "rdfsbase rax",
    );
}

/// Where something interesting might be.
fn target(random: &mut Random, top: u64) -> u64 {
    let base = match random.below(12) {
        0 => 0xfec0_0000,
        1 => 0xfee0_0000,
        2 => 0xe000_0000 + random.below(0x100) * 0x1000,
        3 => 0xc000_0000 + random.below(0x2000_0000),
        4 => top + random.below((1 << 32) - top),
        5 => 0x1_0000_0000 + random.below(MAPPED - 0x1_0000_0000),
        6 => top,
        7 => 0xffff_f000,
        // Not mapped or not canonical.
        8 => random.wild() | 1 << 40,
        _ => top + random.below(64) * 0x20_0000,
    };
    let offset = match random.below(4) {
        0 => random.below(0x1000),
        1 => 0xff8 + random.below(8),
        2 => random.below(0x40) * 0x10,
        _ => random.below(0x400) * 4,
    };
    let at = (base & !0xfff).wrapping_add(offset);
    // An INIT that it sends to itself would be the end of this: that is for `platform::startup`.
    if (0xfee0_02f0..0xfee0_0310).contains(&at) { 0xfee0_0080 } else { at }
}

/// Runs the attack.
pub fn run(random: &mut Random, boot: &BootInfo) {
    // AVX is left alone, but XSAVE and FSGSBASE are on.
    machine::set_cr4(machine::cr4() | 1 << 18 | 1 << 16);
    let top = boot.top();
    let mut tally = Tally::default();
    for round in 0..40_000u32 {
        let (at, value) = (target(random, top), random.wild());
        let before = random.next();
        tally.attempt(|| touch(at, value, &mut Random::new(before)));
        trap::load();
        if round % 10_000 == 0 {
            println!("SLUICE-RESULT memory={round}");
        }
    }
    tally.report("memory");
}

/// Interrupt descriptor table, stack and code where no RAM is: every exception of this guest then
/// needs what the hypervisor cannot give it.
pub fn descriptors_nowhere() {
    println!("SLUICE-RESULT descriptors=now");
    trap::load_from(0xfec0_0000, 4095);
    unsafe { asm!("mov rsp, {}", "int3", in(reg) 0xfed0_0000u64) };
}
