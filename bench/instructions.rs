//! A QEMU plugin that counts every instruction the emulated machine executes and says at which count
//! four things happened, whatever hypervisor made them happen:
//!
//! - `vmrun`: the first `VMRUN` was executed: the first virtual processor is entered;
//! - `kernel`: after that, the 64-bit entry of a Linux bzImage was executed (`startup_64` of
//!   arch/x86/boot/compressed/head_64.S, recognized by its first instructions): the guest's kernel starts;
//! - `unpacked`: the entry of the kernel proper, which the former has unpacked (`startup_64` of Linux 6.1's
//!   arch/x86/kernel/head_64.S);
//! - `init`: the marker was executed, the first instruction of the benchmark's own `init`
//!   (sluice/src/bench/boot.rs).
//!
//! and, each time that a program executes another marker (daemons/sluice-processes), `mark`; at the end of the machine, `end`.
//!
//! Each is one line `count NAME INSTRUCTIONS VMRUNS` in QEMU's log (`-d plugin`). Instructions of the guest
//! and of everything below it are counted alike; time that passes while the processor is halted is not.
//!
//! With the argument `exits=on` it also says, so that instructions can be attributed to exits:
//!
//! - `run`: a `VMRUN` is about to be executed;
//! - `exit`: the hypervisor's first instruction after a `#VMEXIT`: the one behind the `VMRUN`;
//! - `out`: on a machine that never executed a `VMRUN`, an `out dx, al` is about to be executed (the guest
//!   sets its marks with it);
//!
//! With `within=FIRST+SIZE` (hexadecimal) every line ends with two numbers more: instructions at these addresses, a guest's included, and how many of
//! them were an `iretq` or a `sysretq`: how often a hypervisor there that does without `VMRUN` let somebody go on.
//!
//! With `places=on` as well each `mark` is preceded by a line `count at ADDRESS TIMES` for each instruction within the range that was executed since the mark
//! before, in the order of their addresses (hexadecimal).
//!
//! With `apart=INDEX:INDEX...` instructions of the virtual processors of these indices are not among INSTRUCTIONS, and every line ends with the number
//! of each. For machines whose processors QEMU runs in turn (`-icount`), and not together with `within`. With `looks=NUMBER`, too, rounds of theirs
//! that found nothing are not counted: what lies between two `PAUSE`s that are at most so many instructions apart. With `told=on`, too, every line ends
//! with the number of those instructions of each.
//!
//! With `spins=on` instructions of loops that wait are not among INSTRUCTIONS: those between two `PAUSE`s of a virtual processor that are at most
//! [`SPIN`] instructions apart. On the same machines.
//!
//! With `mend=on` an interrupt that a `VMRUN` injects is delivered once, as by a processor. QEMU leaves its vector in the processor's `exception_index`; if a
//! timer of QEMU's is due before the guest's next exit, the guest has the interrupt again, even with interrupts off, and may stand still in its own locks.
//! Sluice does not inject interrupts (hypervisor/src/exit/inject.rs); KVM and Xen do, whose guests this is for. It writes to QEMU's memory, nothing else does.
//!
//! With `call.NAME=ADDRESS` (hexadecimal) it says `call NAME START INSTRUCTIONS WITHIN SEEN...` each time that a call of the function at that address has
//! returned: the count at the call, what was executed until the instruction behind it, and how many of these were within the range. The calls are those
//! that name the address themselves (`E8`), as compilers make them and as a kernel patches in for calls through a table; one that does not return before
//! the next begins is not told. With `seen.NAME=ADDRESS` each of these lines ends with how often the instruction there was executed meanwhile, in the
//! order of these arguments: whether a call was interrupted, or what path it took.
//!
//! With any other `NAME=FIRST+SIZE` it says `fn NAME INSTRUCTIONS` each time the hypervisor's function at
//! that address returns: what it and what it called executed.
//!
//! Source: QEMU 7.2, include/qemu/qemu-plugin.h (API version 1). Later versions have another interface.

