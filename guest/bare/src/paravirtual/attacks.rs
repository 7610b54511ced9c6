//! What is tried one by one.

use crate::Score;
use crate::interface::{call, hypercall, reads, survives, writes};
use crate::memory::{BASE, GDT, LARGE, M2P, Machine, PRESENT, USER, WRITE, map, operate, update};

/// Operations of HYPERVISOR_mmuext_op.
pub const PIN_L1: u64 = 0;
pub const UNPIN: u64 = 4;
const NEW_ROOT: u64 = 5;
const NEW_USER_ROOT: u64 = 15;

/// The first page that nobody needs.
pub fn spare(machine: &Machine) -> u64 {
    machine.tables + machine.table_count + 2
}

/// Tries all.
pub fn run(machine: &Machine, score: &mut Score) {
    // Its first root has been pinned by the hypervisor; every other page of its tables is one by what refers to it.
    for table in 0..machine.table_count {
        a_table(machine, score, machine.frame(machine.tables + table));
    }
    foreign_frames(machine, score);
    upper_levels(machine, score);
    levels_and_pins(machine, score);
    stale(machine, score);
    semi_writable(machine, score);
    descriptors(machine, score);
    local_descriptors(machine, score);
    privilege(machine, score);
    hypervisors_addresses(machine, score);
}

/// Whether the alias can be written; its mapping is taken away again.
fn opened(machine: &Machine, address: u64, before: u64) -> bool {
    let (table, index) = machine.leaf(address);
    let entry = machine.entry(table, index);
    let own = entry >> 12 & 0xff_ffff_ffff;
    let open = entry & (PRESENT | WRITE) == PRESENT | WRITE && own != before >> 12 & 0xff_ffff_ffff;
    if open {
        map(address, before, true);
    }
    open
}

/// A writable mapping of a page table in each way that there is to ask for one, and writes to it.
fn a_table(machine: &Machine, score: &mut Score, table: u64) {
    let alias = machine.address(spare(machine));
    let (leaf, index) = machine.leaf(alias);
    let before = machine.entry(leaf, index);
    let wanted = table << 12 | PRESENT | WRITE;
    for entry in [wanted, wanted | USER, wanted | 1 << 52, wanted | 1 << 63, wanted | 1 << 8] {
        score.attempt("va_mapping", map(alias, entry, true) == 0 || opened(machine, alias, before));
        let at = leaf << 12 | index << 3;
        for kind in [0, 2, 3] {
            score.attempt("mmu_update", update(at | kind, entry) == 0 || opened(machine, alias, before));
        }
        // By a store into the table itself, which is an update.
        let place = machine.address(machine.page_of(leaf)) + index * 8;
        score.attempt("store", writes(place, entry) || opened(machine, alias, before));
        let exchanged = survives!("xchg [rdi], rsi"; in("rdi") place, inout("rsi") entry => _);
        score.attempt("exchange", exchanged || opened(machine, alias, before));
    }
    // Read-only first, which is allowed, and then the one bit.
    score.attempt("read_only", map(alias, table << 12 | PRESENT, true) != 0);
    let place = machine.address(machine.page_of(leaf)) + index * 8;
    let set = survives!("lock or byte ptr [rdi], 2"; in("rdi") place);
    score.attempt("bit", set || machine.entry(leaf, index) & WRITE != 0);
    // Nothing but an update comes of a write where it is read-only: a word of the table that means nothing stays as it was.
    let word = reads(alias);
    let written = writes(alias, 0xdead_0001_beef_0001);
    score.attempt("alias", written && reads(alias) != word);
    map(alias, before, true);
    // As an argument that the hypervisor writes to: descriptors, its processor's page.
    let request = [table, 0u64];
    let moved = hypercall(call::VCPU_OP, [10, 0, request.as_ptr() as u64, 0]);
    score.attempt("vcpu_info", moved == 0);
    score.attempt("descriptor", hypercall(call::UPDATE_DESCRIPTOR, [table << 12, 0, 0, 0]) == 0);
    score.attempt("gdt", hypercall(call::SET_GDT, [request.as_ptr() as u64, 512, 0, 0]) == 0);
    let answer = hypercall(call::XEN_VERSION, [1, machine.address(machine.page_of(table)), 0, 0]);
    score.attempt("copied_to", answer == 0);
}

