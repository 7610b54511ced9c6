//! What was asked of the interface, and what it refused.

use crate::abi::call;

/// Hypercalls by number, as they are called in reports.
const CALLS: [(u64, &str); 25] = [
    (call::SET_TRAP_TABLE, "call.set_trap_table"),
    (call::MMU_UPDATE, "call.mmu_update"),
    (call::SET_GDT, "call.set_gdt"),
    (call::STACK_SWITCH, "call.stack_switch"),
    (call::FPU_TASKSWITCH, "call.fpu_taskswitch"),
    (call::PLATFORM_OP, "call.platform_op"),
    (call::SET_DEBUGREG, "call.set_debugreg"),
    (call::GET_DEBUGREG, "call.get_debugreg"),
    (call::UPDATE_DESCRIPTOR, "call.update_descriptor"),
    (call::MEMORY_OP, "call.memory_op"),
    (call::MULTICALL, "call.multicall"),
    (call::UPDATE_VA_MAPPING, "call.update_va_mapping"),
    (call::SET_TIMER_OP, "call.set_timer_op"),
    (call::XEN_VERSION, "call.xen_version"),
    (call::CONSOLE_IO, "call.console_io"),
    (call::VM_ASSIST, "call.vm_assist"),
    (call::IRET, "call.iret"),
    (call::VCPU_OP, "call.vcpu_op"),
    (call::SET_SEGMENT_BASE, "call.set_segment_base"),
    (call::MMUEXT_OP, "call.mmuext_op"),
    (call::SCHED_OP, "call.sched_op"),
    (call::CALLBACK_OP, "call.callback_op"),
    (call::EVENT_CHANNEL_OP, "call.event_channel_op"),
    (call::PHYSDEV_OP, "call.physdev_op"),
    (call::SEMI_WRITABLE, "call.semi_writable"),
];

/// Operations on page tables by the numbers of HYPERVISOR_mmuext_op, as they are called in reports.
const OPERATIONS: [&str; 16] = [
    "tables.pin_l1",
    "tables.pin_l2",
    "tables.pin_l3",
    "tables.pin_l4",
    "tables.unpin",
    "tables.new_root",
    "tables.flush",
    "tables.flush_one",
    "tables.flush_multi",
    "tables.flush_one_multi",
    "tables.flush_all",
    "tables.flush_one_all",
    "tables.flush_cache",
    "tables.set_ldt",
    "tables.other",
    "tables.new_user_root",
];
/// Where those without a name are among them.
const OTHER: usize = 14;

/// How many counts there are.
pub const COUNTS: usize = CALLS.len() + OPERATIONS.len() + 15;

/// What was asked of the interface, and what it refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Hypercalls by number, those in batches too; the last are all that have none.
    calls: [u64; call::END as usize],
    /// Operations on page tables.
    operations: [u64; OPERATIONS.len()],
    /// Hypercalls that were answered by an error.
    pub errors: u64,
    /// Page-table updates.
    pub updates: u64,
    /// Operations on page types that were refused: the guest tried what would have been wrong.
    pub refused: u64,
    /// Frames that were made semi-writable.
    pub semi: u64,
    /// Frames that the guest has given back, now.
    pub given_back: u64,
    /// How often devices lost frames: each is a flush of what an IOMMU has cached.
    pub hides: u64,
    /// How often devices got frames.
    pub shows: u64,
    /// Instructions that were emulated.
    pub emulated: u64,
    /// Exceptions that went to the kernel.
    pub exceptions: u64,
    /// Events that went to the kernel.
    pub upcalls: u64,
    /// How often the account of page tables was found to be right, where it is compared with a count from nothing.
    pub verified: u64,
    /// What made no exit: system calls of programs, returns of the kernel's, page faults.
    pub gate: [u64; 3],
}

impl Default for Counters {
    fn default() -> Self {
        let (calls, operations) = ([0; call::END as usize], [0; OPERATIONS.len()]);
        let (errors, updates, refused, semi, hides, shows) = (0, 0, 0, 0, 0, 0);
        let (given_back, emulated, exceptions, upcalls) = (0, 0, 0, 0);
        Self {
            calls,
            operations,
            errors,
            updates,
            refused,
            semi,
            given_back,
            hides,
            shows,
            emulated,
            exceptions,
            upcalls,
            verified: 0,
            gate: [0; 3],
        }
    }
}

impl Counters {
    /// Counts a hypercall.
    #[inline]
    pub(crate) fn call(&mut self, number: u64) {
        let index = number.min(call::END - 1) as usize;
        self.calls.get_mut(index).into_iter().for_each(|count| *count += 1);
    }

    /// Counts an operation of HYPERVISOR_mmuext_op.
    pub(crate) fn operation(&mut self, cmd: u32) {
        let index = if (cmd as usize) < OPERATIONS.len() { cmd as usize } else { OTHER };
        self.operations.get_mut(index).into_iter().for_each(|count| *count += 1);
    }

    /// All counts with their names, in an order that never changes.
    pub fn named(&self) -> [(&'static str, u64); COUNTS] {
        let number = |number: u64| self.calls.get(number as usize).copied().unwrap_or(0);
        let known: u64 = CALLS.iter().map(|(call, _)| number(*call)).sum();
        let [calls, returns, faults] = self.gate;
        let rest = [
            ("call.other", self.calls.iter().sum::<u64>() - known),
            ("errors", self.errors),
            ("updates", self.updates),
            ("refused", self.refused),
            ("semi_writable", self.semi),
            ("given_back", self.given_back),
            ("devices.hides", self.hides),
            ("devices.shows", self.shows),
            ("emulated", self.emulated),
            ("exceptions", self.exceptions),
            ("upcalls", self.upcalls),
            ("verified", self.verified),
            ("gate.calls", calls),
            ("gate.returns", returns),
            ("gate.faults", faults),
        ];
        let calls = CALLS.iter().map(|(call, name)| (*name, number(*call)));
        let operations = OPERATIONS.iter().copied().zip(self.operations);
        let mut all = [("", 0); COUNTS];
        all.iter_mut().zip(calls.chain(operations).chain(rest)).for_each(|(slot, count)| *slot = count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_call_and_operation_has_a_count_of_its_own() {
        let mut counters = Counters::default();
        for (call, _) in CALLS {
            counters.call(call);
        }
        (0..16).for_each(|cmd| counters.operation(cmd));
        counters.call(call::END + 7);
        counters.call(40);
        counters.operation(99);
        let named = counters.named();
        let names: BTreeSet<&str> = named.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), COUNTS);
        let of = |wanted: &str| named.iter().find(|(name, _)| *name == wanted).unwrap().1;
        assert_eq!((of("call.iret"), of("tables.unpin"), of("tables.new_user_root")), (1, 1, 1));
        assert_eq!((of("call.other"), of("tables.other"), of("updates")), (2, 2, 0));
        assert!(names.iter().all(|name| !name.is_empty()));
    }
}
