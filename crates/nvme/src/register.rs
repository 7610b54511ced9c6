//! A controller's registers (NVMe, 3.1).

/// Capabilities.
pub const CAP: u32 = 0x00;
/// Revision.
pub const VS: u32 = 0x08;
/// Configuration.
pub const CC: u32 = 0x14;
/// Status.
pub const CSTS: u32 = 0x1c;
/// Sizes of the admin queues.
pub const AQA: u32 = 0x24;
/// The admin submission queue.
pub const ASQ: u32 = 0x28;
/// The admin completion queue.
pub const ACQ: u32 = 0x30;
/// The first doorbell.
pub const DOORBELLS: u32 = 0x1000;

/// Configuration: runs.
pub const ENABLE: u32 = 1;
/// Configuration: command set, page size, arbitration; all zeros here.
pub const CHOICES: u32 = 0x3ff0;
/// Configuration: a shutdown is announced.
pub const SHUTDOWN: u32 = 0b11 << 14;
/// Configuration: entries of 64 and of 16 bytes.
pub const ENTRIES: u32 = 6 << 16 | 4 << 20;
/// Status: ready.
pub const READY: u32 = 1;
/// Status: it cannot go on.
pub const FATAL: u32 = 1 << 1;
/// Status: the shutdown is under way.
pub const SHUTTING_DOWN: u32 = 1 << 2;
/// Status: the shutdown is over.
pub const SHUT_DOWN: u32 = 2 << 2;