#![crate_type = "cdylib"]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// `VMRUN` (AMD APM volume 3).
const VMRUN: &[u8] = &[0x0f, 0x01, 0xd8];
/// `cld; cli; xor eax, eax; mov ds, eax`.
const KERNEL: &[&[u8]] = &[&[0xfc], &[0xfa], &[0x31, 0xc0], &[0x8e, 0xd8]];
/// `lea rsp, [rip + ...]; lea rdi, [rip + ...]; mov ecx, 0xc0000101`.
const UNPACKED: &[&[u8]] = &[&[0x48, 0x8d, 0x25], &[0x48, 0x8d, 0x3d], &[0xb9, 0x01, 0x01, 0x00, 0xc0]];
/// A `NOP` with "SLUI" as its displacement, which no compiler emits.
const INIT: &[u8] = b"\x0f\x1f\x80SLUI";
/// The same with "MARK".
const MARK: &[u8] = b"\x0f\x1f\x80MARK";
/// `iretq`, `sysretq`.
const RETURNS: [&[u8]; 2] = [&[0x48, 0xcf], &[0x48, 0x0f, 0x07]];

/// `pause`.
const PAUSE: &[u8] = &[0xf3, 0x90];
/// Most instructions from one `PAUSE` to the next in a loop that waits.
const SPIN: u64 = 24;
/// Most virtual processors.
const PROCESSORS: usize = 16;

/// `call` with a displacement of four bytes.
const CALL: u8 = 0xe8;
/// Most instructions that are looked for during calls, and most places from which a function is called.
const MOST_SEEN: usize = 4;
const CALLERS: usize = 32;

/// `out dx, al`.
const OUT: &[u8] = &[0xee];
/// `ret`.
const RET: &[u8] = &[0xc3];

/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD: c_int = 0;
/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGISTERS: c_int = 0;

enum Block {}
enum Instruction {}

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, callback: extern "C" fn(u64, *mut Block));
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        callback: extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const u8;
    fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
    fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    fn qemu_plugin_register_vcpu_insn_exec_inline(
        instruction: *mut Instruction,
        operation: c_int,
        target: *mut c_void,
        amount: u64,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        callback: extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_atexit_cb(
        id: u64,
        callback: extern "C" fn(u64, *mut c_void),
        data: *mut c_void,
    );
    fn qemu_plugin_outs(text: *const c_char);
}

/// The version of the interface that this plugin was written for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = 1;

static INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);
/// Instructions at addresses within [`RANGE`].
static WITHIN: AtomicU64 = AtomicU64::new(0);
/// Those of them that are [`RETURNS`].
static RETURNED: AtomicU64 = AtomicU64::new(0);
static RANGE: OnceLock<Function> = OnceLock::new();
/// How often each instruction within [`RANGE`] was executed since the last mark, by its place there.
static PLACES: OnceLock<Vec<AtomicU64>> = OnceLock::new();
static VMRUNS: AtomicU64 = AtomicU64::new(0);
static KERNEL_SEEN: AtomicBool = AtomicBool::new(false);
static UNPACKED_SEEN: AtomicBool = AtomicBool::new(false);
/// A virtual processor runs.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// Addresses behind a `VMRUN`; 0: free.
static BEHIND: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
static EXITS: AtomicBool = AtomicBool::new(false);
/// The virtual processors that are counted apart.
static APART: OnceLock<Vec<usize>> = OnceLock::new();
/// Instructions of a round of theirs that found nothing, at most.
static LOOKS: AtomicU64 = AtomicU64::new(0);
static TOLD: AtomicBool = AtomicBool::new(false);
/// Who runs, and since which count; what each executed before that.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static SINCE: AtomicU64 = AtomicU64::new(0);
static EARLIER: [AtomicU64; PROCESSORS] = [const { AtomicU64::new(0) }; PROCESSORS];
/// Loops that wait are not counted; what each processor executed in them; and what it had executed at its last `PAUSE`.
static SPINS: AtomicBool = AtomicBool::new(false);
static SPUN: [AtomicU64; PROCESSORS] = [const { AtomicU64::new(0) }; PROCESSORS];
static PAUSED: [AtomicU64; PROCESSORS] = [const { AtomicU64::new(0) }; PROCESSORS];
static FUNCTIONS: OnceLock<Vec<Function>> = OnceLock::new();
/// Functions whose calls are told.
static CALLS: OnceLock<Vec<Call>> = OnceLock::new();
/// Instructions that are looked for meanwhile, and how often each was executed.
static SEEN: OnceLock<Vec<u64>> = OnceLock::new();
static TIMES: [AtomicU64; MOST_SEEN] = [const { AtomicU64::new(0) }; MOST_SEEN];

