//! A paravirtual guest's processor: a guest of SVM at privilege level 3, all of whose exceptions exit.
//!
//! Its page tables are walked by the hardware as [`sluice_pagetypes`] has validated them. Nested page tables stand behind
//! them all the same: they show the domain's own frames where they physically are, so that an error of the validation would be a nested page fault
//! and not another domain's memory. SYSCALL leads to the gate ([`sluice_gate`]), the only code at privilege level 0.
//!
//! Source: Xen's public interface ([`sluice_xenpv`]); APM vol 2, 15.12 (exceptions), 15.14 (VMMCALL), 6.1 (SYSCALL).

use super::crash;
use super::flow::Flow;
use crate::domain::counters::{Exit, Refusal};
use crate::domain::paravirtual::{Interface, Memory, Paravirtual, Segments};
use crate::domain::vcpu::{Context, RunState, Vcpu, event};
use crate::domain::{Domain, EndReason, PortHandler, Transfer};
use crate::mm::Direct;
use crate::svm::vmcb::{Intercept3, Segment, exit_code};
use crate::x86::port::{inb, inl, inw, outb, outl, outw};
use crate::x86::{self, tsc};
use crate::{mm, svm};
use alloc::boxed::Box;
use sluice_gate::word;
use sluice_memory::{Hpa, PAGE_SIZE, PhysicalMemory};
use sluice_pagetypes::{Counts, ENTRIES, HOLE, LINE, Machine, Mfn, Refused, Types};
use sluice_platform::clock::{Scale, TimeInfo};
use sluice_platform::cpuid::{CpuInfo, filter};
use sluice_traps::Direction;
use sluice_traps::ports::Disposition;
use sluice_xenpv::{
    After, Area, Asked, Built, End, Guest, Hardware, Host, LINES, Layout, QUICK, Registers, abi,
};

/// INTn: a software interrupt.
const INTERCEPT_INTN: u32 = 1 << 21;
/// The exit for it.
const SOFTWARE_INTERRUPT: u32 = 0x75;
/// The first exit for an exception.
const EXCEPTION: u32 = 0x40;
/// The exceptions, by the exit for them.
const LAST_EXCEPTION: u32 = 0x5f;
/// Exceptions with an error code.
const WITH_ERROR: u32 = 1 << 8 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17;

mod vector {
    pub const BP: u8 = 3;
    pub const UD: u8 = 6;
    pub const NM: u8 = 7;
    pub const GP: u8 = 13;
    pub const PF: u8 = 14;
    pub const MC: u8 = 18;
}

/// What the kernel is entered with, whose descriptors the hypervisor keeps for it.
const KERNEL_CODE: Segment = segment(abi::CS64, abi::CODE_DESCRIPTOR);
const KERNEL_STACK: Segment = segment(abi::SS, abi::STACK_DESCRIPTOR);
/// Attributes of a local descriptor table that is present.
const LOCAL_TABLE: u16 = 0x82;
/// PE, MP, ET, NE, WP, AM, PG.
const CR0: u64 = 0x8005_0033;
const CR0_TS: u64 = 1 << 3;
/// PAE, OSFXSR, OSXMMEXCPT. QEMU 7.2 takes an IRET at privilege level 3 for one of the kernel's if SMAP is on.
const CR4: u64 = 0x620;
/// SCE, LME, LMA, NXE, SVME.
const EFER: u64 = svm::EFER_SVME | 0xd01;
/// RFLAGS that SYSCALL clears: TF, IF, DF, NT, AC.
const SFMASK: u64 = 1 << 8 | 1 << 9 | 1 << 10 | 1 << 14 | 1 << 18;

/// The machine behind a guest's interface.
struct Hands<'a> {
    domain: &'a Domain,
    /// The virtual processor whose exit it is.
    own: u32,
    memory: &'a Memory,
    /// Translations are to be forgotten before the guest goes on.
    flush: bool,
    /// How often devices lost frames, and got them.
    changes: (u64, u64),
}