/// Frames that are not its own, or that the hypervisor keeps.
fn foreign_frames(machine: &Machine, score: &mut Score) {
    let alias = machine.address(spare(machine));
    let (leaf, index) = machine.leaf(alias);
    let before = machine.entry(leaf, index);
    let first = machine.frame(0);
    // Behind its own pages are `struct shared_info`, which it may have, and then the hypervisor's.
    let hidden = (1..9).map(|after| first + machine.pages + after);
    let others = [0, 1, 0x100, 0x200, 0x3ff, first - 1, first - 512, first + (1 << 18), 0xff_ffff_ffff];
    for frame in hidden.chain(others) {
        for rights in [PRESENT, PRESENT | WRITE, PRESENT | WRITE | USER] {
            score.attempt("foreign_mapping", map(alias, frame << 12 | rights, true) == 0);
            score.attempt("foreign_update", update(leaf << 12 | index << 3, frame << 12 | rights) == 0);
        }
        for level in 0..4 {
            score.attempt("foreign_pin", operate(PIN_L1 + level, frame, 0) == 0);
        }
        score.attempt("foreign_unpin", operate(UNPIN, frame, 0) == 0);
        score.attempt("foreign_root", operate(NEW_ROOT, frame, 0) == 0);
        score.attempt("foreign_user_root", frame != 0 && operate(NEW_USER_ROOT, frame, 0) == 0);
        score.attempt("foreign_word", update(frame << 12, 0) == 0);
        score.attempt("foreign_number", update(frame << 12 | 1, 0) == 0);
        score.attempt("foreign_descriptor", hypercall(call::UPDATE_DESCRIPTOR, [frame << 12, 0, 0, 0]) == 0);
        let list = [frame];
        score.attempt("foreign_gdt", hypercall(call::SET_GDT, [list.as_ptr() as u64, 512, 0, 0]) == 0);
        let request = [frame, 0u64];
        score.attempt("foreign_info", hypercall(call::VCPU_OP, [10, 0, request.as_ptr() as u64, 0]) == 0);
    }
    score.attempt("foreign_kept", opened(machine, alias, before));
    map(alias, before, true);
}

/// Large pages, tables that refer to themselves or to the wrong level, and entries of the hypervisor's.
fn upper_levels(machine: &Machine, score: &mut Score) {
    let alias = machine.address(spare(machine));
    let tables = [1, 2, 3, 4].map(|level| machine.table(alias, level));
    let memory = machine.frame(spare(machine));
    for (above, table) in (2u32..).zip(&tables[1..]) {
        // A place that nothing uses.
        let index = if above == 4 { 300 } else { 200 };
        let at = table << 12 | index << 3;
        for flags in [LARGE | PRESENT, LARGE | PRESENT | WRITE, LARGE | PRESENT | WRITE | USER] {
            for frame in [memory & !511, memory, 0] {
                score.attempt("large", update(at, frame << 12 | flags) == 0);
            }
        }
        for (level, target) in (1u32..).zip(tables) {
            if level + 1 != above {
                for rights in [PRESENT, PRESENT | WRITE, PRESENT | WRITE | USER] {
                    score.attempt("level", update(at, target << 12 | rights) == 0);
                }
            }
        }
        for flag in [1 << 3, 1 << 4, 1 << 8] {
            score.attempt("memory_type", update(at, tables[above as usize - 2] << 12 | PRESENT | flag) == 0);
        }
        // Memory that it can write is no table.
        score.attempt("not_a_table", update(at, memory << 12 | PRESENT | WRITE) == 0);
    }
    for index in 256..272 {
        for entry in [0, tables[2] << 12 | PRESENT | WRITE, tables[3] << 12 | PRESENT] {
            score.attempt("hole", update(tables[3] << 12 | index << 3, entry) == 0);
        }
        let place = machine.address(machine.tables) + index * 8;
        score.attempt("hole_store", writes(place, tables[2] << 12 | PRESENT | WRITE));
    }
}

