//! What a paravirtual guest says beyond Xen's interface. Its hypercalls have Xen's registers: the number in RAX, arguments in RDI, RSI and RDX.

/// Makes frames semi-writable, or ends that: address of a list of frame numbers of eight bytes each, number of frames,
/// [`SEMI_SET`] or [`SEMI_CLEAR`]. Devices never reach a semi-writable frame, whatever it is used as, so that its becoming a page table and memory again
/// costs no flush of an IOMMU. Answered with 0; an error says that a frame is not the caller's, and frames before it in the list may be done.
pub const SEMI_WRITABLE: u64 = 63;
/// They are what their use makes of them again: devices reach them as memory, and not as page tables.
pub const SEMI_CLEAR: u64 = 0;
/// Out of the devices' reach from now on.
pub const SEMI_SET: u64 = 1;
/// Most frames of one call.
pub const SEMI_MAX_BATCH: u64 = 512;
