//! Faults of QEMU's own that a scenario may meet without anybody else's doing. Only a failure that bears one of these is
//! followed by a second run; every other first failure fails the suite.
//!
//! A signature must be something that QEMU alone can leave behind, not merely something that was seen when it was to
//! blame: what the guest's memory, the hypervisor's log or QEMU's own words say of it. docs/debug.md argues for each.

use super::kernel;

/// What is left of a run.
pub struct Evidence<'a> {
    /// Processors that the machine emulates for guests.
    pub cpus: u8,
    /// Names and consoles of the domains.
    pub consoles: &'a [(String, String)],
}

/// A fault of QEMU's by name, and how it is known.
pub struct Signature {
    /// What it is called, here and in docs/debug.md.
    pub name: &'static str,
    /// The domain that it struck and the line that shows it.
    find: fn(&Evidence) -> Option<(String, String)>,
}

/// All that are known.
const KNOWN: [Signature; 1] = [Signature { name: "stale-int3", find: stale_int3 }];

/// A signature in the evidence of a run.
#[derive(Debug, PartialEq)]
pub struct Match {
    /// The signature's name.
    pub name: &'static str,
    /// Whose console shows it.
    pub domain: String,
    /// The line that does.
    pub line: String,
}

/// The first signature that fits.
pub fn find(evidence: &Evidence) -> Option<Match> {
    KNOWN.iter().find_map(|signature| {
        let (domain, line) = (signature.find)(evidence)?;
        Some(Match { name: signature.name, domain, line })
    })
}

/// QEMU before 8.1 reads the instructions of a block before it locks the block's page (commit deba78709ae8,
/// "accel/tcg: Always lock pages before translation"). A processor may therefore translate the `int3` that Linux puts
/// over an instruction while it patches it, and run that translation after the patch is complete and every processor has
/// been told. The kernel then dumps the code around the breakpoint, and the byte that raised it is not `cc`: no processor
/// that runs what is in memory can get there.
fn stale_int3(evidence: &Evidence) -> Option<(String, String)> {
    if evidence.cpus < 2 {
        return None;
    }
    evidence.consoles.iter().find_map(|(domain, console)| {
        // It is the first fault of that console; later ones may follow from it.
        let first = kernel::faults(console).next().filter(|line| line.contains("int3: 0000 [#1]"))?;
        let dump = console.lines().skip_while(|line| *line != first);
        let code = dump.take(12).find_map(|line| line.split_once("Code: "))?.1;
        let bytes: Vec<&str> = code.split_whitespace().collect();
        let next = bytes.iter().position(|byte| byte.starts_with('<'))?;
        let raised = bytes.get(next.checked_sub(1)?)?;
        let is_byte = raised.len() == 2 && raised.chars().all(|digit| digit.is_ascii_hexdigit());
        (is_byte && *raised != "cc").then(|| (domain.clone(), first.trim().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::kernel::tests::{FINE, MACHINE_CHECK, PANIC, STALE_INT3};

    fn found(cpus: u8, console: &str) -> Option<Match> {
        let consoles = [("alice".to_owned(), FINE.to_owned()), ("bob".to_owned(), console.to_owned())];
        find(&Evidence { cpus, consoles: &consoles })
    }

    #[test]
    fn an_int3_that_memory_does_not_have_is_qemus() {
        let found = found(2, STALE_INT3).unwrap();
        assert_eq!((found.name, found.domain.as_str()), ("stale-int3", "bob"));
        assert!(found.line.contains("int3: 0000 [#1]"));
    }

    #[test]
    fn one_that_memory_has_is_the_kernels() {
        assert_eq!(found(2, &STALE_INT3.replace("0f <1f> 44 00 00", "cc <1f> 44 00 00")), None);
    }

    #[test]
    fn one_processor_cannot_run_what_another_patched() {
        assert_eq!(found(1, STALE_INT3), None);
    }

    #[test]
    fn other_faults_are_not() {
        assert_eq!(found(2, MACHINE_CHECK), None);
        assert_eq!(found(2, PANIC), None);
        assert_eq!(found(2, ""), None);
        let later = format!("{PANIC}{STALE_INT3}");
        assert_eq!(found(2, &later), None, "something else came first");
    }
}