impl<'a> Hands<'a> {
    fn new(domain: &'a Domain, own: u32, memory: &'a Memory) -> Self {
        Self { domain, own, memory, flush: false, changes: (0, 0) }
    }

    /// Other processors than its own forget translations, a bit each.
    fn flush_others(&self, which: u64) {
        let others = which & !(1 << self.own);
        if self.domain.vcpus.len() > 1 && others != 0 {
            self.domain.flush_processors(others);
        }
    }

    /// An access of the kernel's to a port: those of its devices, those by which it finds them, and its clock's. Others are nobody's.
    fn port(&self, port: u16, width: u8, transfer: Transfer<'_>) {
        let direction = if transfer.is_write() { Direction::WRITE } else { Direction::READ };
        let who = self.domain.ports.lock().lookup_access(port, width, direction);
        match who {
            Disposition::Direct => forward(port, transfer),
            Disposition::Handler(handler @ (PortHandler::PciConfig | PortHandler::Rtc)) => {
                self.domain.port(handler, port, width, transfer);
            }
            Disposition::Handler(_) | Disposition::Refused => {
                let vcpu = self.domain.vcpus.get(self.own as usize);
                vcpu.into_iter().for_each(|vcpu| vcpu.refusals.count(Refusal::Port as usize));
            }
        }
    }

    #[cold]
    fn fail(&self, frame: Mfn, offset: usize, len: usize) -> ! {
        let name = self.domain.name();
        panic!("fault of the hypervisor: {len} bytes at {offset} of {frame} are not of domain {name}");
    }

    /// The address of a byte of a frame, which is checked against the domain's memory whatever the types say of it.
    #[inline(always)]
    fn at(&self, frame: Mfn, offset: usize, len: usize) -> Hpa {
        let (first, count) = self.memory.run;
        let own = frame.0.wrapping_sub(first) < count;
        if !own || offset + len > PAGE_SIZE as usize {
            self.fail(frame, offset, len);
        }
        Hpa::new(frame.0 * PAGE_SIZE + offset as u64)
    }
}

impl Machine for Hands<'_> {
    #[inline(always)]
    fn line(&self, frame: Mfn, line: usize) -> [u64; LINE] {
        let at = self.at(frame, line % (ENTRIES / LINE) * LINE * 8, LINE * 8).as_u64();
        core::array::from_fn(|index| Direct.read_u64(Hpa::new(at + index as u64 * 8)))
    }

    #[inline(always)]
    fn word(&self, frame: Mfn, index: usize) -> u64 {
        Direct.read_u64(self.at(frame, index % ENTRIES * 8, 8))
    }

    #[inline(always)]
    fn replace(&mut self, frame: Mfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        let at = self.at(frame, index % ENTRIES * 8, 8);
        if Direct.replace_u64(at, old, new) { Ok(()) } else { Err(Direct.read_u64(at)) }
    }

    fn clear(&mut self, frame: Mfn) {
        mm::zero(self.at(frame, 0, PAGE_SIZE as usize), PAGE_SIZE);
    }

    fn fill_hole(&mut self, frame: Mfn) {
        for index in HOLE {
            let entry = self.memory.hole.iter().find(|(place, _)| *place == index);
            Direct.write_u64(self.at(frame, index * 8, 8), entry.map_or(0, |(_, entry)| *entry));
        }
    }

    fn forget(&mut self) {
        // This processor is not in the guest now, and forgets before it is again.
        self.flush = true;
        self.flush_others(u64::MAX);
    }

    fn hide(&mut self, frames: &[Mfn]) {
        self.changes.0 += 1;
        if self.memory.is_lent {
            self.domain.withhold_frames(frames.iter().map(|frame| frame.0));
        }
    }

    fn show(&mut self, frames: &[Mfn]) {
        self.changes.1 += 1;
        if self.memory.is_lent {
            self.domain.lend_frames(frames.iter().map(|frame| frame.0));
        }
    }
}

