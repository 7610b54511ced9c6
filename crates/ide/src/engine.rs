//! The physical disk, as the hypervisor drives it: one command at a time, data by its bus master.
//!
//! Source: ATA-6, 9.2 (software reset), 9.5-9.9 (protocols); SFF-8038i, section 3.

use crate::Block;
use crate::bits::{BSY, DF, DRDY, DRQ, ERR, ERROR, INTERRUPT, INTO_MEMORY, SRST, START};
use crate::identify::Words;
use crate::{Issue, Kind};

/// The registers of the physical channel, and time.
pub trait Ports {
    /// Reads a register of 1, 2 or 4 bytes.
    fn read(&mut self, block: Block, offset: u8, width: u8) -> u32;

    /// Writes a register of 1, 2 or 4 bytes.
    fn write(&mut self, block: Block, offset: u8, width: u8, value: u32);

    /// Waits for so many microseconds.
    fn delay_us(&mut self, us: u64);
}

/// A command of the physical disk's that failed: what status and error registers said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Status.
    pub status: u8,
    /// Error.
    pub error: u8,
}

/// How long a disk may be busy with itself after a reset, in microseconds (ATA-6, 9.2: 31 seconds). A disk that a busy
/// host emulates may take seconds, too.
const BUSY_US: u64 = 31_000_000;

/// Before so many microseconds after a reset a disk of old says nothing that counts; BSY is valid 400 ns after a command.
pub const SETTLES_US: u64 = 2_000;

/// How long a channel may say nothing of a disk, in microseconds, before it has none.
const SILENT_US: u64 = 2_000_000;

/// What a channel without a disk reads as, if nothing pulls its bus down.
const FLOATING: u8 = 0xff;

/// The physical disk: device 0 of its channel.
#[derive(Debug)]
pub struct Engine<P> {
    ports: P,
}

impl<P: Ports> Engine<P> {
    /// A disk that nobody else uses.
    pub const fn new(ports: P) -> Self {
        Self { ports }
    }

    #[cfg(test)]
    pub(crate) const fn ports(&mut self) -> &mut P {
        &mut self.ports
    }

    fn status(&mut self) -> u8 {
        self.ports.read(Block::Control, 2, 1) as u8
    }

    /// Begins a reset of the channel: what ran is over, and nothing moves any more. [`Self::is_ready`] says when a command can be started, but not before
    /// [`SETTLES_US`].
    pub fn reset(&mut self) {
        self.ports.write(Block::BusMaster, 0, 1, 0);
        // What it has written is in memory when something was read behind it.
        self.ports.read(Block::BusMaster, 2, 1);
        self.ports.write(Block::Control, 2, 1, SRST.into());
        self.ports.delay_us(5);
        self.ports.write(Block::Control, 2, 1, 0);
        self.ports.write(Block::BusMaster, 2, 1, (ERROR | INTERRUPT).into());
    }

    /// Whether a command can be started.
    pub fn is_ready(&mut self) -> bool {
        self.status() & (BSY | DRQ | DRDY) == DRDY
    }

    /// Waits until the status is as it should be: long for a disk that works, not long for none.
    fn wait(&mut self, is_it: fn(u8) -> bool) -> Option<u8> {
        const STEP_US: u64 = 10;
        let (mut busy, mut silent) = (BUSY_US, SILENT_US);
        loop {
            let status = self.status();
            if is_it(status) {
                return Some(status);
            }
            let works = status & BSY != 0 && status != FLOATING;
            let left = if works { &mut busy } else { &mut silent };
            *left = left.checked_sub(STEP_US)?;
            self.ports.delay_us(STEP_US);
        }
    }

    /// Selects device 0.
    fn select(&mut self) {
        self.ports.write(Block::Command, 6, 1, 0xa0);
    }

    /// Resets the channel and asks the disk who it is. `None` if it does not answer, or is none that can be shared: it must
    /// have LBA and DMA, and sectors of 512 bytes (ATA-6, 8.15).
    pub fn identify(&mut self) -> Option<Words> {
        // Before the reset, so that it is device 0 whose BSY shows, and not that of one which is not there; and after it, since what is
        // written to a busy channel is ignored, and that of a busy host is busy for long.
        self.select();
        self.reset();
        self.ports.delay_us(SETTLES_US);
        self.wait(|status| status & BSY == 0)?;
        self.select();
        self.wait(|status| status & (BSY | DRDY) == DRDY)?;
        self.ports.write(Block::Command, 7, 1, 0xec);
        let status = self.wait(|status| status & BSY == 0 && status & (DRQ | ERR) != 0)?;
        if status & ERR != 0 {
            return None;
        }
        let mut words = [0; 256];
        words.iter_mut().for_each(|word| *word = self.ports.read(Block::Command, 0, 2) as u16);
        // The interrupt that it raised is nobody's.
        self.ports.read(Block::Command, 7, 1);
        self.ports.write(Block::BusMaster, 2, 1, (ERROR | INTERRUPT).into());
        let is_disk = words[0] & 1 << 15 == 0;
        let has_lba_and_dma = words[49] & 0b11 << 8 == 0b11 << 8;
        // Words 106 and 117 say so if sectors are longer (ATA-7, 6.16.60).
        let is_long = words[106] & 0xd000 == 0x5000;
        (is_disk && has_lba_and_dma && !is_long).then_some(words)
    }

