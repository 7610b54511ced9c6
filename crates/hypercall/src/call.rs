//! Hypercalls by the interface that CPUID announces, KVM's: how a guest says what it wants, and how it is answered.
//!
//! VMMCALL with the number in RAX and up to four arguments in RBX, RCX, RDX and RSI. The answer comes in RAX, negative if the
//! call failed; no other register changes. Code that is not 64-bit says and gets 32 bits of each. Who may call, and which
//! numbers exist, is the hypervisor's matter.
//!
//! Source: Linux, Documentation/virt/kvm/x86/hypercalls.rst and include/uapi/linux/kvm_para.h.

/// Has the hypervisor look for pending interrupts; no arguments, answered with 0 (KVM_HC_VAPIC_POLL_IRQ).
pub const VAPIC_POLL_IRQ: u64 = 1;

/// Tells a guest that buffers of one of its devices' queues have been used. By the driver domain that serves the device, with the
/// slot of the back-end function on its bus ([`crate::backend::SLOT`]) and the number of the queue. Answered with 0.
pub const NOTIFY: u64 = 0x534c_0001;

/// Whether a number is one of those that Sluice gives out for calls of its own; not all of them are.
pub const fn is_own(number: u64) -> bool {
    number & !0xff == 0x534c_0000
}

/// Where the numbers begin of the interface that has the call of this number: 16 calls each.
pub const fn interface(number: u64) -> u64 {
    number & !0xf
}

/// Bits of a register that count, by the code segment that the guest runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// The lower half.
    Bits32,
    /// All of it: 64-bit code.
    Bits64,
}

impl Width {
    /// What a register says.
    pub const fn of(self, register: u64) -> u64 {
        match self {
            Self::Bits32 => register & 0xffff_ffff,
            Self::Bits64 => register,
        }
    }
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No call has this number.
    NoSuchCall,
    /// Programs may not call, only the guest's kernel.
    NotPermitted,
    /// An argument names nothing that the caller has.
    BadArgument,
    /// What is asked for is done already.
    Exists,
    /// There is nothing to undo.
    Absent,
    /// Somebody uses it.
    Busy,
    /// There is no memory for it, or the caller has had its share.
    NoMemory,
    /// There is nobody on the other side.
    NoPeer,
    /// A process has no such memory now.
    Fault,
}

impl Error {
    /// As the guest knows it: KVM_ENOSYS, KVM_EPERM, KVM_EINVAL, and Linux' numbers of the others.
    const fn number(self) -> u64 {
        match self {
            Self::NoSuchCall => 1000,
            Self::NotPermitted => 1,
            Self::BadArgument => 22,
            Self::Exists => 17,
            Self::Absent => 2,
            Self::Busy => 16,
            Self::NoMemory => 12,
            Self::NoPeer => 107,
            Self::Fault => 14,
        }
    }
}

/// RAX for what came of a call.
pub fn answer(result: Result<u64, Error>, width: Width) -> u64 {
    width.of(result.unwrap_or_else(|error| error.number().wrapping_neg()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_negative_numbers_of_the_guests_width() {
        let answers = |result| [Width::Bits64, Width::Bits32].map(|width| answer(result, width));
        assert_eq!(answers(Ok(0)), [0, 0]);
        assert_eq!(answers(Ok(u64::MAX)), [u64::MAX, 0xffff_ffff]);
        assert_eq!(answers(Err(Error::NoSuchCall)), [-1000i64 as u64, -1000i32 as u32 as u64]);
        assert_eq!(answers(Err(Error::NotPermitted)), [u64::MAX, 0xffff_ffff]);
    }

    #[test]
    fn what_32_bit_code_left_in_the_upper_halves_does_not_count() {
        let high = 0xdead_beef << 32;
        assert_eq!(Width::Bits32.of(high | VAPIC_POLL_IRQ), VAPIC_POLL_IRQ);
        assert_eq!(Width::Bits64.of(high | VAPIC_POLL_IRQ), high | VAPIC_POLL_IRQ);
    }
}