impl Host for Hands<'_> {
    fn read(&self, frame: Mfn, offset: usize, buffer: &mut [u8]) {
        Direct.read(self.at(frame, offset, buffer.len()), buffer);
    }

    fn write(&mut self, frame: Mfn, offset: usize, bytes: &[u8]) {
        let at = self.at(frame, offset, bytes.len());
        // Most of what is written are answers of one word.
        match bytes.try_into() {
            Ok(word) if at.is_aligned(8) => Direct.write_u64(at, u64::from_le_bytes(word)),
            _ => Direct.write(at, bytes),
        }
    }

    fn invalidate(&mut self) {
        self.flush = true;
    }

    fn invalidate_on(&mut self, processors: u64) {
        self.flush |= processors >> self.own & 1 != 0;
        self.flush_others(processors);
    }

    fn wake(&mut self, processor: u32) {
        if let Some(vcpu) = self.domain.vcpus.get(processor as usize) {
            vcpu.signal(event::INTERRUPT);
        }
    }

    fn start(&mut self, processor: u32) {
        self.domain.start_processor(processor);
    }

    fn read_port(&mut self, port: u16, width: u8) -> u32 {
        let mut bytes = [0xff; 4];
        let len = usize::from(width).min(4);
        self.port(port, width, Transfer::Read(bytes.get_mut(..len).unwrap_or_default()));
        u32::from_le_bytes(bytes)
    }

    fn write_port(&mut self, port: u16, width: u8, value: u32) {
        let bytes = value.to_le_bytes();
        let len = usize::from(width).min(4);
        self.port(port, width, Transfer::Write(bytes.get(..len).unwrap_or_default()));
    }

    fn end_of_line(&mut self, line: u32) {
        self.domain.end_of_line(line);
    }

    fn now(&self) -> u64 {
        tsc::uptime_ns()
    }

    fn console_output(&mut self, bytes: &[u8]) -> usize {
        self.domain.console_write(bytes)
    }

    fn console_input(&mut self, buffer: &mut [u8]) -> usize {
        self.domain.take_typed(buffer)
    }

    fn cpuid(&self, leaf: u32, subleaf: u32) -> [u32; 4] {
        let host = x86::cpuid(leaf, subleaf);
        let guest = CpuInfo {
            vcpu_id: self.own,
            vcpus: self.domain.config.vcpus.into(),
            tsc_khz: tsc::khz() as u32,
            apic_id: self.own,
            apic_base: 0,
            cr4: CR4,
        };
        filter(leaf, subleaf, [host.eax, host.ebx, host.ecx, host.edx], &guest)
    }
}

/// Makes an access to a port itself.
fn forward(port: u16, transfer: Transfer<'_>) {
    match transfer {
        Transfer::Read([byte]) => *byte = inb(port),
        Transfer::Read(bytes @ [_, _]) => bytes.copy_from_slice(&inw(port).to_le_bytes()),
        Transfer::Read(bytes @ [_, _, _, _]) => bytes.copy_from_slice(&inl(port).to_le_bytes()),
        Transfer::Write(&[byte]) => outb(port, byte),
        Transfer::Write(&[low, high]) => outw(port, u16::from_le_bytes([low, high])),
        Transfer::Write(&[a, b, c, d]) => outl(port, u32::from_le_bytes([a, b, c, d])),
        Transfer::Read(_) | Transfer::Write(_) => {}
    }
}

/// Gives a paravirtual domain, whose memory was built so, its interface with these devices, and its first processor what it starts with.
///
/// # Errors
/// The page tables that were built are refused: a defect of the hypervisor.
pub fn start(
    ctx: &mut Context,
    domain: &Domain,
    layout: &Layout,
    built: Built,
    hardware: Hardware,
) -> Result<(), Refused> {
    let first = Mfn(layout.first());
    // There is memory for the account, or there is none for the domain.
    let mut types = Types::new(first, layout.frames() as usize).ok_or(Refused::NoTable)?;
    for frame in layout.hidden() {
        types.reserve(Mfn(frame))?;
    }
    let mut state = prepare(ctx, 0);
    let memory = Memory::new(domain, built.hole());
    let mut hands = Hands::new(domain, 0, &memory);
    let mut guest = Guest::new(&mut hands, built, types, hardware)?;
    if memory.is_lent {
        domain.lend_frames(reached(&guest).map(|frame| frame.0));
    }
    publish_time(&mut guest, &mut hands);
    state.registers = guest.start();
    put(ctx, &mut state, &mut guest, &mut hands);
    ctx.paravirtual = Some(state);
    domain.set_interface(Interface::new(guest, memory));
    Ok(())
}