/// A function whose calls are told.
struct Call {
    name: String,
    address: u64,
    /// Addresses behind its calls; 0: free.
    behind: [AtomicU64; CALLERS],
    /// Counts at its call: instructions (0: it is not called), those within the range, and what was looked for.
    since: AtomicU64,
    within: AtomicU64,
    times: [AtomicU64; MOST_SEEN],
}

impl Call {
    fn new(name: &str, address: u64) -> Self {
        Self {
            name: name.to_owned(),
            address,
            behind: [const { AtomicU64::new(0) }; CALLERS],
            since: AtomicU64::new(0),
            within: AtomicU64::new(0),
            times: [const { AtomicU64::new(0) }; MOST_SEEN],
        }
    }
}

/// The name and the address in `PREFIX.NAME=ADDRESS`.
fn place<'a>(text: &'a str, prefix: &str) -> Option<(&'a str, u64)> {
    let (name, address) = text.strip_prefix(prefix)?.strip_prefix('.')?.split_once('=')?;
    Some((name, u64::from_str_radix(address, 16).ok()?))
}

/// The function that a `call` at this address calls.
fn callee(address: u64, instruction: &[u8]) -> Option<u64> {
    let (code, displacement) = instruction.split_first()?;
    let displacement = i32::from_le_bytes(displacement.try_into().ok()?);
    (*code == CALL).then(|| (address + 5).wrapping_add_signed(displacement.into()))
}

/// A function of the hypervisor whose instructions are counted.
struct Function {
    name: String,
    first: u64,
    size: u64,
    /// Count at its beginning; 0: not in it.
    since: AtomicU64,
}

impl Function {
    /// `NAME=FIRST+SIZE`.
    fn parse(text: &str) -> Option<Self> {
        let (name, place) = text.split_once('=')?;
        let (first, size) = place.split_once('+')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (first, size) = (number(first)?, number(size)?);
        Some(Self { name: name.to_owned(), first, size, since: AtomicU64::new(0) })
    }
}

/// Where `exception_index` is in QEMU's state of a processor; 0: nothing is mended.
static MENDED: AtomicUsize = AtomicUsize::new(0);
/// A `VMRUN` may have left something there.
static ENTERED: AtomicBool = AtomicBool::new(false);
/// `qemu_get_cpu` (QEMU 7.2, include/hw/core/cpu.h).
static GET_CPU: OnceLock<extern "C" fn(c_int) -> *mut u8> = OnceLock::new();

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Finds what [`mend`] needs: `exception_index` is what `cpu_loop_exit_noexc` sets to -1 before all else (QEMU 7.2, accel/tcg/cpu-exec-common.c).
fn find_exception_index() -> Option<()> {
    // `mov dword ptr [rdi + OFFSET], -1`
    const SET: &[u8] = &[0xc7, 0x87];
    let symbol = |name: &CStr| {
        let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    let code = unsafe { std::slice::from_raw_parts(symbol(c"cpu_loop_exit_noexc")?.cast::<u8>(), 16) };
    let at = code.windows(2).position(|window| window == SET)? + SET.len();
    if code.get(at + 4..at + 8)? != [0xff; 4] {
        return None;
    }
    let offset = u32::from_le_bytes(code.get(at..at + 4)?.try_into().ok()?);
    let get_cpu = symbol(c"qemu_get_cpu")?;
    GET_CPU.set(unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> *mut u8>(get_cpu) }).ok()?;
    MENDED.store(offset as usize, Ordering::Relaxed);
    Some(())
}

/// The first block after a `VMRUN`: what was injected has been delivered, and nothing waits.
extern "C" fn mend(index: c_uint, _: *mut c_void) {
    if !ENTERED.swap(false, Ordering::Relaxed) {
        return;
    }
    if let Some(get_cpu) = GET_CPU.get() {
        let cpu = get_cpu(index as c_int);
        unsafe { cpu.add(MENDED.load(Ordering::Relaxed)).cast::<i32>().write(-1) };
    }
}

