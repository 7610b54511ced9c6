//! The ports of the physical channel.

use super::super::ports::PortDevice;
use crate::pci;
use crate::x86::tsc;
use sluice_ide::{Block, Ports};
use sluice_vpio::RawDevice;

/// Where the first channel is in compatibility mode (PCI IDE Controller Specification 1.0, 2.1): its command block, and its
/// control block as far back as that of native mode begins.
const COMPATIBLE: (u16, u16) = (0x1f0, 0x3f4);

/// The first channel of a controller.
pub struct Channel {
    command: PortDevice,
    control: PortDevice,
    master: PortDevice,
}

impl Channel {
    /// The channel of a function; `None` if it has no addresses.
    pub fn of(function: &pci::Function) -> Option<Self> {
        let at = |bar: u8| {
            let bar = function.bar(bar).filter(|bar| bar.io && bar.address != 0)?;
            u16::try_from(bar.address).ok()
        };
        let (command, control) = if pci::is_compatible_ide(function) { COMPATIBLE } else { (at(0)?, at(1)?) };
        let [command, control, master] = [command, control, at(4)?].map(PortDevice::new);
        Some(Self { command, control, master })
    }

    fn block(&mut self, block: Block) -> &mut PortDevice {
        match block {
            Block::Command => &mut self.command,
            Block::Control => &mut self.control,
            Block::BusMaster => &mut self.master,
        }
    }
}

impl Ports for Channel {
    fn read(&mut self, block: Block, offset: u8, width: u8) -> u32 {
        self.block(block).read(offset.into(), width)
    }

    fn write(&mut self, block: Block, offset: u8, width: u8, value: u32) {
        self.block(block).write(offset.into(), width, value);
    }

    fn delay_us(&mut self, us: u64) {
        tsc::delay_us(us);
    }
}
