//! The gate: the hypervisor's code at privilege level 0 of a paravirtual guest.
//!
//! Such a guest's kernel and its programs run at privilege level 3 both, so that SYSCALL leads out of either to here, and page faults do. Without more that is
//! an exit each. The gate does by itself what is asked for most, a program's call to the kernel, the kernel's HYPERVISOR_iret, and a page fault that the kernel
//! is to be told of, and executes VMMCALL for all else: it need not know what is rare, as the hypervisor does the same by its own means.
//!
//! It is one page of code and one of [words](word) that only the hypervisor and the gate can write. It believes nothing that a guest can write: what it takes
//! from a stack is read once, into its own page, and is looked at there.
//!
//! The guest may exit at any instruction of the gate, for an interrupt or since its stack cannot be read. [`Place`] says what that means: what was begun is
//! undone, as if the first instruction had been VMMCALL; or all is decided, and the hypervisor does the rest. So no exit ever finds a guest between its kernel
//! and its programs.
//!
//! Source: APM vol 2, 6.1.1 (SYSCALL, SYSRET), vol 3 (IRET, SWAPGS); Xen's public headers (arch-x86/xen-x86_64.h) for the frames.
#![no_std]

use core::arch::global_asm;

/// Bytes of the code.
pub const CODE: usize = 1024;
/// Where the code for SYSCALL of 64-bit code begins; that of 32-bit code goes to the first byte, a VMMCALL.
pub const WIDE: usize = 16;
/// Where the words are, from the first byte of the code on: in the next page.
pub const WORDS: usize = 4096;
/// Bytes of a frame of a page fault's on the gate's own stack: error code, RIP, CS, RFLAGS, RSP, SS.
pub const FAULT_FRAME: usize = 48;

/// Offsets of the words, of eight bytes each.
pub mod word {
    /// 1: the kernel runs; 0: one of its programs.
    pub const MODE: usize = 0;
    /// Page tables of the kernel, as CR3 has them.
    pub const KERNEL_ROOT: usize = 8;
    /// Page tables of its programs.
    pub const USER_ROOT: usize = 16;
    /// The kernel's stack, a multiple of 16 that leads to no address of the hypervisor's.
    pub const KERNEL_STACK: usize = 24;
    /// Where the kernel wants system calls, and no events meanwhile. 0: an exit is to be made of each.
    pub const ENTRY: usize = 32;
    /// Address of the guest's `struct vcpu_info` here.
    pub const INFO: usize = 40;
    /// RFLAGS that a kernel finds in a program's frame beside the program's own.
    pub const FLAGS: usize = 48;
    /// Selector of programs' 64-bit code. 0: an exit is to be made of each return to them.
    pub const USER_CODE: usize = 56;
    /// Selector of programs' stacks.
    pub const USER_STACK: usize = 64;
    /// RAX: the caller's, or the one to return with.
    pub const RAX: usize = 72;
    /// RSP of the caller.
    pub const RSP: usize = 80;
    /// RCX to return with.
    pub const RCX: usize = 88;
    /// R11 to return with.
    pub const R11: usize = 96;
    /// What IRET takes: RIP, CS, RFLAGS, RSP, SS.
    pub const FRAME: usize = 104;
    /// System calls that made no exit.
    pub const CALLS: usize = 144;
    /// Returns that made none.
    pub const RETURNS: usize = 152;
    /// Page faults that made none.
    pub const FAULTS: usize = 160;
    /// Where the kernel wants page faults, and no events meanwhile. 0: an exit is to be made of each.
    pub const FAULT_ENTRY: usize = 168;
    /// Address of the last page fault.
    pub const CR2: usize = 176;
    /// Bytes of all of these.
    pub const END: usize = 184;
    /// The processor's table of interrupts. It has one, the page fault: all other exceptions exit.
    pub const IDT: usize = 512;
    /// The limit of that table.
    pub const IDT_LIMIT: u32 = 15 * 16 - 1;
    /// The processor's task state, of which it reads one word.
    pub const TSS: usize = 1024;
    /// The limit of that state: it has no map of ports, which are nobody's at privilege level 3.
    pub const TSS_LIMIT: u32 = 103;
    /// That word, IST1: [`STACK`], or [`SECOND_STACK`] as long as the gate has a page fault's frame on the first.
    pub const IST: usize = TSS + 36;
    /// End of the gate's stack.
    pub const STACK: usize = 4096;
    /// End of the one for faults while a page fault is dealt with.
    pub const SECOND_STACK: usize = 4096 - 256;
}

