//! Exact counters of what clients did with a device. Free-running; wrap never in practice.

/// Registers (entries of the model's table) that a client's hooked accesses are counted by.
pub const MAX_REGISTERS: usize = 64;

/// One client's use of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCounters {
    /// Hooked accesses, in device elements.
    pub hooked_elements: u64,
    /// Hooked accesses, in instructions (exits).
    pub hooked_instructions: u64,
    /// Hooked accesses by register, in instructions; index into the model's register table
    /// (`Monitor::register_name`).
    pub hooked_by_register: [u64; MAX_REGISTERS],
    /// Accesses made to the physical device for this client, in elements.
    pub forwarded_elements: u64,
    /// Transmissions whose completion the monitor saw.
    pub tx_packets: u64,
    /// Frames put into this client's virtual ring.
    pub rx_packets: u64,
    /// Frames for this client dropped because its queue was full.
    pub rx_dropped: u64,
    /// Accesses refused by a check.
    pub refused: u64,
    /// Times it had to wait for the device.
    pub waits: u64,
    /// Nanoseconds it waited in all.
    pub wait_ns: u64,
    /// Nanoseconds it held the device, until it last lost it: see `Monitor::held_ns`.
    pub held_ns: u64,
}

impl ClientCounters {
    pub(crate) const fn new() -> Self {
        Self {
            hooked_elements: 0,
            hooked_instructions: 0,
            hooked_by_register: [0; MAX_REGISTERS],
            forwarded_elements: 0,
            tx_packets: 0,
            rx_packets: 0,
            rx_dropped: 0,
            refused: 0,
            waits: 0,
            wait_ns: 0,
            held_ns: 0,
        }
    }
}

/// What happened to the device as a whole. Reports carry `handoffs` and `forced`; tests look at the others, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Times the device changed hands.
    pub handoffs: u64,
    /// Handoffs forced after the maximum wait.
    pub forced: u64,
    /// Physical interrupts reported by the caller.
    pub interrupts: u64,
    /// Changes between one user and several.
    pub regime_changes: u64,
    /// Frames received that were nobody's.
    pub unclaimed: u64,
    /// Times the physical receive ring was found overrun and was cleared.
    pub ring_overruns: u64,
    /// Times a holder was found to have stopped the card for the others.
    pub stops_caught: u64,
}