/// Pins at other levels, of what can be written, twice, and never.
fn levels_and_pins(machine: &Machine, score: &mut Score) {
    let alias = machine.address(spare(machine));
    for (level, frame) in (1..5).map(|level| (u64::from(level), machine.table(alias, level))) {
        for wanted in 1..5 {
            if wanted != level {
                score.attempt("pinned_as", operate(PIN_L1 + wanted - 1, frame, 0) == 0);
            }
        }
        if level == 4 {
            score.attempt("pinned_twice", operate(PIN_L1 + 3, frame, 0) == 0);
        } else {
            score.attempt("unpinned", operate(UNPIN, frame, 0) == 0);
            score.attempt("root", operate(NEW_ROOT, frame, 0) == 0);
            score.attempt("user_root", operate(NEW_USER_ROOT, frame, 0) == 0);
        }
    }
    let writable = machine.frame(spare(machine));
    for level in 0..4 {
        score.attempt("pinned_writable", operate(PIN_L1 + level, writable, 0) == 0);
    }
    score.attempt("root_writable", operate(NEW_ROOT, writable, 0) == 0);
    // Of somebody else's name.
    let request = [PIN_L1, writable, 0];
    for whose in [0, 1, 0x7ff1, 0x7ff2, 0x7ff4] {
        let answer = hypercall(call::MMUEXT_OP, [request.as_ptr() as u64, 1, 0, whose]);
        score.attempt("for_others", answer == 0);
    }
    for count in [4097, 1 << 20, u64::MAX >> 1] {
        score.attempt(
            "long_batch",
            hypercall(call::MMUEXT_OP, [request.as_ptr() as u64, count, 0, 0x7ff0]) == 0,
        );
        score.attempt(
            "long_multicall",
            hypercall(call::MULTICALL, [request.as_ptr() as u64, count, 0, 0]) == 0,
        );
    }
}

/// A page becomes a table after its last writable mapping went away without a flush: a processor that was not told would write it all the same.
fn stale(machine: &Machine, score: &mut Score) {
    let (page, other) = (spare(machine) + 1, spare(machine) + 2);
    let (address, alias) = (machine.address(page), machine.address(other));
    let frame = machine.frame(page);
    let kept = machine.frame(other) << 12 | PRESENT | WRITE;
    for round in 0..64u64 {
        map(address, frame << 12 | PRESENT | WRITE, true);
        map(alias, frame << 12 | PRESENT | WRITE, true);
        // Both are in the processor's translations now.
        writes(address, 0);
        writes(alias, 0);
        map(address, frame << 12 | PRESENT, false);
        map(alias, if round & 1 == 0 { frame << 12 | PRESENT } else { kept }, false);
        let pinned = operate(PIN_L1, frame, 0) == 0;
        score.attempt("not_pinned", !pinned);
        let evil = machine.root() << 12 | PRESENT | WRITE;
        for place in [address, alias] {
            writes(place + 8 * (round & 511), evil);
            score.attempt("stale", reads(address + 8 * (round & 511)) == Some(evil));
        }
        operate(UNPIN, frame, 0);
        map(alias, kept, true);
        map(address, frame << 12 | PRESENT | WRITE, true);
        unsafe { core::ptr::write_bytes(address as *mut u8, 0, 4096) };
    }
    // While it is a table, nobody may write it.
    map(address, frame << 12 | PRESENT, true);
    operate(PIN_L1, frame, 0);
    for rights in [PRESENT | WRITE, PRESENT | WRITE | USER] {
        score.attempt("reopened", map(address, frame << 12 | rights, true) == 0);
        score.attempt("reopened_elsewhere", map(alias, frame << 12 | rights, true) == 0);
    }
    // The hypervisor does not write what is asked for into it either.
    let (level_1, index) = machine.leaf(alias);
    let foreign = [frame << 12, 1 | (machine.frame(0) - 1) << 12 | WRITE];
    score.attempt("table_entry", hypercall(call::MMU_UPDATE, [foreign.as_ptr() as u64, 1, 0, 0x7ff0]) == 0);
    score.attempt("lowest_entry", update(level_1 << 12 | index << 3, frame << 12 | PRESENT | WRITE) == 0);
    operate(UNPIN, frame, 0);
    map(address, frame << 12 | PRESENT | WRITE, true);
}

