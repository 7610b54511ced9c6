//! Machine checks of a virtual processor, by which its guest learns that a device refused an access: one bank.
//!
//! Sources: APM vol. 2, 9.3 (registers) and 9.5 (error codes: bus errors); Linux, arch/x86/kernel/cpu/mce (what becomes
//! of a status).
//!
//! Deviation: a deferred error comes as an exception, too. AMD's processors interrupt for it, by a vector of the extended
//! local APIC, which there is none of here.

/// MCG_CAP.
const CAPABILITIES: u32 = 0x179;
/// MCG_STATUS.
const STATUS: u32 = 0x17a;
/// MC0_CTL, MC0_STATUS, MC0_ADDR, MC0_MISC.
const BANK_CONTROL: u32 = 0x400;
const BANK_STATUS: u32 = 0x401;
const BANK_ADDRESS: u32 = 0x402;
const BANK_MISC: u32 = 0x403;

/// MCG_STATUS: execution can go on at the instruction pointer of the exception.
const RESTARTABLE: u64 = 1 << 0;
/// MCG_STATUS: a machine check is being handled. Another one would shut the processor down.
const IN_PROGRESS: u64 = 1 << 2;

/// MC0_STATUS.
mod bank {
    pub const VALID: u64 = 1 << 63;
    /// An earlier error was still there.
    pub const OVERFLOW: u64 = 1 << 62;
    pub const UNCORRECTED: u64 = 1 << 61;
    /// MC0_CTL lets it raise an exception.
    pub const ENABLED: u64 = 1 << 60;
    /// MC0_MISC holds more.
    pub const MISC_VALID: u64 = 1 << 59;
    /// It need not be dealt with now.
    pub const DEFERRED: u64 = 1 << 44;
    /// Error code: on a bus, of this processor's own, not a time-out, I/O, at any level. The kind of access is added.
    pub const IO: u64 = 0x080b;
    pub const READ: u64 = 1 << 4;
    pub const WRITE: u64 = 2 << 4;
}

/// An access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAccess {
    /// Port, or guest-physical address.
    pub place: u64,
    /// It was a write.
    pub write: bool,
    /// The guest may go on. Otherwise its kernel is to stop.
    pub deferred: bool,
}

/// The registers of one processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineCheck {
    /// There is a bank.
    bank: bool,
    status: u64,
    bank_control: u64,
    bank_status: u64,
    bank_misc: u64,
}

impl MachineCheck {
    /// A processor with that bank, or one whose guest never gets a machine check: it has none.
    pub const fn new(bank: bool) -> Self {
        Self { bank, status: 0, bank_control: 0, bank_status: 0, bank_misc: 0 }
    }

    /// RDMSR; `None`: there is no such register here.
    pub fn read(&self, msr: u32) -> Option<u64> {
        Some(match msr {
            CAPABILITIES => u64::from(self.bank),
            STATUS => self.status,
            BANK_CONTROL if self.bank => self.bank_control,
            BANK_STATUS if self.bank => self.bank_status,
            BANK_ADDRESS if self.bank => 0,
            BANK_MISC if self.bank => self.bank_misc,
            _ => return None,
        })
    }

    /// WRMSR; `None`: there is no such register here, or it does not take this.
    pub fn write(&mut self, msr: u32, value: u64) -> Option<()> {
        match msr {
            STATUS => self.status = value & (RESTARTABLE | IN_PROGRESS | 2),
            BANK_CONTROL if self.bank => self.bank_control = value,
            // Anything else would be a forged error.
            BANK_STATUS if self.bank && value == 0 => (self.bank_status, self.bank_misc) = (0, 0),
            BANK_ADDRESS | BANK_MISC if self.bank => {}
            _ => return None,
        }
        Some(())
    }