/// Makes a processor one of a paravirtual domain, which waits for another one to start it.
pub fn wait(ctx: &mut Context, id: u32) {
    ctx.paravirtual = Some(prepare(ctx, id));
}

/// Makes a processor that of a paravirtual guest.
fn prepare(ctx: &mut Context, id: u32) -> Box<Paravirtual> {
    let area = Area::of(id);
    let control = &mut ctx.vmcb.control;
    control.intercept3 |= INTERCEPT_INTN;
    control.intercept3 &= !Intercept3::IRET.bits();
    // Page faults come to the gate.
    control.intercept_exceptions = !(1 << vector::PF);
    let save = &mut ctx.vmcb.save;
    let data = Segment { selector: 0, attributes: 0xc93, limit: u32::MAX, base: 0 };
    (save.ds, save.es, save.fs, save.gs) = (data, data, data, data);
    save.gdtr = Segment { base: area.gdt(), limit: abi::GDT_LIMIT, ..Segment::default() };
    save.idtr =
        Segment { base: area.gate_words() + word::IDT as u64, limit: word::IDT_LIMIT, ..Segment::default() };
    save.ldtr = Segment::default();
    let task = area.gate_words() + word::TSS as u64;
    save.tr = Segment { attributes: 0x8b, base: task, limit: word::TSS_LIMIT, selector: 0 };
    (save.cr4, save.efer, save.star, save.sfmask) = (CR4, EFER, sluice_gate::STAR, SFMASK);
    (save.lstar, save.cstar) = (area.gate_wide(), area.gate());
    save.g_pat = sluice_xenpv::PAT;
    Box::new(Paravirtual { registers: Registers::default(), deadline: None, segments: Default::default() })
}

/// The frames that devices of a guest's are to reach.
fn reached(guest: &Guest) -> impl Iterator<Item = Mfn> + '_ {
    let for_devices = |(_, counts): &(Mfn, Counts)| counts.is_for_devices();
    guest.types.frames().filter(for_devices).map(|(frame, _)| frame)
}

/// Checks that devices reach what the guest uses as memory, and nothing else.
///
/// # Panics
/// They do not: a defect of the hypervisor, by which a device could write a page table.
fn check_devices(domain: &Domain, guest: &Guest) {
    let mut lent = 0;
    domain.visit_lent(&mut |first, count| {
        for frame in (first..first + count).map(Mfn) {
            let counts = guest.types.counts(frame);
            let own = counts.is_some_and(|counts| counts.is_for_devices());
            assert!(own, "domain {}: its devices reach {frame}, which is {counts:?}", domain.name());
        }
        lent += count;
    });
    let wanted = reached(guest).count() as u64;
    assert!(lent == wanted, "domain {}: its devices reach {lent} frames, not {wanted}", domain.name());
    log::info!("domain {}: its devices reach {lent} frames, all of them memory", domain.name());
}

/// Updates of page tables after which they are counted.
#[cfg(feature = "count-tables")]
const COUNTED: u64 = 4096;

/// Counts all page tables from nothing when it is time to, or at the domain's end.
///
/// # Panics
/// They are not what they are thought to be: a defect of the hypervisor.
#[cfg(feature = "count-tables")]
fn count_tables(domain: &Domain, guest: &mut Guest, hands: &Hands<'_>, ends: bool) {
    let due = (guest.counters.updates + guest.counters.emulated) / COUNTED;
    if due <= guest.counters.verified && !ends {
        return;
    }
    match guest.verify(hands) {
        // When what is under way has come to its end.
        Ok(0) => {}
        Ok(_) => guest.counters.verified = due,
        Err(contradiction) => panic!("domain {}: {contradiction}", domain.name()),
    }
}

