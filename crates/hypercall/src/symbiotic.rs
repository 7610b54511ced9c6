//! The symbiotic half of virtual passthrough: what a module in a guest shares with the hypervisor of a software 82540EM (`mode = "vpio"`).
//!
//! Once begun, a page of the card's first BAR is memory, and so is the page of its transmit ring's registers. The driver's tail no longer exits; the
//! module rings by [`SYMBIOTIC_RING`] where [`SYMBIOTIC_DOORBELL`] says that nobody looks otherwise. Causes that say only that a ring has moved are no
//! longer in ICR: the hypervisor counts them in [`SYMBIOTIC_RAISED`], and interrupts once when that goes past [`SYMBIOTIC_EVENT`]. All other registers
//! are as before. Each word has one writer. A write of CTRL.RST ends it, and so does taking the card off the bus.
//!
//! Source: Xia et al., "Towards Virtual Passthrough I/O on Commodity Devices", 2.3 and 7 (parts of the model in the guest).

/// Offset in the card's first BAR of the page that is shared.
pub const SYMBIOTIC_PAGE: u32 = 0x6000;
/// How often a cause of the rings was raised, modulo 2^32. Of the hypervisor's.
pub const SYMBIOTIC_RAISED: u32 = 0x6000;
/// One of the SYMBIOTIC_DOORBELL_ values. Of the hypervisor's. Whoever has written the tail reads it after a full barrier.
pub const SYMBIOTIC_DOORBELL: u32 = 0x6004;
/// Symbiosis is off: what the page reads as where it is no memory.
pub const SYMBIOTIC_DOORBELL_OFF: u32 = 0;
/// Nobody looks at the tail unless [`SYMBIOTIC_RING`] is written.
pub const SYMBIOTIC_DOORBELL_WANTED: u32 = 1;
/// The hypervisor looks by itself.
pub const SYMBIOTIC_DOORBELL_IDLE: u32 = 2;
/// 1: it is too early for another interrupt, and whoever waits for what was raised is looked for when it is not. Of the hypervisor's.
pub const SYMBIOTIC_HELD: u32 = 0x6008;
/// SYMBIOTIC_RAISED as an interrupt's handler has seen it: the line falls. Of the module's.
pub const SYMBIOTIC_TAKEN: u32 = 0x6040;
/// SYMBIOTIC_RAISED from which on an interrupt is wanted, once. Of the module's, which reads SYMBIOTIC_RAISED and then SYMBIOTIC_HELD after a
/// full barrier: if more was raised, and nobody is to look, it polls again.
pub const SYMBIOTIC_EVENT: u32 = 0x6044;
/// Reads as SYMBIOTIC_MAGIC where there is symbiosis. SYMBIOTIC_BEGIN and SYMBIOTIC_END are written here.
pub const SYMBIOTIC_CONTROL: u32 = 0x7000;
/// "SLSY".
pub const SYMBIOTIC_MAGIC: u32 = 0x5953_4c53;
/// Ends it. Causes are in ICR again.
pub const SYMBIOTIC_END: u32 = 0;
/// Begins it. SYMBIOTIC_RAISED is one more than the module's words, and goes on from where it last was.
pub const SYMBIOTIC_BEGIN: u32 = 1;
/// Any write: the hypervisor looks at the tail.
pub const SYMBIOTIC_RING: u32 = 0x7004;
