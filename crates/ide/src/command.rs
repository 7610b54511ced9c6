//! What becomes of a command.
//!
//! Allowed is what is listed; every other code is aborted, those that nobody has defined yet among them.
//! Source: ATA-6, section 8, and table 17 for what is obsolete.

use crate::{Slice, TaskFile};

/// How data of an issued command moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the disk, through the data register.
    PioIn,
    /// To the disk, through the data register.
    PioOut,
    /// From the disk into memory.
    DmaIn,
    /// From memory to the disk.
    DmaOut,
    /// None.
    NoData,
}

/// A command for the physical disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Its code.
    pub code: u8,
    /// How data moves.
    pub kind: Kind,
    /// The first sector, on the physical disk. 0 for a command without an address.
    pub lba: u64,
    /// How many sectors: 0 for a command without, up to 65,536.
    pub count: u32,
    /// Registers are written twice: the address has 48 bits.
    pub long: bool,
}

/// A command that is answered without the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// IDENTIFY DEVICE: 512 bytes, of [`crate::identify::filter`].
    Identify,
    /// It has succeeded: a transfer mode, or a power state, of the guest's own disk.
    Done,
    /// CHECK POWER MODE: the sector count reads FFh, active or idle.
    Active,
}

/// Why a command is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The code is not allowed.
    Code,
    /// SET FEATURES of something that all guests of the disk would notice.
    Feature,
    /// The address is in cylinders, heads and sectors.
    NotLba,
    /// The physical disk has no addresses of 48 bits.
    NotLong,
    /// Sectors outside the guest's disk. The guest sees IDNF beside ABRT.
    OutOfSlice,
    /// Device 1 is selected, which the guest does not have.
    NoDevice,
}

/// What becomes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is answered at once.
    Local(Local),
    /// The disk gets it.
    Issue(Issue),
    /// It fails.
    Abort(Abort),
}

/// What the physical disk can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Addresses of 48 bits.
    pub long: bool,
}

/// Sectors that an address of 28 bits reaches.
const SHORT: u64 = 1 << 28;

/// Decides what becomes of the command `code` with the parameters in `file`, for the guest that has `slice`.
pub fn vet(code: u8, file: &TaskFile, slice: &Slice, disk: Disk) -> Verdict {
    if file.selects_second() {
        return Verdict::Abort(Abort::NoDevice);
    }
    match code {
        0xec => Verdict::Local(Local::Identify),
        0xe0..=0xe3 => Verdict::Local(Local::Done),
        0xe5 => Verdict::Local(Local::Active),
        // Set transfer mode; each guest's driver sets its own, and the hypervisor the physical one.
        0xef if file.read(crate::Register::Features, false) == 0x03 => Verdict::Local(Local::Done),
        0xef => Verdict::Abort(Abort::Feature),
        0xe7 => flush(0xe7, false, disk),
        0xea => flush(0xea, true, disk),
        _ => match transfer(code) {
            Some((kind, long)) => access(kind, long, code, file, slice, disk),
            None => Verdict::Abort(Abort::Code),
        },
    }
}

/// A command that moves or verifies sectors, and whether its address has 48 bits.
const fn transfer(code: u8) -> Option<(Kind, bool)> {
    Some(match code {
        0x20 => (Kind::PioIn, false),
        0x24 => (Kind::PioIn, true),
        0x25 => (Kind::DmaIn, true),
        0x30 => (Kind::PioOut, false),
        0x34 => (Kind::PioOut, true),
        0x35 => (Kind::DmaOut, true),
        0x40 => (Kind::NoData, false),
        0x42 => (Kind::NoData, true),
        0xc8 => (Kind::DmaIn, false),
        0xca => (Kind::DmaOut, false),
        _ => return None,
    })
}

/// The codes for the same with an address of 48 bits.
const fn lengthened(code: u8) -> u8 {
    match code {
        0x20 => 0x24,
        0x30 => 0x34,
        0x40 => 0x42,
        0xc8 => 0x25,
        0xca => 0x35,
        other => other,
    }
}

fn flush(code: u8, long: bool, disk: Disk) -> Verdict {
    if long && !disk.long {
        return Verdict::Abort(Abort::NotLong);
    }
    Verdict::Issue(Issue { code, kind: Kind::NoData, lba: 0, count: 0, long })
}

fn access(kind: Kind, long: bool, code: u8, file: &TaskFile, slice: &Slice, disk: Disk) -> Verdict {
    if long && !disk.long {
        return Verdict::Abort(Abort::NotLong);
    }
    if !file.is_lba() {
        return Verdict::Abort(Abort::NotLba);
    }
    let (lba, count) = if long { file.long() } else { file.short() };
    let Ok(lba) = slice.translate(lba, count) else {
        return Verdict::Abort(Abort::OutOfSlice);
    };
    // A short address of the guest's may lie beyond what a short one of the physical disk reaches.
    let beyond = lba + u64::from(count) > SHORT;
    if beyond && !disk.long {
        return Verdict::Abort(Abort::NotLong);
    }
    let code = if beyond { lengthened(code) } else { code };
    Verdict::Issue(Issue { code, kind, lba, count, long: long || beyond })
}

impl Issue {
    /// Bytes that move.
    pub fn bytes(&self) -> u64 {
        if self.kind == Kind::NoData { 0 } else { u64::from(self.count) * crate::SECTOR }
    }

    /// What to write into count, LBA low, mid and high: first `[1]`, if [`Self::long`], then `[0]`; and into
    /// the device register.
    pub const fn registers(&self) -> ([[u8; 4]; 2], u8) {
        let [l, m, h, ll, mm, hh, ..] = self.lba.to_le_bytes();
        // 256 and 65,536 are written as 0.
        let [c, cc, ..] = self.count.to_le_bytes();
        let device = if self.long { 0xe0 } else { 0xe0 | ll & 0xf };
        ([[c, l, m, h], [cc, ll, mm, hh]], device)
    }
}

#[cfg(test)]
mod tests;