/// QEMU calls it once.
#[unsafe(no_mangle)]
pub extern "C" fn qemu_plugin_install(
    id: u64,
    _: *const c_void,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    let mut functions = Vec::new();
    let (mut calls, mut seen) = (Vec::new(), Vec::new());
    let mut places = false;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        let text = unsafe { CStr::from_ptr(*arguments.add(index)) }.to_string_lossy();
        match Function::parse(&text) {
            Some(range) if range.name == "within" => {
                let _ = RANGE.set(range);
            }
            Some(function) => functions.push(function),
            None if text.starts_with("call.") => match place(&text, "call") {
                Some((name, address)) => calls.push(Call::new(name, address)),
                None => return 1,
            },
            None if text.starts_with("seen.") => match place(&text, "seen") {
                Some((_, address)) if seen.len() < MOST_SEEN => seen.push(address),
                _ => return 1,
            },
            None if text.starts_with("apart=") => match text[6..].split(':').map(str::parse).collect::<Result<Vec<_>, _>>() {
                Ok(indices) if indices.iter().all(|index| *index < PROCESSORS) => {
                    APART.set(indices).unwrap_or(());
                }
                _ => return 1,
            },
            None if text.starts_with("looks=") => match text[6..].parse() {
                Ok(most) => LOOKS.store(most, Ordering::Relaxed),
                Err(_) => return 1,
            },
            None if text == "told=on" => TOLD.store(true, Ordering::Relaxed),
            None if text == "mend=on" => {
                if find_exception_index().is_none() {
                    return 1;
                }
            }
            None if text == "places=on" => places = true,
            None if text == "spins=on" => SPINS.store(true, Ordering::Relaxed),
            None if text == "exits=on" => EXITS.store(true, Ordering::Relaxed),
            None => return 1,
        }
    }
    if places {
        let Some(range) = RANGE.get() else { return 1 };
        let _ = PLACES.set((0..range.size).map(|_| AtomicU64::new(0)).collect());
    }
    let _ = FUNCTIONS.set(functions);
    let _ = CALLS.set(calls);
    let _ = SEEN.set(seen);
    unsafe {
        qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
        qemu_plugin_register_atexit_cb(id, end, std::ptr::null_mut());
    }
    0
}

extern "C" fn translated(_id: u64, block: *mut Block) {
    let count = unsafe { qemu_plugin_tb_n_insns(block) };
    let instruction = |index| unsafe { qemu_plugin_tb_get_insn(block, index) };
    let bytes = |index| unsafe {
        let instruction = instruction(index);
        std::slice::from_raw_parts(qemu_plugin_insn_data(instruction), qemu_plugin_insn_size(instruction))
    };
    let spins = SPINS.load(Ordering::Relaxed);
    if spins || APART.get().is_some() {
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(block, run, NO_REGISTERS, std::ptr::null_mut()) };
    }
    if MENDED.load(Ordering::Relaxed) > 0 {
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(block, mend, NO_REGISTERS, std::ptr::null_mut()) };
    }
    let exits = EXITS.load(Ordering::Relaxed);
    for index in 0..count {
        let target = INSTRUCTIONS.as_ptr().cast();
        unsafe { qemu_plugin_register_vcpu_insn_exec_inline(instruction(index), ADD, target, 1) };
        let call_with = |callback, data: *mut c_void| unsafe {
            qemu_plugin_register_vcpu_insn_exec_cb(instruction(index), callback, NO_REGISTERS, data);
        };
        let call = |callback| call_with(callback, std::ptr::null_mut());
        let found = bytes(index);
        let begins = |all: &[&[u8]]| {
            let mut pairs = (index..count).zip(all);
            index + all.len() <= count && pairs.all(|(at, part)| bytes(at).starts_with(part))
        };
        let address = unsafe { qemu_plugin_insn_vaddr(instruction(index)) };
        if RANGE.get().is_some_and(|range| address.wrapping_sub(range.first) < range.size) {
            let mut targets = vec![&WITHIN];
            targets.extend(RETURNS.contains(&found).then_some(&RETURNED));
            targets.extend(place_of(address));
            for target in targets {
                let target = target.as_ptr().cast();
                unsafe { qemu_plugin_register_vcpu_insn_exec_inline(instruction(index), ADD, target, 1) };
            }
        }
        if exits && BEHIND.iter().any(|behind| behind.load(Ordering::Relaxed) == address) {
            call(exit);
        }
        for function in FUNCTIONS.get().into_iter().flatten() {
            let data = std::ptr::from_ref(function).cast_mut().cast();
            if address == function.first {
                call_with(enter, data);
            } else if found == RET && address.wrapping_sub(function.first) < function.size {
                call_with(leave, data);
            }
        }
        for (at, times) in SEEN.get().into_iter().flatten().zip(&TIMES) {
            if *at == address {
                let target = times.as_ptr().cast();
                unsafe { qemu_plugin_register_vcpu_insn_exec_inline(instruction(index), ADD, target, 1) };
            }
        }
        for function in CALLS.get().into_iter().flatten() {
            let data = std::ptr::from_ref(function).cast_mut().cast();
            if function.behind.iter().any(|behind| behind.load(Ordering::Relaxed) == address) {
                call_with(returned, data);
            }
            if callee(address, found) == Some(function.address) {
                remember_in(&function.behind, address + found.len() as u64);
                call_with(called, data);
            }
        }
        if found == VMRUN {
            remember_in(&BEHIND, address + VMRUN.len() as u64);
            call(vmrun);
        } else if (spins || LOOKS.load(Ordering::Relaxed) > 0) && found == PAUSE {
            call(pause);
        } else if exits && found == OUT {
            call(out);
        } else if found == INIT {
            call(init);
        } else if found == MARK {
            call(mark);
        } else if begins(KERNEL) {
            call(kernel);
        } else if begins(UNPACKED) {
            call(unpacked);
        }
    }
}