/// HYPERVISOR_iret.
const IRET: u64 = 23;
/// Selectors of the kernel's code and stack, at privilege level 3.
pub const KERNEL_CODE: u16 = 0xe033;
/// See [`KERNEL_CODE`].
pub const KERNEL_STACK: u16 = 0xe02b;
/// Selector of the gate's own code, for page faults.
pub const GATE_CODE: u16 = 0xe008;
/// Its descriptor: 64-bit code at privilege level 0, accessed.
pub const GATE_DESCRIPTOR: u64 = 0x00af_9b00_0000_ffff;
/// Selectors for the MSR STAR: SYSCALL's code segment, which is fixed in all but its number; SYSRET's are [`KERNEL_CODE`] and [`KERNEL_STACK`].
pub const STAR: u64 = (KERNEL_CODE as u64 - 16) << 48 | (GATE_CODE as u64) << 32;
/// RFLAGS of a guest: interrupts are taken, and the bit that is always set.
pub const FLAGS_SET: u64 = 1 << 9 | 1 << 1;
/// RFLAGS that are the guest's own: not the I/O privilege level.
pub const FLAGS_OWN: u64 = 0x0024_7fd7 & !(3 << 12);
/// Of them, what a kernel is entered with: not TF, DF, NT, RF, VM, AC.
pub const FLAGS_ENTRY: u64 = FLAGS_OWN & !(1 << 8 | 1 << 10 | 1 << 14 | 1 << 16 | 1 << 17 | 1 << 18);
/// VGCF_in_syscall: RCX and R11 come from RIP and RFLAGS.
const IN_SYSCALL: u64 = 1 << 8;
/// Sign and upper bits of addresses of the hypervisor's, the upper half's first 16 of 512 parts, from bit 43 on.
const HOLE: i64 = 0xffff_8000_0000_0000_u64 as i64 >> 43;

/// Error code of a page fault: the page is there, and was to be written.
const PROTECTED_WRITE: i32 = 3;
/// Error code of a page fault: by software at privilege level 3, where programs run and the kernel does.
const BY_USER: i32 = 4;