fn publish_time(guest: &mut Guest, hands: &mut Hands<'_>) {
    let now = tsc::now();
    let info = TimeInfo {
        version: 2,
        tsc_timestamp: now,
        system_time: tsc::uptime_ns_at(now),
        scale: Scale::from_khz(u32::try_from(tsc::khz()).unwrap_or(u32::MAX)),
        stable: true,
        stopped: false,
    };
    guest.set_time(hands, &info.to_bytes());
}

/// Takes the registers that the control block has.
fn take(ctx: &Context, registers: &mut Registers) {
    let save = &ctx.vmcb.save;
    (registers.gpr[0], registers.gpr[4]) = (save.rax, save.rsp);
    (registers.rip, registers.rflags) = (save.rip, save.rflags);
    (registers.cs, registers.ss) = (save.cs.selector, save.ss.selector);
    (registers.fs_base, registers.gs_base) = (save.fs.base, save.gs.base);
    registers.other_gs = save.kernel_gs_base;
}

/// Gives the registers back to the processor. Returns false if a selector of the kernel's has no descriptor that code may have; of a program's it is told.
fn put(ctx: &mut Context, state: &mut Paravirtual, guest: &mut Guest, hands: &mut Hands<'_>) -> bool {
    let mut valid = put_registers(ctx, state, guest, hands);
    if !valid && !guest.in_kernel() {
        valid = refuse(ctx, state, guest, hands);
    }
    guest.leave_host(hands);
    state.deadline = guest.deadline();
    valid
}

/// Has the kernel know of a program's selectors that cannot be put.
#[cold]
#[inline(never)]
fn refuse(ctx: &mut Context, state: &mut Paravirtual, guest: &mut Guest, hands: &mut Hands<'_>) -> bool {
    let after = guest.refuse_selectors(hands, &mut state.registers);
    after == After::Enter && put_registers(ctx, state, guest, hands)
}

#[inline(always)]
fn put_registers(ctx: &mut Context, state: &mut Paravirtual, guest: &mut Guest, hands: &Hands<'_>) -> bool {
    let Paravirtual { registers, segments: known, .. } = state;
    let segments = (ctx.vmcb.save.cs.selector, ctx.vmcb.save.ss.selector, ctx.vmcb.save.cpl);
    let root = guest.active_root().0 * PAGE_SIZE;
    if hands.flush || ctx.vmcb.save.cr3 != root {
        ctx.vmcb.control.tlb_control = 1;
    }
    let save = &mut ctx.vmcb.save;
    (save.rax, save.rsp) = (registers.gpr[0], registers.gpr[4]);
    (save.rip, save.rflags) = (registers.rip, registers.rflags);
    (save.fs.base, save.gs.base) = (registers.fs_base, registers.gs_base);
    save.kernel_gs_base = registers.other_gs;
    if let Some((selector, descriptor)) = registers.gs.take() {
        save.gs = Segment { base: registers.gs_base, ..segment(selector, descriptor) };
    }
    if let Some((base, limit)) = guest.take_ldt() {
        // A table of none has a limit that lets nothing be read (APM vol 2, 4.8.2): its selector is null.
        let attributes = if limit == 0 { 0 } else { LOCAL_TABLE };
        save.ldtr = Segment { base, limit, attributes, selector: 0 };
    }
    save.cr3 = root;
    save.cr0 = CR0 | if guest.is_task_switched() { CR0_TS } else { 0 };
    save.cpl = 3;
    ctx.vmcb.control.interrupt_shadow = 0;
    if segments == (registers.cs, registers.ss, 3) {
        return true;
    }
    let Some(known) = known.get_mut(usize::from(guest.in_kernel())) else { return false };
    let current = known.changes == guest.descriptor_changes();
    if current && (known.code.selector, known.stack.selector) == (registers.cs, registers.ss) {
        (ctx.vmcb.save.cs, ctx.vmcb.save.ss) = (known.code, known.stack);
        return true;
    }
    let code = guest.descriptor(hands, registers.cs).map(|word| segment(registers.cs, word));
    let stack = guest.descriptor(hands, registers.ss).map(|word| segment(registers.ss, word));
    let (Some(code), Some(stack)) = (code, stack) else { return false };
    // Bit 3 of the type: code; bit 1 of data: writable.
    if code.attributes & 8 == 0 || stack.attributes & 0xa != 2 {
        return false;
    }
    *known = Segments { changes: guest.descriptor_changes(), code, stack };
    // What IRET takes at privilege level 0, to 64-bit code: long mode, DPL 3; and a stack with that DPL.
    if !guest.in_kernel() && code.attributes & 0x260 == 0x260 && stack.attributes & 0x60 == 0x60 {
        guest.allow_program(registers.cs, registers.ss);
    }
    (ctx.vmcb.save.cs, ctx.vmcb.save.ss) = (code, stack);
    true
}

