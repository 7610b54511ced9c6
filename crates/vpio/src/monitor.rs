//! The monitor.
use crate::access::{Access, ClientId, Outcome, RawDevice};
use crate::counters::{ClientCounters, DeviceCounters};
use crate::hooks::HookSet;

/// When the monitor acts, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A holder that has not touched the device for this long is taken to be between operations.
    pub grace: u64,
    /// A holder keeps the device at least this long (unless it is idle).
    pub min_hold: u64,
    /// After this long a waiting client gets the device even if the holder never comes to rest.
    pub max_wait: u64,
    /// How long a single user must stay alone before it gets the card undivided again.
    pub settle: u64,
    /// While several share: how often the monitor looks whether the holder stopped the card.
    pub watch: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            grace: 1_000_000,
            min_hold: 2_000_000,
            max_wait: 20_000_000,
            settle: 100_000_000,
            watch: 10_000_000,
        }
    }
}

/// Why a client could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// [`ClientId::MAX`] clients are attached.
    Full,
    /// A multicast or null address.
    BadAddress,
    /// Another client has this address.
    AddressTaken,
}

/// What the caller must act on; taken by [`Monitor::changes`]. Masks have bit `ClientId::index`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Clients whose [`Monitor::hooks`] changed: install before any of them runs again.
    pub hooks: u8,
    /// Clients whose [`Monitor::line`] changed.
    pub lines: u8,
    /// Clients that waited and may repeat their access now.
    pub wake: u8,
}

/// One shared device. All times are nanoseconds of one monotonic clock.
///
/// While a method that takes the raw device runs, no processor of any client may run with direct
/// access to the device; before they run again, [`Self::changes`] must have been installed.
pub struct Monitor {
    counters: [ClientCounters; 0],
    device_counters: DeviceCounters,
}

impl Monitor {
    /// A monitor for the device with this PCI id, if there is a model of it. Allocates.
    pub fn for_device(_vendor: u16, _device: u16, _timing: Timing) -> Option<Self> {
        Some(Self { counters: [], device_counters: DeviceCounters::default() })
    }
    /// Name of the model, such as `ne2000`.
    pub fn model_name(&self) -> &'static str {
        ""
    }
    /// Size of the port range in ports; accesses beyond it are nobody's.
    pub fn port_count(&self) -> u16 {
        0x20
    }
    /// Name of a register by its index in [`ClientCounters::hooked_by_register`].
    pub fn register_name(&self, _index: usize) -> Option<&'static str> {
        None
    }
    /// Adds a client with this station address. Allocates its context; touches no hardware.
    pub fn attach(&mut self, _mac: [u8; 6]) -> Result<ClientId, AttachError> {
        Err(AttachError::Full)
    }
    /// Removes a client (its guest is gone): quiesces, scrubs, passes the device on.
    pub fn detach(&mut self, _raw: &mut dyn RawDevice, _client: ClientId, _now: u64) {}
    /// The client's guest was reset: its virtual card goes to the power-on state.
    pub fn reset_client(&mut self, _raw: &mut dyn RawDevice, _client: ClientId, _now: u64) {}
    /// Ports that must exit for this client now.
    pub fn hooks(&self, _client: ClientId) -> HookSet {
        HookSet::ALL
    }
    /// Serves a hooked access.
    pub fn access(
        &mut self,
        _raw: &mut dyn RawDevice,
        _client: ClientId,
        _now: u64,
        _access: Access<'_>,
    ) -> Outcome {
        Outcome::Wait
    }
    /// The physical line was asserted; the caller has masked it at the I/O APIC.
    pub fn interrupt(&mut self, _raw: &mut dyn RawDevice, _now: u64) {}
    /// The client's virtual interrupt controller saw the end of its interrupt.
    pub fn end_of_interrupt(&mut self, _client: ClientId) {}
    /// Level of the client's virtual interrupt line.
    pub fn line(&self, _client: ClientId) -> bool {
        false
    }
    /// The physical line may be unmasked now.
    pub fn physical_unmask(&self) -> bool {
        true
    }
    /// Moves handoffs along. Returns when it wants to be called again, if ever. Call also when
    /// `changes` reported something after another call.
    pub fn poll(&mut self, _raw: &mut dyn RawDevice, _now: u64) -> Option<u64> {
        None
    }
    /// Hint: all processors of this client halted, so its driver is in no register sequence.
    pub fn halted(&mut self, _raw: &mut dyn RawDevice, _client: ClientId, _now: u64) {}
    /// False while the client waits for the device.
    pub fn may_run(&self, _client: ClientId) -> bool {
        true
    }
    /// Takes what changed since the last call.
    pub fn changes(&mut self) -> Changes {
        Changes::default()
    }
    /// Who has direct access.
    pub fn holder(&self) -> Option<ClientId> {
        None
    }
    /// One client's counters.
    pub fn counters(&self, client: ClientId) -> Option<&ClientCounters> {
        self.counters.get(client.index())
    }
    /// The device's counters.
    pub fn device_counters(&self) -> &DeviceCounters {
        &self.device_counters
    }
}
