//! The physical card as its driver reaches it: registers, and memory that the card masters the bus for.
//!
//! Behind an IOMMU the card reaches that memory and nothing else, in a space of its own; without one it reaches
//! everything, as any device of the hypervisor's does, and its driver is trusted with that.

use super::device::Device;
use super::error::AttachError;
use super::ports::PortDevice;
use crate::iommu::{self, DeviceView, Devices, DmaEndpoint, Owner};
use crate::mm::{self, Direct, FrameUse};
use crate::pci;
use crate::pci::messages;
use crate::pci::reset::{self, Registers};
use alloc::vec;
use sluice_abi::DomainId;
use sluice_iommu::SpaceTag;
use sluice_iospace::{Contents, Rights, Space};
use sluice_memory::{Extent, Hpa, PAGE_SIZE, PhysicalMemory};
use sluice_uplink::{Card, DmaMemory, NoMemory, RawDevice};

/// In a card's space, its memory begins here: a card that is given no address reaches nothing.
const FIRST: u64 = 0x10_0000;
/// Addresses in a space that every IOMMU translates: of three levels of tables.
const SPACE: u64 = 1 << 39;
/// Memory of cards without an IOMMU is below this.
const LIMIT: u64 = 1 << 32;

/// Where a device that does work for guests finds memory of theirs: each byte as far behind the beginning as it is in the machine's.
#[derive(Clone, Copy)]
pub struct Window {
    offset: u64,
    /// First address behind it.
    end: u64,
}

impl Window {
    /// Of a device whose addresses have 64 bits.
    pub const WIDE: Self = Self { offset: 1 << 38, end: SPACE };
    /// Of 32 bits: behind the device's own memory, and before where a write is an interrupt.
    pub const NARROW: Self = Self { offset: 1 << 28, end: 0xfee0_0000 };

    /// The same where nothing is between the device and the machine's memory.
    const fn untranslated(self) -> Self {
        Self { offset: 0, end: if self.end > LIMIT { u64::MAX } else { LIMIT } }
    }

    /// Where the device finds these bytes; `None` if its addresses do not reach all of them.
    pub fn find(self, hpa: Hpa, bytes: u64) -> Option<u64> {
        let at = hpa.as_u64().checked_add(self.offset)?;
        at.checked_add(bytes).filter(|end| *end <= self.end).map(|_| at)
    }

    /// What of an extent the device's addresses reach.
    fn clip(self, extent: &Extent) -> Option<(u64, Hpa, u64)> {
        let at = extent.hpa.as_u64().checked_add(self.offset)?;
        let len = self.end.checked_sub(at)?.min(extent.len);
        (len > 0).then_some((at, extent.hpa, len))
    }
}

/// A piece of the hypervisor's memory that a device reaches.
struct Piece {
    hpa: Hpa,
    bytes: u64,
    bus: u32,
    is_translated: bool,
}

/// Memory of the hypervisor's that a device reaches.
pub struct Buffers {
    piece: Piece,
    /// Bytes of all that was allocated: more than those of the piece, if some were [taken away](Self::split_off).
    bytes: u64,
    space: Option<(DmaEndpoint, Space<DeviceView<()>, mm::Ledger>)>,
    window: Window,
}

impl Buffers {
    /// Memory for a device that nobody has, and behind an IOMMU all that it reaches. `window`: where it finds what is [lent](Self::lend).
    ///
    /// # Errors
    /// There is none, or the device cannot be kept to it.
    pub fn allocate(device: &Device, bytes: u64, window: Window) -> Result<Self, AttachError> {
        let endpoint = device.dma_endpoint();
        let bytes = bytes.next_multiple_of(PAGE_SIZE);
        let limit = if endpoint.is_some() { u64::MAX } else { LIMIT };
        let hpa =
            mm::allocate_below(FrameUse::Buffer, bytes, PAGE_SIZE, limit).ok_or(AttachError::OutOfMemory)?;
        mm::zero(hpa, bytes);
        let piece = Piece { hpa, bytes, bus: hpa.as_u64() as u32, is_translated: false };
        let window = if endpoint.is_some() { window } else { window.untranslated() };
        let mut buffers = Self { piece, bytes, space: None, window };
        if let Some(endpoint) = endpoint
            && let Err(error) = buffers.contain(device, endpoint)
        {
            buffers.free();
            return Err(error);
        }
        Ok(buffers)
    }