/// A descriptor as the control block has it (APM vol 2, 15.5.1).
const fn segment(selector: u16, descriptor: u64) -> Segment {
    let limit = (descriptor & 0xffff | descriptor >> 32 & 0xf_0000) as u32;
    let granular = descriptor >> 55 & 1 != 0;
    Segment {
        selector,
        attributes: (descriptor >> 40 & 0xff | descriptor >> 44 & 0xf00) as u16,
        limit: if granular { limit << 12 | 0xfff } else { limit },
        base: descriptor >> 16 & 0xff_ffff | descriptor >> 32 & 0xff00_0000,
    }
}

/// Has a guest that was interrupted in the gate go on with its VMMCALL, with the registers of who called.
fn exit_gate(ctx: &mut Context, registers: &Registers, gate: u64) {
    let save = &mut ctx.vmcb.save;
    (save.rax, save.rsp) = (registers.gpr[0], registers.gpr[4]);
    if save.rip != gate {
        save.rip = gate + sluice_gate::exit();
    }
}

/// Looks at the processor's timer and the guest's console, and tells the processor of events.
pub fn attend(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) {
    let (Some(mut state), Some(interface)) = (ctx.paravirtual.take(), domain.interface()) else { return };
    let mut guest = interface.guest.lock();
    let mut hands = Hands::new(domain, vcpu.id, &interface.memory);
    guest.run(vcpu.id);
    publish(domain, &mut guest, &hands);
    let registers = &mut state.registers;
    guest.enter_host(&hands);
    let start = guest.take_start();
    let in_gate = start.is_none() && ctx.vmcb.save.cpl == 0;
    match start {
        Some(start) => *registers = *start,
        None => take(ctx, registers),
    }
    guest.tick(&mut hands);
    guest.serve_console(&mut hands);
    let lines = domain.take_lines();
    for line in (0..LINES).filter(|line| lines >> line & 1 != 0) {
        guest.raise_line(&mut hands, line);
    }
    if in_gate && guest.leave_gate(&mut hands, registers) == Asked::Call {
        // The exit that comes next is the one to tell of events, with the guest's own registers.
        exit_gate(ctx, registers, Area::of(vcpu.id).gate());
        state.deadline = guest.deadline();
        drop(guest);
        ctx.paravirtual = Some(state);
        return;
    }
    let after = guest.deliver(&mut hands, registers);
    let put = put(ctx, &mut state, &mut guest, &mut hands);
    drop(guest);
    ctx.paravirtual = Some(state);
    if let After::End(end) = after {
        domain.end(reason(end));
    } else if !put {
        domain.end(EndReason::InvalidState);
    }
}

/// Reports are made without asking the guest's processors.
fn publish(domain: &Domain, guest: &mut Guest, hands: &Hands<'_>) {
    guest.count_gate(hands);
    domain.asked.publish(guest.counters.named().map(|(_, count)| count));
}

