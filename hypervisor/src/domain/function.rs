//! A function on a guest's PCI bus, as its domain knows it: whatever serves it stands above.

use super::region::Placed;
use super::{Answer, Domain, Transfer};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use sluice_devfile::Ranges;
use sluice_hypercall::call::Error;
use sluice_hypercall::devfile::Copy;
use sluice_insn::PagingState;
use sluice_memory::Gpa;
use sluice_platform::pci::{BuildError, ConfigEffect, Function};

/// What a guest sees of a device. A domain hands it what its guest does; what comes of it, the function carries out by the
/// domain's methods.
///
/// `domain` is always the one that the function is of, and `index` its place in [`Domain::functions`].
pub trait VirtualFunction: Send + Sync {
    /// Slot of the virtual PCI bus.
    fn slot(&self) -> u8;

    /// I/O APIC pin of the guest.
    fn pin(&self) -> u8;

    /// The function as the guest's PCI bus shows it.
    ///
    /// # Errors
    /// The physical function has what a virtual one cannot.
    fn describe(&self) -> Result<Function, BuildError>;

    /// The domain exists: from here on it gets interrupts.
    fn attached(&self, domain: &Arc<Domain>, index: usize);

    /// The domain has ended, or did not come about, or what is behind the function is taken from it: nothing of the domain stays in the
    /// device. A function that is still on a bus then answers as one that was reset and does nothing.
    fn detach(&self);

    /// The guest changed the function's configuration, or has not yet ([`ConfigEffect::None`]).
    fn configured(&self, domain: &Domain, index: usize, effect: ConfigEffect);

    /// An access to a hooked port of the function, of elements of `width` bytes (1, 2 or 4).
    fn port(&self, domain: &Domain, port: u16, width: u8, transfer: Transfer<'_>) -> Answer;

    /// An access to memory of BAR `bar` (0-5) that exited.
    fn memory(&self, domain: &Domain, bar: u8, gpa: Gpa, transfer: Transfer<'_>) -> Answer;

    /// Frames of registers that a guest may map which knows machine addresses: first and end.
    fn registers(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// The guest is about to end an interrupt of the pin: the line must show what the device says now, as those of most do at all times. Returns
    /// whether its processor is to look at all that may have changed before it goes on.
    fn end_of_interrupt(&self, _domain: &Domain) -> bool {
        false
    }

    /// The domain has used buffers of a queue of another domain's device, which this function is the back end of. Returns false if it is not.
    fn used(&self, _queue: u64) -> bool {
        false
    }

    /// The domain issues single pages to whoever serves the function from now on. Returns false if the function reaches no such pages.
    fn reaches_grants(&self) -> bool {
        false
    }

    /// The guest whose single pages the window of a back-end function shows, and the slot of its device.
    fn shows_pages(&self) -> Option<(Arc<Domain>, u8)> {
        None
    }

    /// What an operation of the domain's on a device file may reach of a process, from now on; `None`: nothing any more.
    ///
    /// # Errors
    /// The function is no device file that somebody serves, or nothing was declared.
    fn declare(&self, _tag: u32, _reach: Option<(PagingState, Ranges)>) -> Result<(), Error> {
        Err(Error::BadArgument)
    }

    /// The region that the guest has with a device of the domain, by the device file whose back end the function is.
    fn region(&self) -> Option<Placed> {
        None
    }

    /// Copies between the domain and a process of the guest whose device file the function is the back end of.
    ///
    /// # Errors
    /// The guest has not declared it, a side has no such memory, or the function is no such back end.
    fn copy(&self, _domain: &Domain, _copy: &Copy) -> Result<(), Error> {
        Err(Error::BadArgument)
    }

    /// All processors of the domain have halted: its drivers are between operations.
    fn halted(&self, _domain: &Domain) {}

    /// TSC at which the function goes on with what it has left to do; `u64::MAX`: nothing.
    fn resumes_at(&self) -> u64 {
        u64::MAX
    }

    /// Does what is left to do at `now`, as far as one call may. It is the domain's doing: whoever calls charges it.
    fn resume(&self, _now: u64) {}
}
