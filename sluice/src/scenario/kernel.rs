//! What a Linux guest says on its console when its kernel has gone wrong. Any of it fails a scenario that does not expect
//! exactly that (`kernel_faults`): a guest that oopses and goes on may well report every hash as right.
//!
//! A kernel with `quiet` prints its oopses but not its warnings; /init of the test guests prints what tainted the kernel
//! (`guest/rootfs/init`), so that these are seen, too.

/// How a line begins its complaint. Words of Linux 6.1 and 6.12, `arch/x86/kernel/traps.c`, `kernel/panic.c`,
/// `kernel/watchdog.c`, `kernel/rcu/tree_stall.h`, `kernel/irq/spurious.c` and others.
const MARKS: [&str; 25] = [
    "Oops:",
    "BUG:",
    "kernel BUG at",
    "general protection fault",
    "invalid opcode:",
    "int3:",
    "stack segment:",
    "segment not present:",
    "double fault:",
    "divide error:",
    "alignment check:",
    "Call Trace:",
    "WARNING: CPU:",
    "unable to handle",
    "Kernel panic - not syncing",
    "unchecked MSR access error",
    "Bad page state",
    "list_add corruption",
    "list_del corruption",
    "refcount_t:",
    "self-detected stall",
    "detected stalls on CPUs",
    "blocked for more than",
    "nobody cared",
    // A process, whose memory or registers may have been spoiled from below.
    "segfault at",
];

/// The lines of a console that tell of a fault of the guest's kernel.
pub fn faults(console: &str) -> impl Iterator<Item = &str> {
    let mut before = [""; 3];
    console.lines().filter(move |line| {
        let is_told = is_fault(line) && !is_race_of_vivid(line, before);
        before.rotate_left(1);
        before[2] = line;
        is_told
    })
}

/// The driver vivid of Linux 6.12 waits for the time until its next frame, in ticks. If one passes between its looks at the clock, as under any load, that is
/// -1, of which `schedule_timeout` says so with a dump of the stack, and goes on. It is the driver's, and says nothing of what is below it.
fn is_race_of_vivid(line: &str, before: [&str; 3]) -> bool {
    let says = |what: &str| before.iter().any(|line| line.contains(what));
    line.contains("Call Trace:")
        && says("schedule_timeout: wrong timeout value ffffffffffffffff")
        && says(" Comm: vivid-")
}

/// The line has one of [`MARKS`], not as the end of a longer word ("DEBUG:").
fn is_fault(line: &str) -> bool {
    MARKS.iter().any(|mark| {
        line.match_indices(mark)
            .any(|(at, _)| !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// From the Linux mailing list (John Stultz, 2023-08-07, "qemu-x86_64 booting with 8.0.0 stil see int3"): QEMU 7.2.2, TCG.
    /// The byte that raised it is not `cc` any more.
    pub const STALE_INT3: &str = include_str!("recorded/stale-int3.txt");
    /// From a guest of `refusal-machine-check`.
    pub const MACHINE_CHECK: &str = include_str!("recorded/machine-check.txt");
    /// From a guest whose kernel was told to panic.
    pub const PANIC: &str = include_str!("recorded/panic.txt");
    /// From a guest that did its job.
    pub const FINE: &str = include_str!("recorded/fine.txt");

    #[test]
    fn recorded_faults_are_seen() {
        assert!(faults(STALE_INT3).any(|line| line.contains("int3: 0000 [#1]")));
        assert!(faults(MACHINE_CHECK).any(|line| line.contains("Fatal local machine check")));
        assert!(faults(PANIC).any(|line| line.contains("Kernel panic - not syncing: sysrq triggered crash")));
    }

    #[test]
    fn a_driver_that_asks_for_no_time_at_all_is_no_fault_of_ours() {
        const LATE: &str = "[   36.312185] schedule_timeout: wrong timeout value ffffffffffffffff\n\
            [   36.320329] CPU: 0 UID: 0 PID: 232 Comm: vivid-000-vid-c Tainted: G           OE K    6.12.117+deb12-amd64 #1\n\
            [   36.323102] Tainted: [O]=OOT_MODULE, [E]=UNSIGNED_MODULE, [K]=LIVEPATCH\n\
            [   36.323259] Call Trace:\n";
        assert_eq!(faults(LATE).count(), 0);
        assert_eq!(faults(&LATE.replace("vivid-000-vid-c", "e1000_watchdog")).count(), 1);
        assert_eq!(faults(&LATE.replace("ffffffffffffffff", "8000000000000000")).count(), 1);
        assert_eq!(faults(&format!("{LATE}{LATE}[   37.0] Call Trace:\n")).count(), 1, "another one");
    }

    #[test]
    fn a_boot_that_went_well_has_none() {
        assert_eq!(faults(FINE).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn each_mark_is_seen_wherever_it_stands_and_longer_words_are_not() {
        for mark in MARKS {
            assert_eq!(faults(&format!("fine\n[    1.234567] {mark} 0000\nfine")).count(), 1, "{mark}");
            assert_eq!(faults(mark).count(), 1, "{mark}");
        }
        assert_eq!(faults("CONFIG_DEBUG: on\nprint3: 5\n").count(), 0);
    }
}