/// Where the executions of an instruction are counted, if they are.
fn place_of(address: u64) -> Option<&'static AtomicU64> {
    PLACES.get()?.get((address - RANGE.get()?.first) as usize)
}

/// Says how often each instruction was executed since the last time.
fn say_places() {
    let (Some(places), Some(range)) = (PLACES.get(), RANGE.get()) else { return };
    for (address, place) in (range.first..).zip(places) {
        let times = place.swap(0, Ordering::Relaxed);
        if times > 0 {
            print(&format!("count at {address:x} {times}\n"));
        }
    }
}

/// A processor executes a block: its instructions are counted after this.
extern "C" fn run(index: c_uint, _: *mut c_void) {
    let index = index as usize;
    let last = CURRENT.load(Ordering::Relaxed);
    if last != index {
        EARLIER[last].store(executed_by(last), Ordering::Relaxed);
        SINCE.store(INSTRUCTIONS.load(Ordering::Relaxed), Ordering::Relaxed);
        CURRENT.store(index, Ordering::Relaxed);
    }
}

/// Instructions that a processor has executed.
fn executed_by(index: usize) -> u64 {
    let now = INSTRUCTIONS.load(Ordering::Relaxed) - SINCE.load(Ordering::Relaxed);
    EARLIER[index].load(Ordering::Relaxed) + if CURRENT.load(Ordering::Relaxed) == index { now } else { 0 }
}

/// A processor is about to wait a moment.
extern "C" fn pause(index: c_uint, _: *mut c_void) {
    let index = index as usize;
    let now = executed_by(index);
    let passed = now - PAUSED[index].swap(now, Ordering::Relaxed);
    let most = match APART.get() {
        Some(apart) if apart.contains(&index) => LOOKS.load(Ordering::Relaxed),
        _ if SPINS.load(Ordering::Relaxed) => SPIN,
        _ => 0,
    };
    if passed <= most {
        SPUN[index].fetch_add(passed, Ordering::Relaxed);
    }
}

fn remember_in(places: &[AtomicU64], behind: u64) {
    if places.iter().any(|known| known.load(Ordering::Relaxed) == behind) {
        return;
    }
    if let Some(free) = places.iter().find(|known| known.load(Ordering::Relaxed) == 0) {
        free.store(behind, Ordering::Relaxed);
    }
}

extern "C" fn vmrun(_: c_uint, _: *mut c_void) {
    if VMRUNS.fetch_add(1, Ordering::Relaxed) == 0 {
        say("vmrun");
    }
    RUNNING.store(true, Ordering::Relaxed);
    ENTERED.store(true, Ordering::Relaxed);
    if EXITS.load(Ordering::Relaxed) {
        say("run");
    }
}

/// A guest may have code at the same address.
extern "C" fn exit(_: c_uint, _: *mut c_void) {
    if RUNNING.swap(false, Ordering::Relaxed) {
        say("exit");
    }
}