/// Answers a call of the kernel's that changes nothing of the processor but RAX, and needs none of its other registers. Returns false if there is more to
/// do, and nothing was done.
#[inline(always)]
fn answer_quickly(vcpu: &Vcpu, ctx: &mut Context, guest: &mut Guest, hands: &mut Hands<'_>) -> bool {
    let vmcb = &mut *ctx.vmcb;
    let (control, save) = (&mut vmcb.control, &mut vmcb.save);
    let at_exit = Area::of(vcpu.id).gate() + sluice_gate::exit();
    if save.rax != QUICK || save.rip != at_exit || control.exit_code as u32 != exit_code::VMMCALL {
        return false;
    }
    if save.cpl != 0 || save.cr3 != guest.active_root().0 * PAGE_SIZE {
        return false;
    }
    let Some(state) = ctx.paravirtual.as_deref() else { return false };
    let [_, rcx, rdx, _, _, _, rsi, rdi, _, _, r10, r11, ..] = state.registers.gpr;
    let Some(answer) = guest.answer_quickly(hands, [rdi, rsi, rdx, r10]) else { return false };
    vcpu.exits.count(Exit::Hypercall as usize);
    save.rax = answer;
    // As SYSRET does.
    (save.rip, save.rflags) = (rcx, sluice_xenpv::sane(r11));
    (save.cs, save.ss, save.cpl) = (KERNEL_CODE, KERNEL_STACK, 3);
    control.interrupt_shadow = 0;
    if hands.flush {
        control.tlb_control = 1;
    }
    guest.leave_host(hands);
    guest.counters.hides += hands.changes.0;
    guest.counters.shows += hands.changes.1;
    true
}

/// Handles one exit.
pub fn dispatch(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) -> Flow {
    let Some(interface) = domain.interface() else { return Flow::Leave };
    let mut locked = interface.guest.lock();
    let guest = &mut *locked;
    let mut hands = Hands::new(domain, vcpu.id, &interface.memory);
    guest.run(vcpu.id);
    guest.enter_host(&hands);
    if answer_quickly(vcpu, ctx, guest, &mut hands) {
        return Flow::Enter;
    }
    let Some(mut state) = ctx.paravirtual.take() else { return Flow::Leave };
    let registers = &mut state.registers;
    take(ctx, registers);
    let after = handle(vcpu, ctx, guest, &mut hands, registers);
    let after = match after {
        Some(After::Enter) => Some(guest.deliver(&mut hands, registers)),
        after => after,
    };
    guest.counters.hides += hands.changes.0;
    guest.counters.shows += hands.changes.1;
    #[cfg(feature = "count-tables")]
    count_tables(domain, guest, &hands, matches!(after, Some(After::End(_))));
    let deadline = state.deadline;
    let valid = put(ctx, &mut state, guest, &mut hands);
    // The processor's own timer is set where exits are attended to.
    let is_timer_set = state.deadline != deadline;
    if !valid || after != Some(After::Enter) {
        if hands.memory.is_lent && matches!(after, Some(After::End(_))) {
            check_devices(domain, guest);
        }
        // For who says what it was like, if this is its end.
        ctx.regs = state.registers.gpr;
        publish(domain, guest, &hands);
    }
    drop(locked);
    ctx.paravirtual = Some(state);
    match after {
        None => crash::end(domain, vcpu, ctx, EndReason::UnexpectedExit(ctx.vmcb.control.exit_code as u32)),
        Some(_) if !valid => crash::end(domain, vcpu, ctx, EndReason::InvalidState),
        Some(After::Enter) if !is_timer_set => Flow::Enter,
        Some(After::Enter | After::Yield) => Flow::Attend,
        Some(After::Block) => block(domain, vcpu, ctx),
        Some(After::Down) => {
            vcpu.set_state(RunState::Off);
            Flow::Leave
        }
        Some(After::End(end @ (End::Lost | End::Crash))) => crash::end(domain, vcpu, ctx, reason(end)),
        Some(After::End(end)) => {
            domain.end(reason(end));
            Flow::Leave
        }
    }
}

fn reason(end: End) -> EndReason {
    match end {
        End::PowerOff => EndReason::PowerOff,
        End::Reboot => EndReason::Reset,
        End::Crash => EndReason::Panic,
        End::Lost => EndReason::TripleFault,
    }
}