    /// Records an access. Returns whether the guest takes the exception; `enabled` is its CR4.MCE, without which
    /// the exception would shut it down, as would one while another is handled.
    pub fn report(&mut self, access: FailedAccess, enabled: bool) -> bool {
        if !self.bank {
            return false;
        }
        let takes = enabled && self.bank_control & 1 != 0 && self.status & IN_PROGRESS == 0;
        let there = self.bank_status & bank::VALID != 0;
        if there && (access.deferred || self.bank_status & bank::UNCORRECTED != 0) {
            // The first of equal weight is kept (9.3.2.1).
            self.bank_status |= bank::OVERFLOW;
        } else {
            let lost = if there { bank::OVERFLOW } else { 0 };
            let kind = if access.write { bank::WRITE } else { bank::READ };
            let raised = if self.bank_control & 1 != 0 { bank::ENABLED } else { 0 };
            let weight = if access.deferred { bank::DEFERRED } else { bank::UNCORRECTED };
            self.bank_status = bank::VALID | bank::MISC_VALID | lost | raised | weight | bank::IO | kind;
            // Bit 63 would say that errors are counted there.
            self.bank_misc = access.place & u64::MAX >> 1;
        }
        if takes {
            self.status = RESTARTABLE | IN_PROGRESS;
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: FailedAccess = FailedAccess { place: 0xc00c, write: true, deferred: true };

    /// As Linux sets it up.
    fn started() -> MachineCheck {
        let mut processor = MachineCheck::new(true);
        assert_eq!(processor.read(CAPABILITIES), Some(1));
        processor.write(BANK_CONTROL, u64::MAX).unwrap();
        assert_eq!(processor.read(BANK_CONTROL), Some(u64::MAX));
        processor.write(BANK_STATUS, 0).unwrap();
        processor
    }

    #[test]
    fn without_a_bank_there_is_nothing_to_report_to() {
        let mut processor = MachineCheck::new(false);
        assert_eq!(processor.read(CAPABILITIES), Some(0));
        assert_eq!(processor.read(STATUS), Some(0));
        for msr in BANK_CONTROL..=BANK_MISC {
            assert_eq!((processor.read(msr), processor.write(msr, 0)), (None, None));
        }
        assert!(!processor.report(OUT, true));
        assert_eq!(processor.read(STATUS), Some(0));
    }

    #[test]
    fn an_access_is_a_bus_error_that_the_guest_can_go_on_after() {
        let mut processor = started();
        assert!(processor.report(OUT, true));
        assert_eq!(processor.read(STATUS), Some(RESTARTABLE | IN_PROGRESS));
        assert_eq!(processor.read(BANK_STATUS), Some(0x9800_1000_0000_082b));
        assert_eq!(processor.read(BANK_MISC), Some(0xc00c));
        processor.write(BANK_STATUS, 0).unwrap();
        processor.write(STATUS, 0).unwrap();
        assert!(processor.report(FailedAccess { write: false, ..OUT }, true));
        assert_eq!(processor.read(BANK_STATUS), Some(0x9800_1000_0000_081b));
    }

    #[test]
    fn an_error_that_ends_a_kernel_is_not_hidden_by_one_that_does_not() {
        let mut processor = started();
        let fatal = FailedAccess { place: 0x60, write: false, deferred: false };
        processor.report(OUT, false);
        assert!(processor.report(fatal, true));
        assert_eq!(processor.read(BANK_STATUS), Some(0xf800_0000_0000_081b));
        assert_eq!(processor.read(BANK_MISC), Some(0x60));
        processor.report(OUT, true);
        assert_eq!(processor.read(BANK_STATUS), Some(0xf800_0000_0000_081b));
        processor.write(BANK_STATUS, 0).unwrap();
        processor.report(fatal, true);
        assert_eq!(processor.read(BANK_STATUS), Some(0xb800_0000_0000_081b));
    }

    #[test]
    fn the_guest_is_never_shut_down() {
        let mut processor = started();
        assert!(!processor.report(OUT, false), "CR4.MCE is clear");
        assert_eq!(processor.read(STATUS), Some(0));
        // It is there to be found, all the same.
        assert_ne!(processor.read(BANK_STATUS).unwrap() & bank::VALID, 0);
        assert!(processor.report(OUT, true));
        assert!(!processor.report(FailedAccess { place: 1, ..OUT }, true), "one is being handled");
        assert_ne!(processor.read(BANK_STATUS).unwrap() & bank::OVERFLOW, 0);
        assert_eq!(processor.read(BANK_MISC), Some(0xc00c), "the first is kept");
        // The handler ends by clearing MCG_STATUS.
        processor.write(STATUS, 0).unwrap();
        assert!(processor.report(OUT, true));
        processor.write(STATUS, 0).unwrap();
        processor.write(BANK_CONTROL, 0).unwrap();
        assert!(!processor.report(OUT, true), "its source is off");
    }

    #[test]
    fn errors_cannot_be_forged() {
        let mut processor = started();
        assert_eq!(processor.write(BANK_STATUS, 1 << 63), None);
        assert_eq!(processor.write(CAPABILITIES, 0), None);
        assert_eq!(processor.write(BANK_MISC + 1, 0), None);
        assert_eq!(processor.read(BANK_STATUS), Some(0));
    }
}