/// Semi-writable page tables, which are writable as little as others, and foreign frames, alone and among its own.
fn semi_writable(machine: &Machine, score: &mut Score) {
    let own = machine.frame(spare(machine));
    let say = |list: &[u64], count: u64, what: u64| {
        hypercall(call::SEMI_WRITABLE, [list.as_ptr() as u64, count, what, 0]) == 0
    };
    for what in [1, 0] {
        for frame in [0, 1, machine.frame(0) - 1, machine.frame(0) + machine.pages + 1, u64::MAX] {
            score.attempt("semi_foreign", say(&[frame], 1, what));
            score.attempt("semi_among_own", say(&[own, frame, own], 3, what));
        }
        score.attempt("semi_many", say(&[own], 513, what));
        score.attempt("semi_all", say(&[own], u64::MAX, what));
    }
    score.attempt("semi_other", say(&[own], 1, 2));
    score.attempt("semi_list", hypercall(call::SEMI_WRITABLE, [GDT, 16, 1, 0]) == 0);
    for table in 0..machine.table_count {
        let table = machine.frame(machine.tables + table);
        // It may be said, and opens nothing.
        say(&[table], 1, 1);
        a_table(machine, score, table);
        say(&[table], 1, 0);
        a_table(machine, score, table);
    }
    say(&[own, machine.frame(spare(machine) + 1)], 2, 1);
    stale(machine, score);
    say(&[own, machine.frame(spare(machine) + 1)], 2, 0);
    stale(machine, score);
}

/// Descriptors of gates, of the system's, and of privilege.
fn descriptors(machine: &Machine, score: &mut Score) {
    let page = spare(machine) + 3;
    let (address, frame) = (machine.address(page), machine.frame(page));
    let list = [frame];
    let set = |entries: u64| hypercall(call::SET_GDT, [list.as_ptr() as u64, entries, 0, 0]);
    score.attempt("writable_gdt", set(512) == 0);
    score.attempt("long_gdt", set(14 * 512 + 1) == 0 || set(u64::MAX) == 0);
    for kind in 0..16u64 {
        for privilege in 0..4u64 {
            // A gate or something of the system's.
            let bad = 1 << 47 | privilege << 45 | kind << 40 | 0xffff;
            writes(address, 0);
            writes(address + 64, bad);
            map(address, frame << 12 | PRESENT, true);
            score.attempt("system_descriptor", set(512) == 0);
            let updated = hypercall(call::UPDATE_DESCRIPTOR, [frame << 12, bad, 0, 0]) == 0;
            score.attempt("written_descriptor", updated);
            map(address, frame << 12 | PRESENT | WRITE, true);
            // Code and data of another privilege become its own.
            writes(address + 64, bad | 1 << 44);
            map(address, frame << 12 | PRESENT, true);
            let taken = set(512) == 0;
            let privileged = reads(address + 64).is_some_and(|word| word >> 45 & 3 != 3);
            score.attempt("privileged_descriptor", taken && privileged);
            score.attempt(
                "writable_descriptors",
                map(address, frame << 12 | PRESENT | WRITE, true) == 0 && taken,
            );
            score.attempt(
                "written_gdt",
                taken && writes(address + 72, bad) && reads(address + 72) == Some(bad),
            );
            hypercall(call::SET_GDT, [0, 0, 0, 0]);
            map(address, frame << 12 | PRESENT | WRITE, true);
            writes(address + 64, 0);
        }
    }
}

