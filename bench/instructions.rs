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
//! and, at the end of the machine, `end`.
//!
//! Each is one line `count NAME INSTRUCTIONS VMRUNS` in QEMU's log (`-d plugin`). Instructions of the guest
//! and of everything below it are counted alike; time that passes while the processor is halted is not.
//!
//! Source: QEMU 7.2, include/qemu/qemu-plugin.h (API version 1). Later versions have another interface.

#![crate_type = "cdylib"]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// `VMRUN` (AMD APM volume 3).
const VMRUN: &[u8] = &[0x0f, 0x01, 0xd8];
/// `cld; cli; xor eax, eax; mov ds, eax`.
const KERNEL: &[&[u8]] = &[&[0xfc], &[0xfa], &[0x31, 0xc0], &[0x8e, 0xd8]];
/// `lea rsp, [rip + ...]; lea rdi, [rip + ...]; mov ecx, 0xc0000101`.
const UNPACKED: &[&[u8]] = &[&[0x48, 0x8d, 0x25], &[0x48, 0x8d, 0x3d], &[0xb9, 0x01, 0x01, 0x00, 0xc0]];
/// A `NOP` with "SLUI" as its displacement, which no compiler emits.
const INIT: &[u8] = b"\x0f\x1f\x80SLUI";

/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD: c_int = 0;
/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGISTERS: c_int = 0;

enum Block {}
enum Instruction {}

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, callback: extern "C" fn(u64, *mut Block));
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const u8;
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
static VMRUNS: AtomicU64 = AtomicU64::new(0);
static KERNEL_SEEN: AtomicBool = AtomicBool::new(false);
static UNPACKED_SEEN: AtomicBool = AtomicBool::new(false);

/// QEMU calls it once.
#[unsafe(no_mangle)]
pub extern "C" fn qemu_plugin_install(id: u64, _: *const c_void, _: c_int, _: *const *const c_char) -> c_int {
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
    for index in 0..count {
        let target = INSTRUCTIONS.as_ptr().cast();
        unsafe { qemu_plugin_register_vcpu_insn_exec_inline(instruction(index), ADD, target, 1) };
        let call = |callback| unsafe {
            let nothing = std::ptr::null_mut();
            qemu_plugin_register_vcpu_insn_exec_cb(instruction(index), callback, NO_REGISTERS, nothing);
        };
        let found = bytes(index);
        let begins = |all: &[&[u8]]| {
            let mut pairs = (index..count).zip(all);
            index + all.len() <= count && pairs.all(|(at, part)| bytes(at).starts_with(part))
        };
        if found == VMRUN {
            call(vmrun);
        } else if found == INIT {
            call(init);
        } else if begins(KERNEL) {
            call(kernel);
        } else if begins(UNPACKED) {
            call(unpacked);
        }
    }
}

extern "C" fn vmrun(_: c_uint, _: *mut c_void) {
    if VMRUNS.fetch_add(1, Ordering::Relaxed) == 0 {
        say("vmrun");
    }
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

fn say(what: &str) {
    let instructions = INSTRUCTIONS.load(Ordering::Relaxed);
    let vmruns = VMRUNS.load(Ordering::Relaxed);
    if let Ok(text) = CString::new(format!("count {what} {instructions} {vmruns}\n")) {
        unsafe { qemu_plugin_outs(text.as_ptr()) };
    }
}