/// What an exit asks for. `None`: it is none that there should be.
fn handle(
    vcpu: &Vcpu,
    ctx: &Context,
    guest: &mut Guest,
    hands: &mut Hands<'_>,
    registers: &mut Registers,
) -> Option<After> {
    let control = &ctx.vmcb.control;
    let code = control.exit_code as u32;
    if ctx.vmcb.save.cpl == 0 {
        return handle_gate(vcpu, code, guest, hands, registers);
    }
    Some(match code {
        exit_code::CPUID => {
            vcpu.exits.count(Exit::Cpuid as usize);
            guest.cpuid(hands, registers);
            registers.rip = registers.rip.wrapping_add(2);
            After::Enter
        }
        SOFTWARE_INTERRUPT => {
            vcpu.exits.count(Exit::Exception as usize);
            guest.software_interrupt_at(hands, registers)
        }
        EXCEPTION..=LAST_EXCEPTION => {
            vcpu.exits.count(Exit::Exception as usize);
            let error = control.exit_info1 as u32;
            match (code - EXCEPTION) as u8 {
                vector::BP => guest.software_interrupt(hands, registers, vector::BP, 1),
                vector::UD => guest.invalid_opcode(hands, registers),
                vector::NM => guest.device_not_available(hands, registers),
                vector::GP => guest.general_protection(hands, registers, error),
                vector::MC => return None,
                vector => {
                    let error = (WITH_ERROR >> vector & 1 != 0).then_some(error);
                    guest.exception(hands, registers, vector, error, 0)
                }
            }
        }
        // Instructions that a program of the guest's may not, and that exit before the processor says so.
        exit_code::RDPMC => {
            vcpu.exits.count(Exit::Instruction as usize);
            guest.exception(hands, registers, vector::GP, Some(0), 0)
        }
        exit_code::VMRUN..=exit_code::SKINIT
        | exit_code::INVLPGA
        | exit_code::MONITOR
        | exit_code::MWAIT
        | exit_code::MWAIT_CONDITIONAL
        | exit_code::XSETBV
        | exit_code::RDPRU => {
            vcpu.exits.count(Exit::Instruction as usize);
            guest.exception(hands, registers, vector::UD, None, 0)
        }
        _ => return None,
    })
}

/// What an exit from the gate asks for: what SYSCALL does or a page fault, whether it was VMMCALL that asked or the guest's stack cannot be reached.
fn handle_gate(
    vcpu: &Vcpu,
    code: u32,
    guest: &mut Guest,
    hands: &mut Hands<'_>,
    registers: &mut Registers,
) -> Option<After> {
    match code {
        exit_code::VMMCALL => vcpu.exits.count(Exit::Hypercall as usize),
        EXCEPTION..=LAST_EXCEPTION if code - EXCEPTION != u32::from(vector::MC) => {
            vcpu.exits.count(Exit::Exception as usize);
        }
        _ => return None,
    }
    let gate = Area::of(vcpu.id).gate();
    let wide = registers.rip != gate;
    // Most are there, with nothing to be put right.
    let is_call = registers.rip == gate + sluice_gate::exit();
    Some(match if is_call { Asked::Call } else { guest.leave_gate(hands, registers) } {
        Asked::Nothing => After::Enter,
        Asked::Call => guest.syscall(hands, registers, wide),
        Asked::Fault { error, address } => guest.page_fault(hands, registers, error, address),
    })
}

/// Waits for an event.
fn block(domain: &Domain, vcpu: &Vcpu, ctx: &Context) -> Flow {
    let now = tsc::now();
    vcpu.exits.count(Exit::Hlt as usize);
    let sleeps = vcpu.halt(domain, ctx.timer_deadline(now).unwrap_or(u64::MAX));
    if sleeps { Flow::Leave } else { Flow::Attend }
}

/// Memory of a domain while it is built.
pub struct Frames;

impl sluice_xenpv::build::Memory for Frames {
    fn write(&mut self, frame: Mfn, offset: u64, bytes: &[u8]) {
        mm::Direct.write(Hpa::new(frame.0 * PAGE_SIZE + offset), bytes);
    }
}