/// Local descriptor tables of what can be written, of the hypervisor's, of page tables, and too long ones; and writes to one.
fn local_descriptors(machine: &Machine, score: &mut Score) {
    const SET_LDT: u64 = 13;
    let page = spare(machine) + 3;
    let (address, frame) = (machine.address(page), machine.frame(page));
    let table = machine.address(machine.tables);
    for (place, entries) in [
        (address, 1),
        (table, 1),
        (GDT, 16),
        (GDT + 16 * 4096, 16),
        (M2P, 16),
        (address + 8, 1),
        (address, 16 * 512 + 1),
        (address, u64::from(u32::MAX)),
        (1 << 47, 1),
    ] {
        score.attempt("local_table", operate(SET_LDT, place, entries) == 0);
    }
    for kind in 0..16u64 {
        let bad = 1 << 47 | kind << 40 | 0xffff;
        writes(address, bad);
        map(address, frame << 12 | PRESENT, true);
        score.attempt("local_system", operate(SET_LDT, address, 1) == 0);
        map(address, frame << 12 | PRESENT | WRITE, true);
        // Of another privilege: it becomes its own.
        writes(address, bad | 1 << 44);
        map(address, frame << 12 | PRESENT, true);
        let taken = operate(SET_LDT, address, 1) == 0;
        let privileged = reads(address).is_some_and(|word| word >> 45 & 3 != 3);
        score.attempt("local_privilege", taken && privileged);
        score.attempt("local_reopened", taken && map(address, frame << 12 | PRESENT | WRITE, true) == 0);
        score.attempt("local_written", taken && writes(address, bad) && reads(address) == Some(bad));
        score.attempt("no_local_table", !taken);
        operate(SET_LDT, 0, 0);
        map(address, frame << 12 | PRESENT | WRITE, true);
        writes(address, 0);
    }
}

/// Privilege by a return, and instructions that need it.
fn privilege(machine: &Machine, score: &mut Score) {
    // Selectors without descriptors, and programs without page tables, would be its end.
    for (cs, ss) in [(0xe030u64, 0xe028u64), (0xe031, 0xe029), (0xe032, 0xe02a)] {
        let got: u64;
        let flags = 0x3_7202u64;
        unsafe {
            core::arch::asm!(
                "push rbx", "push rbp",
                "lea rcx, [rip + 77f]",
                "mov [rip + bare_recover_at], rcx",
                "mov [rip + bare_recover_sp], rsp",
                "mov r15, 3",
                "mov r14, rsp",
                "lea rcx, [rip + 78f]",
                "push rsi", "push r14", "push rdx", "push rdi", "push rcx",
                // How to return, RCX, R11, RAX.
                "push 0", "push 0", "push 0", "push 0",
                "mov eax, 23", "syscall",
                "78:", "mov r15d, cs",
                "77:", "pop rbp", "pop rbx",
                inout("rdi") cs => _, inout("rsi") ss => _, inout("rdx") flags => _, out("r15") got, out("r14") _,
                out("rcx") _, out("r11") _, out("rax") _,
            );
        }
        score.attempt("privilege", got & 3 != 3);
    }
    let root = machine.root() << 12;
    score.attempt("cr3", survives!("mov cr3, rax"; in("rax") root));
    score.attempt("lgdt", survives!("lgdt [rdi]"; in("rdi") BASE));
    score.attempt("lidt", survives!("lidt [rdi]"; in("rdi") BASE));
    score.attempt("lldt", survives!("lldt ax"; in("rax") 0));
    score.attempt("ltr", survives!("ltr ax"; in("rax") 8));
    score.attempt("invlpg", survives!("invlpg [rdi]"; in("rdi") BASE));
    score.attempt("sysret", survives!("sysretq"; out("rax") _));
    score.attempt("vmmcall", survives!("vmmcall"; inout("rax") 0u64 => _));
    // As what follows a SYSCALL, whose return address is in RCX: HYPERVISOR_xen_version, which everybody may ask for.
    let version = survives!("lea rcx, [rip + 76f]", "vmmcall", "76:"; inout("rax") call::XEN_VERSION => _, in("rdi") 0, in("rsi") 0);
    score.attempt("vmmcall_as_syscall", version);
    score.attempt("vmrun", survives!("vmrun rax"; in("rax") root));
    score.attempt("vmload", survives!("vmload rax"; in("rax") root));
    score.attempt("clgi", survives!("clgi"; out("rax") _));
    score.attempt("swapgs", survives!("swapgs"; out("rax") _));
    for msr in [0xc000_0081u32, 0xc000_0082, 0xc001_0117, 0xc001_0114] {
        let lstar = survives!("mov ecx, edi", "wrmsr"; in("rdi") u64::from(msr), in("rax") 0, in("rdx") 0);
        score.attempt("wrmsr", lstar);
    }
}