    /// Starts a command. `table`: address of a descriptor table with exactly its bytes.
    pub fn start(&mut self, issue: &Issue, table: u32) {
        let direction = if issue.kind == Kind::DmaIn { INTO_MEMORY } else { 0 };
        if issue.kind != Kind::NoData {
            self.ports.write(Block::BusMaster, 4, 4, table);
            self.ports.write(Block::BusMaster, 0, 1, direction.into());
            self.ports.write(Block::BusMaster, 2, 1, (ERROR | INTERRUPT).into());
        }
        let (registers, device) = issue.registers();
        self.ports.write(Block::Command, 6, 1, device.into());
        let rounds = if issue.long { [1, 0].as_slice() } else { &[0] };
        for round in rounds {
            for (offset, value) in (2..).zip(registers[*round]) {
                self.ports.write(Block::Command, offset, 1, value.into());
            }
        }
        self.ports.write(Block::Command, 7, 1, issue.code.into());
        if issue.kind != Kind::NoData {
            self.ports.write(Block::BusMaster, 0, 1, (direction | START).into());
        }
    }

    /// Has the disk's line go down where no command runs: what it has interrupted for, of a command that was stopped or of a reset, is nobody's, and a line
    /// that stays up would interrupt for ever. A read of the status lowers it (ATA-6, the Status register), one of the alternate status does not.
    pub fn silence(&mut self) {
        self.ports.read(Block::Command, 7, 1);
    }

    /// What became of the command that was started last, if it is over and nobody was told.
    pub fn take_result(&mut self) -> Option<Result<(), Failure>> {
        let master = self.ports.read(Block::BusMaster, 2, 1) as u8;
        if master & INTERRUPT == 0 {
            return None;
        }
        // Its last bytes are in memory when the bus master has said that the disk interrupted.
        self.ports.write(Block::BusMaster, 0, 1, 0);
        let status = self.ports.read(Block::Command, 7, 1) as u8;
        self.ports.write(Block::BusMaster, 2, 1, (ERROR | INTERRUPT).into());
        if status & (BSY | DRQ | DF | ERR) == 0 && master & ERROR == 0 {
            return Some(Ok(()));
        }
        let error = self.ports.read(Block::Command, 1, 1) as u8;
        Some(Err(Failure { status, error }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A channel that is busy for some time after a reset, with a disk as device 0; device 1 was selected last, as by a firmware that looked for one.
    struct Slow {
        now: u64,
        takes: u64,
        busy_until: u64,
        /// What device 0 says.
        status: u8,
        /// What device 1 says: 0 if there is none.
        second: u8,
        is_second: bool,
    }

    impl Slow {
        fn is_busy(&self) -> bool {
            self.now < self.busy_until
        }
    }

    impl Ports for Slow {
        fn read(&mut self, block: Block, offset: u8, _: u8) -> u32 {
            let status = if self.is_second { self.second } else { self.status };
            match (block, offset) {
                (Block::Command, 0) => 0b11 << 8,
                _ if status == 0 || !self.is_busy() => status.into(),
                _ => BSY.into(),
            }
        }

        fn write(&mut self, block: Block, offset: u8, _: u8, value: u32) {
            match (block, offset, value) {
                (Block::Control, 2, value) if value == SRST.into() => self.busy_until = self.now + self.takes,
                (Block::Command, ..) if self.is_busy() => {}
                (Block::Command, 6, value) => self.is_second = value & 1 << 4 != 0,
                (Block::Command, 7, 0xec) if self.is_second => {
                    assert_eq!(self.second, 0, "it is not the disk")
                }
                (Block::Command, 7, 0xec) => self.status |= DRQ,
                _ => {}
            }
        }

        fn delay_us(&mut self, us: u64) {
            self.now += us;
        }
    }

    /// Asks who it is; also says how many seconds that took. A command runs before `busy_until`, and a reset takes so long.
    fn identify_beside(second: u8, busy_until: u64, takes_s: u64, status: u8) -> (bool, u64) {
        let takes = takes_s * 1_000_000;
        let mut engine = Engine::new(Slow { now: 0, takes, busy_until, status, second, is_second: true });
        (engine.identify().is_some(), engine.ports().now / 1_000_000)
    }

    fn identify(takes_s: u64, status: u8) -> (bool, u64) {
        identify_beside(0, 0, takes_s, status)
    }

    #[test]
    fn a_disk_has_31_seconds_to_come_out_of_a_reset() {
        assert_eq!(identify(0, DRDY), (true, 0));
        assert_eq!(identify(30, DRDY), (true, 30));
        assert_eq!(identify(40, DRDY), (false, 31));
    }

    #[test]
    fn device_0_is_asked_whichever_was_selected_last() {
        assert_eq!(identify_beside(0, 0, 5, DRDY), (true, 5), "there is no device 1");
        assert_eq!(identify_beside(DRDY, 0, 5, DRDY), (true, 5));
        assert_eq!(identify_beside(DRDY, 1_000, 5, DRDY), (true, 5), "a command of device 1's runs");
    }

    #[test]
    fn a_channel_without_a_disk_is_told_soon() {
        for status in [0, FLOATING] {
            assert_eq!(identify(0, status), (false, 2), "{status:#x}");
        }
    }
}
