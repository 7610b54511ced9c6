//! What the hypervisor wants of an IOMMU, whoever made it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use sluice_iommu::{Fault, Interrupt, Invalidation, PageFormat, RequesterId, SpaceTag};
use sluice_memory::Hpa;

/// One IOMMU. It is running: what is not attached anywhere is blocked, and no interrupt gets through that is not
/// allowed.
///
/// Every function may be called on any processor; the unit's own lock makes them one after the other. None returns
/// before the unit has done what it was told: a translation or an interrupt that was taken away is not in use any more,
/// and what it led to may have another owner.
pub trait Unit: Send + Sync {
    /// For people: "AMD-Vi" or "VT-d".
    fn kind(&self) -> &'static str;

    /// Physical address of its registers, which names it.
    fn base(&self) -> Hpa;

    /// Whether requests of this requester come to it.
    fn serves(&self, requester: RequesterId) -> bool;

    /// The requester that requests of a function carry here, where firmware says that it is another (an alias).
    fn alias(&self, function: RequesterId) -> RequesterId {
        function
    }

    /// The tables that its I/O spaces must have.
    fn format(&self) -> PageFormat;

    /// Number of tags it can tell apart; tags are below this.
    fn tags(&self) -> u32;

    /// It reads tables past the processors' caches: what is written to them must be written back.
    fn reads_memory_only(&self) -> bool;

    /// It may remember that nothing is mapped: mapping needs an invalidation too.
    fn caches_absent(&self) -> bool;

    /// Interrupt requests are checked, too. Without it a function that masters the bus can forge any interrupt.
    fn remaps_interrupts(&self) -> bool;

    /// Lets a requester reach the space whose tables begin at `root`, or nothing at all (`None`). Forgets what was known of
    /// the requester, and all translations of the space that it left, which is returned.
    fn attach(&self, requester: RequesterId, space: Option<(SpaceTag, Hpa)>) -> Option<SpaceTag>;

    /// Forgets translations.
    fn invalidate(&self, what: &[Invalidation]);

    /// Lets a requester raise an interrupt. No two requesters have the same vector. Only where
    /// [`Unit::remaps_interrupts`].
    fn allow_interrupt(&self, requester: RequesterId, interrupt: Interrupt);

    /// Takes that back.
    fn forbid_interrupt(&self, requester: RequesterId, vector: u8);

    /// Message address and data by which a function raises an allowed interrupt.
    fn message(&self, interrupt: Interrupt) -> (u32, u32);

    /// Redirection entry by which an I/O APIC raises an allowed interrupt; masked, polarity left at high.
    fn redirection(&self, interrupt: Interrupt) -> u64;

    /// As whom the I/O APIC with this identifier raises interrupts here.
    fn io_apic(&self, id: u8) -> Option<RequesterId>;

    /// Ranges that firmware demands to be mapped one to one for a requester, for reading and writing.
    fn unity(&self, requester: RequesterId) -> Vec<Range<u64>>;

    /// Has the unit raise this interrupt when it has recorded a fault.
    fn set_fault_interrupt(&self, interrupt: Interrupt);

    /// Takes the faults recorded since the last call, oldest first; at most as many as the unit can hold at once.
    fn take_faults(&self, take: &mut dyn FnMut(Fault));
}

/// All units of a kind, already running.
pub type Units = Vec<Box<dyn Unit>>;