/// The hypervisor's part of addresses, by itself and as an argument.
fn hypervisors_addresses(machine: &Machine, score: &mut Score) {
    let first = machine.frame(0);
    let places = [
        M2P,
        M2P + first * 8,
        M2P + (first + machine.pages + 2) * 8,
        GDT,
        GDT + 14 * 4096,
        GDT + 16 * 4096,
        GDT + 17 * 4096,
        GDT + 18 * 4096,
        0xffff_87ff_ffff_f000,
        0xffff_8000_0000_0000 - 8,
        0x8000_0000_0000,
    ];
    let table = M2P..M2P + (1 << 38);
    for place in places {
        score.attempt("written", writes(place, 0));
        if !table.contains(&place) && !(GDT..GDT + 16 * 4096).contains(&place) {
            score.attempt("read", reads(place).is_some());
        }
        for (number, arguments) in [
            (call::MMU_UPDATE, [place, 1, 0, 0x7ff0]),
            (call::MMU_UPDATE, [BASE, 0, place, 0x7ff0]),
            (call::SET_GDT, [place, 512, 0, 0]),
            (call::MEMORY_OP, [12, place, 0, 0]),
            (call::MEMORY_OP, [9, place, 0, 0]),
            (call::MULTICALL, [place, 1, 0, 0]),
            (call::UPDATE_VA_MAPPING, [place, 0, 0, 0]),
            (call::XEN_VERSION, [1, place, 0, 0]),
            (call::XEN_VERSION, [3, place, 0, 0]),
            (call::XEN_VERSION, [6, place, 0, 0]),
            (call::VCPU_OP, [5, 0, place, 0]),
            (call::VCPU_OP, [4, 0, place, 0]),
            (call::VCPU_OP, [10, 0, place, 0]),
            (call::MMUEXT_OP, [place, 1, 0, 0x7ff0]),
            (call::SCHED_OP, [2, place, 0, 0]),
            (call::CALLBACK_OP, [0, place, 0, 0]),
            (call::EVENT_CHANNEL_OP, [4, place, 0, 0]),
            (call::SET_TRAP_TABLE, [place, 0, 0, 0]),
        ] {
            score.attempt("argument", hypercall(number, arguments) == 0);
        }
    }
    for base in [0x8000_0000_0000, 0xffff_7fff_ffff_ffff] {
        for which in 0..3 {
            score.attempt("base", hypercall(call::SET_SEGMENT_BASE, [which, base, 0, 0]) == 0);
        }
    }
}