    /// Lets the card reach this memory and nothing else.
    fn contain(&mut self, device: &Device, endpoint: DmaEndpoint) -> Result<(), AttachError> {
        let unit = endpoint.counted();
        // Domains count from 1 upward.
        let tag = unit.unit().tags().min(1 << 16).checked_sub(1 + device.index as u32);
        let tag = SpaceTag(tag.ok_or(AttachError::OutOfMemory)? as u16);
        let tables = Devices::view(tag, vec![unit]).ok_or(AttachError::OutOfMemory)?;
        let root = tables.root();
        endpoint.claim(Owner::Hypervisor).map_err(|iommu::Busy| AttachError::GroupBusy)?;
        let mut space = Space::new(mm::Ledger::Driver);
        let issued = space
            .add_view(tables)
            .and_then(|()| space.issue(FIRST, self.piece.hpa, self.bytes, Rights::MEMORY));
        space.settle(&(), |_, _| ());
        self.space = Some((endpoint, space));
        (self.piece.bus, self.piece.is_translated) = (FIRST as u32, true);
        issued.map_err(|_| AttachError::OutOfMemory)?;
        endpoint.attach(tag, root);
        Ok(())
    }

    /// Lets the device reach memory of a guest, as far as its addresses do, until [`Self::take_back`].
    ///
    /// # Errors
    /// There is no memory for tables.
    pub fn lend(&mut self, by: DomainId, extents: &[Extent]) -> Result<(), AttachError> {
        let Some((_, space)) = &mut self.space else { return Ok(()) };
        let rights = Rights::window(Contents::Lent(by.0));
        let mut pieces = extents.iter().filter_map(|extent| self.window.clip(extent));
        let lent = pieces.try_for_each(|(at, hpa, len)| space.issue(at, hpa, len, rights));
        space.settle(&(), |_, _| ());
        if lent.is_err() {
            self.take_back(extents);
        }
        lent.map_err(|_| AttachError::OutOfMemory)
    }

    /// The device reaches this memory of a guest's no more.
    pub fn take_back(&mut self, extents: &[Extent]) {
        let Some((_, space)) = &mut self.space else { return };
        for (at, _, len) in extents.iter().filter_map(|extent| self.window.clip(extent)) {
            let revoked = space.revoke(at, len);
            // Whole pieces never fail.
            assert!(revoked.is_ok(), "a device keeps a guest's memory: {revoked:?}");
        }
        space.settle(&(), |_, _| ());
    }

    /// Where the device finds memory that was lent.
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Takes the last so many whole pages away, which the device goes on reaching. They are its user's for as long as the machine runs.
    fn split_off(&mut self, bytes: u64) -> Option<Piece> {
        let own = self.piece.bytes.checked_sub(bytes.next_multiple_of(PAGE_SIZE))?;
        let rest = Piece {
            hpa: Hpa::new(self.piece.hpa.as_u64() + own),
            bytes: self.piece.bytes - own,
            bus: self.piece.bus + own as u32,
            is_translated: self.piece.is_translated,
        };
        self.piece.bytes = own;
        Some(rest)
    }

    /// The device is silent: nothing of it reaches this memory any more. Memory of which a part was taken away is not used again.
    pub fn free(mut self) {
        if let Some((endpoint, mut space)) = self.space.take() {
            endpoint.block();
            endpoint.release();
            let revoked = space.revoke(FIRST, self.bytes);
            space.settle(&(), |_, _| ());
            if revoked.is_err() {
                // Nothing was issued.
                log::debug!("a card's space ends empty");
            }
        }
        if self.piece.bytes == self.bytes {
            mm::zero(self.piece.hpa, self.bytes);
            mm::release(FrameUse::Buffer, self.piece.hpa, self.bytes);
        }
    }

    /// `len` bytes from `offset` on, which the device does not write now; `None` if not all of them are there.
    pub fn part(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        self.piece.part(offset, len)
    }

    /// Four bytes at a multiple of four, read at once, which the device may write meanwhile; `None` if they are not there.
    pub fn word(&self, offset: usize) -> Option<u32> {
        self.piece.at(offset, 4).filter(|at| at.is_aligned(4)).map(|at| Direct.read_u32(at))
    }
}

impl DmaMemory for Buffers {
    fn bus(&self) -> u32 {
        self.piece.bus()
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.piece.read(offset, into);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.piece.write(offset, bytes);
    }

    fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        self.piece.with(offset, len, act)
    }

    fn is_translated(&self) -> bool {
        self.piece.is_translated()
    }
}

impl Piece {
    /// See [`Buffers::part`].
    fn part(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let at = self.at(offset, len)?;
        // SAFETY: the frames are this value's, mapped, and initialised; while the slice lives nobody else has it, which takes `&mut self`.
        Some(unsafe { core::slice::from_raw_parts_mut(mm::virt(at), len) })
    }

    fn at(&self, offset: usize, len: usize) -> Option<Hpa> {
        let end = offset.checked_add(len)? as u64;
        (end <= self.bytes).then(|| Hpa::new(self.hpa.as_u64() + offset as u64))
    }
}

impl DmaMemory for Piece {
    fn bus(&self) -> u32 {
        self.bus
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        if let Some(at) = self.at(offset, into.len()) {
            Direct.read(at, into);
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(at) = self.at(offset, bytes.len()) {
            Direct.write(at, bytes);
        }
    }

    fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        self.part(offset, len).is_some_and(act)
    }

    fn is_translated(&self) -> bool {
        self.is_translated
    }
}

enum Interface {
    Ports(PortDevice),
    Memory(Registers),
}

/// The way to a queue of a physical card, for who works on it apart from the card's driver.
pub struct QueueHardware {
    registers: Registers,
    memory: Piece,
}

impl QueueHardware {
    /// The card, for the queue.
    pub fn card(&mut self) -> Card<'_> {
        Card { registers: &mut self.registers, memory: &mut self.memory }
    }
}

/// The way to a physical card.
pub struct Hardware {
    interface: Interface,
    buffers: Option<Buffers>,
    nothing: NoMemory,
}

impl Hardware {
    /// Makes the card ready for its driver, whose registers are in a BAR: it decodes its addresses, and reaches so many bytes of memory.
    pub fn take(device: &Device, bar: u8, memory: usize) -> Result<Self, AttachError> {
        let function = &device.function;
        let bar = function.bar(bar).ok_or(AttachError::NoAddress)?;
        if bar.address == 0 {
            return Err(AttachError::NoAddress);
        }
        device.wait_ready();
        device.decode();
        let interface = match bar.io {
            true => Interface::Ports(PortDevice::new(bar.address as u16)),
            false => Interface::Memory(Registers::of(function, bar.index).ok_or(AttachError::NoAddress)?),
        };
        let buffers = match memory {
            0 => None,
            bytes => Some(Buffers::allocate(device, bytes as u64, Window::NARROW)?),
        };
        if buffers.is_some() {
            function.bdf.set_command(pci::COMMAND_MASTER, 0);
        }
        Ok(Self { interface, buffers, nothing: NoMemory })
    }

    /// The way to a queue of the card's, with the last so many bytes of its memory: for as long as the machine runs. Its driver has registers in a BAR
    /// of memory.
    pub fn split_off(&mut self, device: &Device, bar: u8, memory: usize) -> Option<QueueHardware> {
        let registers = Registers::of(&device.function, bar)?;
        Some(QueueHardware { registers, memory: self.buffers.as_mut()?.split_off(memory as u64)? })
    }

    /// Takes the card off the bus and resets it.
    pub fn give_back(self, device: &Device) {
        reset::quiet(&device.function);
        messages::disable(&device.function);
        device.reset();
        if let Some(buffers) = self.buffers {
            buffers.free();
        }
        device.leave_bus();
    }

    /// Where its driver's memory is for it, behind an IOMMU.
    pub fn home(&self) -> Option<(DmaEndpoint, SpaceTag, Hpa)> {
        let (endpoint, space) = self.buffers.as_ref()?.space.as_ref()?;
        let tables = space.views().next()?;
        Some((*endpoint, tables.audience().tag(), tables.root()))
    }

    /// The card, for its driver.
    pub fn card(&mut self) -> Card<'_> {
        let registers: &mut dyn RawDevice = match &mut self.interface {
            Interface::Ports(ports) => ports,
            Interface::Memory(registers) => registers,
        };
        match &mut self.buffers {
            Some(memory) => Card { registers, memory },
            None => Card { registers, memory: &mut self.nothing },
        }
    }
}

impl RawDevice for Registers {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        self.read_wide(offset.into(), width).unwrap_or(u64::MAX) as u32
    }

    fn write(&mut self, offset: u16, width: u8, value: u32) {
        let _ = self.write_wide(offset.into(), width, value.into());
    }
}
