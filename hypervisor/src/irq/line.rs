//! Physical interrupt lines (INTx), which several functions may share.
//!
//! Key type: [`Line`]. A line that was raised is masked at the I/O APIC until every device on it has dealt with
//! the interrupt: nothing tells which of them raised it, and each owner looks for itself.

use crate::cpu::{self, idt};
use crate::irq::ioapic;
use crate::sync::{Once, Rank, SpinLock};
use alloc::vec::Vec;

/// First vector of lines.
const FIRST_VECTOR: u8 = 0x40;
/// Vectors for lines.
const VECTORS: usize = 32;

/// Devices by bit of their index.
#[derive(Clone, Copy, Default)]
struct Devices {
    /// Those whose owners take interrupts.
    active: u64,
    /// Those of them that have not dealt with the last one yet.
    waiting: u64,
}

/// One input of an I/O APIC.
pub struct Line {
    gsi: u32,
    devices: SpinLock<Devices>,
}

static LINES: Once<Vec<Line>> = Once::new();

/// Routes the lines with these GSIs (each once), masked; `raised` is called with the vector of one that was raised.
pub fn init(gsis: &[u32], raised: fn(u8)) {
    let lines: Vec<Line> = gsis
        .iter()
        .take(VECTORS)
        .map(|gsi| Line { gsi: *gsi, devices: SpinLock::new(Rank::Line, Devices::default()) })
        .collect();
    if gsis.len() > VECTORS {
        log::warn!("more interrupt lines than are supported");
    }
    LINES.call_once(|| lines);
    let server = cpu::get(cpu::device_server()).map_or(cpu::this().apic_id, |cpu| cpu.apic_id);
    for (index, line) in all().iter().enumerate() {
        let vector = FIRST_VECTOR + index as u8;
        idt::set_handler(vector, raised);
        ioapic::route(line.gsi, vector, server, ioapic::Trigger::LevelHigh);
    }
}

fn all() -> &'static [Line] {
    LINES.get().map_or(&[], Vec::as_slice)
}

/// The line of a GSI.
pub fn of(gsi: u32) -> Option<&'static Line> {
    all().iter().find(|line| line.gsi == gsi)
}

/// The line behind a vector.
pub fn behind(vector: u8) -> Option<&'static Line> {
    all().get(usize::from(vector.checked_sub(FIRST_VECTOR)?))
}

impl Line {
    /// The line was raised: silences it, and says whose devices it may have been.
    pub fn raised(&self) -> u64 {
        let mut devices = self.devices.lock();
        ioapic::mask_and_end(self.gsi);
        devices.waiting = devices.active;
        devices.active
    }

    /// A device takes interrupts from now on, or has dealt with the last one.
    pub fn open(&self, device: usize) {
        let mut devices = self.devices.lock();
        devices.active |= 1 << device;
        devices.waiting &= !(1 << device);
        if devices.waiting == 0 {
            ioapic::unmask(self.gsi);
        }
    }

    /// A device takes no interrupts any more; its function no longer asserts any.
    pub fn close(&self, device: usize) {
        let mut devices = self.devices.lock();
        devices.active &= !(1 << device);
        devices.waiting &= !(1 << device);
        if devices.active == 0 {
            ioapic::mask(self.gsi);
        } else if devices.waiting == 0 {
            ioapic::unmask(self.gsi);
        }
    }
}