global_asm!(
    ".pushsection .rodata.sluice_gate, \"a\"",
    ".balign 16",
    ".global sluice_gate",
    "sluice_gate:",
    ".Lgate:",
    ".set .Lmode, .Lgate + {words} + {MODE}",
    ".set .Linfo, .Lgate + {words} + {INFO}",
    ".set .Lentry, .Lgate + {words} + {ENTRY}",
    ".set .Lrax, .Lgate + {words} + {RAX}",
    ".set .Lrsp, .Lgate + {words} + {RSP}",
    ".set .Lrcx, .Lgate + {words} + {RCX}",
    ".set .Lr11, .Lgate + {words} + {R11}",
    ".set .Lframe, .Lgate + {words} + {FRAME}",
    ".set .Lcr2, .Lgate + {words} + {CR2}",
    ".set .List, .Lgate + {words} + {IST}",
    ".set .Lfault_frame, .Lgate + {words} + {STACK} - {FAULT_FRAME}",
    "vmmcall",
    ".org .Lgate + {wide}, 0xcc",
    "cmp qword ptr [rip + .Lmode], 0",
    "jne .Lkernel",
    "mov [rip + .Lrax], rax",
    "mov [rip + .Lrsp], rsp",
    // A program calls the kernel. Nothing but RAX, RSP, CR3 and memory below the kernel's stack changes up to .Lcalled.
    ".Lcalling:",
    "cmp qword ptr [rip + .Lentry], 0",
    "je .Lback",
    "mov rax, [rip + .Linfo]",
    // A program for which events are masked: its frame would be another one.
    "cmp byte ptr [rax + 1], 0",
    "jne .Lback",
    "mov rax, [rip + .Lgate + {words} + {KERNEL_ROOT}]",
    "mov cr3, rax",
    "mov rsp, [rip + .Lgate + {words} + {KERNEL_STACK}]",
    "push {stack}",
    "push [rip + .Lrsp]",
    "mov eax, r11d",
    "and eax, {own}",
    "or rax, [rip + .Lgate + {words} + {FLAGS}]",
    "push rax",
    "push {code}",
    "push rcx",
    "push r11",
    "push rcx",
    "mov rax, [rip + .Lrax]",
    // It is decided.
    ".Lcalled:",
    "swapgs",
    ".Lcalled_swapped:",
    "inc qword ptr [rip + .Lgate + {words} + {CALLS}]",
    "mov qword ptr [rip + .Lmode], 1",
    "mov rcx, [rip + .Linfo]",
    "mov byte ptr [rcx + 1], 1",
    "and r11d, {entry}",
    "or r11d, {set}",
    "mov rcx, [rip + .Lentry]",
    "sysretq",
    // The hypervisor is to do it.
    ".Lback:",
    "mov rax, [rip + .Lrax]",
    "mov rsp, [rip + .Lrsp]",
    ".Lexit:",
    "vmmcall",
    ".Lkernel:",
    "cmp rax, {iret}",
    "jne .Lexit",
    // The kernel returns. Nothing but RAX changes, which is known, and what a second attempt would write again.
    ".Lreturning:",
    "mov rax, rsp",
    "sar rax, 43",
    "cmp rax, {hole}",
    "je .Lrefused",
    "mov rax, [rsp + 32]",
    "mov [rip + .Lframe], rax",
    "mov [rip + .Lrcx], rax",
    "sar rax, 47",
    "inc rax",
    "cmp rax, 1",
    "ja .Lrefused",
    "mov rax, [rsp + 48]",
    "test eax, {interrupts}",
    "jz .Lrefused",
    "and eax, {own}",
    "or eax, {set}",
    "mov [rip + .Lframe + 16], rax",
    "mov [rip + .Lr11], rax",
    "test dword ptr [rsp + 24], {in_syscall}",
    "jnz .Lfrom_call",
    "mov rax, [rsp + 16]",
    "mov [rip + .Lrcx], rax",
    "mov rax, [rsp + 8]",
    "mov [rip + .Lr11], rax",
    ".Lfrom_call:",
    "mov rax, [rsp + 56]",
    "mov [rip + .Lframe + 24], rax",
    "mov rax, [rsp]",
    "mov [rip + .Lrax], rax",
    "movzx eax, word ptr [rsp + 64]",
    "or eax, 3",
    "mov [rip + .Lframe + 32], rax",
    "mov rax, [rip + .Linfo]",
    // An event waits, of which the kernel is to be told first.
    "cmp byte ptr [rax], 0",
    "jne .Lrefused",
    "movzx eax, word ptr [rsp + 40]",
    "mov [rip + .Lframe + 8], rax",
    "not eax",
    "test eax, 3",
    "jnz .Lwithin",
    "mov rax, [rip + .Lframe + 8]",
    "cmp rax, [rip + .Lgate + {words} + {USER_CODE}]",
    "jne .Lrefused",
    "mov rax, [rip + .Lframe + 32]",
    "cmp rax, [rip + .Lgate + {words} + {USER_STACK}]",
    "jne .Lrefused",
    // It is decided: to a program.
    ".Lto_program:",
    "swapgs",
    ".Lto_program_swapped:",
    "mov qword ptr [rip + .Lmode], 0",
    "mov rax, [rip + .Lgate + {words} + {USER_ROOT}]",
    "mov cr3, rax",
    "jmp .Lto_either",
    ".Lrefused:",
    "mov eax, {iret}",
    "vmmcall",
    ".Lwithin:",
    "mov rax, [rip + .Lframe + 8]",
    "or eax, 3",
    "cmp eax, {code}",
    "jne .Lrefused",
    "mov [rip + .Lframe + 8], rax",
    "cmp qword ptr [rip + .Lframe + 32], {stack}",
    "jne .Lrefused",
    // It is decided.
    ".Lto_either:",
    "inc qword ptr [rip + .Lgate + {words} + {RETURNS}]",
    ".Lcounted:",
    "mov rax, [rip + .Linfo]",
    "mov byte ptr [rax + 1], 0",
    "mov rax, [rip + .Lrax]",
    "mov rcx, [rip + .Lrcx]",
    "mov r11, [rip + .Lr11]",
    "lea rsp, [rip + .Lframe]",
    "iretq",
    // A page fault, on the gate's own stack. The first of its words is the error code.
    ".Lfault:",
    "test byte ptr [rsp + 16], 3",
    "jz .Lnested",
    "mov [rip + .Lrax], rax",
    "mov [rip + .Lrcx], rcx",
    "mov [rip + .Lr11], r11",
    // Nothing but these, RSP, CR3 and memory below the kernel's stack changes up to .Lfaulted.
    ".Lfaulting:",
    "mov rax, cr2",
    "mov [rip + .Lcr2], rax",
    "lea rax, [rip + .Lgate + {words} + {SECOND_STACK}]",
    "mov [rip + .List], rax",
    "cmp qword ptr [rip + .Lgate + {words} + {FAULT_ENTRY}], 0",
    "je .Lfault_exit",
    "mov rax, [rip + .Linfo]",
    "cmp byte ptr [rax + 1], 0",
    "jne .Lfault_exit",
    "mov ecx, [rip + .Lfault_frame]",
    "movzx r11d, word ptr [rip + .Lfault_frame + 16]",
    "cmp qword ptr [rip + .Lmode], 0",
    "jne .Lfault_of_kernel",
    "mov rax, [rip + .Lgate + {words} + {KERNEL_ROOT}]",
    "mov cr3, rax",
    "mov rsp, [rip + .Lgate + {words} + {KERNEL_STACK}]",
    "jmp .Lfault_push",
    ".Lfault_exit:",
    "vmmcall",
    ".Lfault_of_kernel:",
    // A write to what is there and may not be written may be one to a page table.
    "mov eax, ecx",
    "and eax, {write}",
    "cmp eax, {protected_write}",
    "je .Lfault_exit",
    "and ecx, {not_user}",
    "and r11d, {not_program}",
    // From the first byte to the last the frame must not be in the hypervisor's part.
    "mov rax, [rip + .Lfault_frame + 32]",
    "and rax, -16",
    "lea rsp, [rax - 1]",
    "sar rsp, 43",
    "cmp rsp, {hole}",
    "je .Lfault_exit",
    "lea rsp, [rax - {pushed}]",
    "sar rsp, 43",
    "cmp rsp, {hole}",
    "je .Lfault_exit",
    "mov rsp, rax",
    ".Lfault_push:",
    "push [rip + .Lfault_frame + 40]",
    "push [rip + .Lfault_frame + 32]",
    "mov rax, [rip + .Lfault_frame + 24]",
    "or rax, [rip + .Lgate + {words} + {FLAGS}]",
    "push rax",
    "push r11",
    "push [rip + .Lfault_frame + 8]",
    "push rcx",
    "push [rip + .Lr11]",
    "push [rip + .Lrcx]",
    "test r11d, 3",
    "jz .Lfaulted_within",
    // It is decided.
    ".Lfaulted:",
    "swapgs",
    ".Lfaulted_within:",
    "inc qword ptr [rip + .Lgate + {words} + {FAULTS}]",
    ".Lfaulted_counted:",
    "mov qword ptr [rip + .Lmode], 1",
    "mov rax, [rip + .Lcr2]",
    "mov rcx, [rip + .Linfo]",
    "mov [rcx + 16], rax",
    "mov byte ptr [rcx + 1], 1",
    "lea rax, [rip + .Lgate + {words} + {STACK}]",
    "mov [rip + .List], rax",
    "mov r11, [rip + .Lfault_frame + 24]",
    "and r11d, {entry}",
    "or r11d, {set}",
    "mov rax, [rip + .Lrax]",
    "mov rcx, [rip + .Lgate + {words} + {FAULT_ENTRY}]",
    "sysretq",
    // The gate's own: the guest's stack cannot be reached.
    ".Lnested:",
    "vmmcall",
    ".Lend:",
    ".org .Lgate + {code_len}, 0xcc",
    ".short .Lcalling - .Lgate, .Lcalled - .Lgate, .Lcalled_swapped - .Lgate, .Lback - .Lgate, .Lexit - .Lgate",
    ".short .Lreturning - .Lgate, .Lto_program - .Lgate, .Lto_program_swapped - .Lgate, .Lrefused - .Lgate",
    ".short .Lwithin - .Lgate, .Lto_either - .Lgate, .Lcounted - .Lgate, .Lfault - .Lgate, .Lfaulting - .Lgate",
    ".short .Lfaulted - .Lgate, .Lfaulted_within - .Lgate, .Lfaulted_counted - .Lgate, .Lnested - .Lgate, .Lend - .Lgate",
    ".popsection",
    words = const WORDS,
    wide = const WIDE,
    code_len = const CODE,
    MODE = const word::MODE,
    INFO = const word::INFO,
    ENTRY = const word::ENTRY,
    RAX = const word::RAX,
    RSP = const word::RSP,
    RCX = const word::RCX,
    R11 = const word::R11,
    FRAME = const word::FRAME,
    KERNEL_ROOT = const word::KERNEL_ROOT,
    USER_ROOT = const word::USER_ROOT,
    KERNEL_STACK = const word::KERNEL_STACK,
    FLAGS = const word::FLAGS,
    USER_CODE = const word::USER_CODE,
    USER_STACK = const word::USER_STACK,
    CALLS = const word::CALLS,
    RETURNS = const word::RETURNS,
    FAULTS = const word::FAULTS,
    FAULT_ENTRY = const word::FAULT_ENTRY,
    CR2 = const word::CR2,
    IST = const word::IST,
    STACK = const word::STACK,
    SECOND_STACK = const word::SECOND_STACK,
    FAULT_FRAME = const FAULT_FRAME,
    write = const PROTECTED_WRITE | 8,
    protected_write = const PROTECTED_WRITE,
    not_user = const !BY_USER,
    not_program = const !3,
    pushed = const 64,
    code = const KERNEL_CODE,
    stack = const KERNEL_STACK,
    own = const FLAGS_OWN,
    entry = const FLAGS_ENTRY,
    set = const FLAGS_SET,
    interrupts = const 1 << 9,
    in_syscall = const IN_SYSCALL,
    iret = const IRET,
    hole = const HOLE,
);