extern "C" fn out(_: c_uint, _: *mut c_void) {
    if VMRUNS.load(Ordering::Relaxed) == 0 {
        say("out");
    }
}

extern "C" fn enter(_: c_uint, data: *mut c_void) {
    let function = unsafe { &*data.cast::<Function>() };
    if !RUNNING.load(Ordering::Relaxed) {
        function.since.store(INSTRUCTIONS.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

extern "C" fn leave(_: c_uint, data: *mut c_void) {
    let function = unsafe { &*data.cast::<Function>() };
    if RUNNING.load(Ordering::Relaxed) {
        return;
    }
    let since = function.since.swap(0, Ordering::Relaxed);
    if since != 0 {
        // Both ends are in it.
        let executed = INSTRUCTIONS.load(Ordering::Relaxed) - since + 1;
        print(&format!("count fn {} {executed}\n", function.name));
    }
}

/// A function is about to be called.
extern "C" fn called(_: c_uint, data: *mut c_void) {
    let call = unsafe { &*data.cast::<Call>() };
    call.since.store(INSTRUCTIONS.load(Ordering::Relaxed), Ordering::Relaxed);
    call.within.store(WITHIN.load(Ordering::Relaxed), Ordering::Relaxed);
    for (then, now) in call.times.iter().zip(&TIMES) {
        then.store(now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The function has returned: the call itself is in the difference, the instruction behind it is not.
extern "C" fn returned(_: c_uint, data: *mut c_void) {
    let call = unsafe { &*data.cast::<Call>() };
    let since = call.since.swap(0, Ordering::Relaxed);
    if since == 0 {
        return;
    }
    let executed = INSTRUCTIONS.load(Ordering::Relaxed) - since;
    let within = WITHIN.load(Ordering::Relaxed) - call.within.load(Ordering::Relaxed);
    let mut text = format!("count call {} {since} {executed} {within}", call.name);
    let seen = SEEN.get().map_or(0, Vec::len);
    for (then, now) in call.times.iter().zip(&TIMES).take(seen) {
        text += &format!(" {}", now.load(Ordering::Relaxed) - then.load(Ordering::Relaxed));
    }
    print(&(text + "\n"));
}

extern "C" fn kernel(_: c_uint, _: *mut c_void) {
    once("kernel", &KERNEL_SEEN);
}

extern "C" fn unpacked(_: c_uint, _: *mut c_void) {
    once("unpacked", &UNPACKED_SEEN);
}

/// Before the first VMRUN it is the kernel of the hypervisor itself, where that is Linux.
fn once(what: &str, seen: &AtomicBool) {
    if VMRUNS.load(Ordering::Relaxed) > 0 && !seen.swap(true, Ordering::Relaxed) {
        say(what);
    }
}

extern "C" fn end(_: u64, _: *mut c_void) {
    say("end");
}

extern "C" fn init(_: c_uint, _: *mut c_void) {
    say("init");
}

extern "C" fn mark(_: c_uint, _: *mut c_void) {
    say_places();
    say("mark");
}

fn say(what: &str) {
    let spun = |index: usize| SPUN[index].load(Ordering::Relaxed);
    let instructions = INSTRUCTIONS.load(Ordering::Relaxed) - (0..PROCESSORS).map(spun).sum::<u64>();
    let vmruns = VMRUNS.load(Ordering::Relaxed);
    if let Some(indices) = APART.get() {
        let apart: Vec<u64> = indices.iter().map(|index| executed_by(*index) - spun(*index)).collect();
        let vain = indices.iter().map(|index| spun(*index)).filter(|_| TOLD.load(Ordering::Relaxed));
        let numbers: String = apart.iter().copied().chain(vain).map(|number| format!(" {number}")).collect();
        return print(&format!("count {what} {} {vmruns}{numbers}\n", instructions - apart.iter().sum::<u64>()));
    }
    match RANGE.get() {
        None => print(&format!("count {what} {instructions} {vmruns}\n")),
        Some(_) => {
            let within = WITHIN.load(Ordering::Relaxed);
            let returned = RETURNED.load(Ordering::Relaxed);
            print(&format!("count {what} {instructions} {vmruns} {within} {returned}\n"));
        }
    }
}

fn print(text: &str) {
    if let Ok(text) = CString::new(text) {
        unsafe { qemu_plugin_outs(text.as_ptr()) };
    }
}