/// The code, and where its parts begin.
#[repr(C)]
struct Gate {
    code: [u8; CODE],
    calling: u16,
    called: u16,
    called_swapped: u16,
    back: u16,
    exit: u16,
    returning: u16,
    to_program: u16,
    to_program_swapped: u16,
    refused: u16,
    within: u16,
    to_either: u16,
    counted: u16,
    fault: u16,
    faulting: u16,
    faulted: u16,
    faulted_within: u16,
    faulted_counted: u16,
    nested: u16,
    end: u16,
}

fn gate() -> &'static Gate {
    // SAFETY: the assembly above is laid out as `Gate` says, in memory that is only read.
    unsafe {
        unsafe extern "C" {
            static sluice_gate: Gate;
        }
        &sluice_gate
    }
}

/// The code. It may be anywhere, with the words [`WORDS`] bytes after it.
pub fn code() -> &'static [u8; CODE] {
    &gate().code
}

/// Where the VMMCALL is that the hypervisor may have executed in place of all the rest.
pub fn exit() -> u64 {
    u64::from(gate().exit)
}

/// Where page faults go.
pub fn fault() -> u64 {
    u64::from(gate().fault)
}

/// Where in the gate a guest was, and what has become of its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The caller's registers are all there: it asks for an exit, or would be here again from the start.
    Before,
    /// A program calls the kernel: RAX and RSP are among the words.
    Calling,
    /// The kernel is called; its frame is on its stack.
    Called {
        /// The bases of GS are still to change places.
        swap: bool,
        /// It is counted.
        counted: bool,
    },
    /// The kernel returns, not for certain: RAX is the number of HYPERVISOR_iret.
    Returning,
    /// What the kernel returns with is among the words.
    Returned {
        /// The bases of GS are still to change places: it is a return to a program.
        swap: bool,
        /// To a program, whatever [`word::MODE`] says; else where that says.
        to_program: bool,
        /// It is counted.
        counted: bool,
    },
    /// A page fault has come to the gate, of the gate's own or not: its frame is where RSP is, and all other registers are there.
    Fault,
    /// A page fault of the guest's is looked at: RAX, RCX and R11 are among the words, and its frame is at the end of [`word::STACK`].
    Faulting,
    /// The kernel is told of it; the frame is on its stack.
    Faulted {
        /// The bases of GS are still to change places.
        swap: bool,
        /// It is counted.
        counted: bool,
    },
}

impl Place {
    /// That of an instruction, by its offset. `None`: there is none of the gate's.
    pub fn of(offset: u64) -> Option<Self> {
        let gate = gate();
        let at = u16::try_from(offset).ok().filter(|at| *at < gate.end)?;
        let place = match at {
            // Where most are that are asked about: a write to a page table exits here.
            _ if (gate.faulting..gate.faulted).contains(&at) => Self::Faulting,
            _ if at < gate.calling => Self::Before,
            _ if at < gate.called => Self::Calling,
            _ if at < gate.back => {
                Self::Called { swap: at < gate.called_swapped, counted: at > gate.called_swapped }
            }
            _ if at < gate.exit => Self::Calling,
            _ if at < gate.returning => Self::Before,
            _ if at < gate.to_program => Self::Returning,
            _ if at < gate.refused => {
                Self::Returned { swap: at == gate.to_program, to_program: true, counted: false }
            }
            _ if at < gate.to_either => Self::Returning,
            _ if at < gate.fault => {
                Self::Returned { swap: false, to_program: false, counted: at >= gate.counted }
            }
            _ if at < gate.faulting => Self::Fault,
            _ if at < gate.nested => {
                Self::Faulted { swap: at < gate.faulted_within, counted: at >= gate.faulted_counted }
            }
            _ => Self::Fault,
        };
        Some(place)
    }
}

/// The number of [`Place::Returning`].
pub const RETURN: u64 = IRET;
