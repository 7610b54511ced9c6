//! The PHY behind MDIC, auto-negotiation, and the link.
//!
//! Source: manual 317453, section 13.4 (MDIC and the PHY's registers); IEEE 802.3 clause 22 (registers 0-15);
//! behaviour as QEMU's card shows it. There is one PHY, at address 1. Negotiating takes 500 ms and always ends at
//! 1000 Mb/s, full duplex, whatever was advertised.

use super::E1000;
use super::registers::{Cause, Status, reg};

/// PHY registers that do something here.
#[allow(missing_docs, reason = "the standard's names")]
pub mod mii {
    pub const BMCR: usize = 0;
    pub const BMSR: usize = 1;
    pub const PHYID1: usize = 2;
    pub const PHYID2: usize = 3;
    pub const ANAR: usize = 4;
    pub const ANLPAR: usize = 5;
    pub const ANER: usize = 6;
    pub const CTRL1000: usize = 9;
    pub const STAT1000: usize = 10;
    /// PSCR, Marvell.
    pub const SPEC_CONTROL: usize = 16;
    /// PSSR, Marvell.
    pub const SPEC_STATUS: usize = 17;
    /// EPSCR, Marvell.
    pub const EXT_SPEC_CONTROL: usize = 20;
    /// RECR, Marvell.
    pub const RECEIVE_ERRORS: usize = 21;
}

/// BMCR: frames sent come back.
pub(super) const LOOPBACK: u16 = 1 << 14;
/// BMCR: auto-negotiation on.
const NEGOTIATE: u16 = 1 << 12;
/// BMCR: negotiate again.
const RESTART: u16 = 1 << 9;
/// BMCR: bits that are kept; reset and restart clear themselves.
const BMCR_KEPT: u16 = !(1 << 15 | RESTART | 0x3f);
/// BMSR: the link is up.
const LINK: u16 = 1 << 2;
/// BMSR: negotiation is complete.
const COMPLETE: u16 = 1 << 5;
/// ANLPAR: the partner acknowledged.
const ACKNOWLEDGED: u16 = 1 << 14;
/// How long negotiating takes, in nanoseconds.
const NEGOTIATION: u64 = 500 * MILLISECOND;
/// QEMU's timers of this sort have this grain.
pub(super) const MILLISECOND: u64 = 1_000_000;

/// Registers of the PHY.
pub type Phy = [u16; 32];

/// The registers after reset: link up, negotiation not complete.
pub(super) const RESET: Phy = {
    let mut registers = [0; 32];
    registers[mii::BMCR] = 0x1140;
    registers[mii::BMSR] = 0x794d;
    registers[mii::PHYID1] = 0x0141;
    registers[mii::PHYID2] = 0x0c20;
    registers[mii::ANAR] = 0x0de1;
    registers[mii::ANLPAR] = 0x01e0;
    registers[mii::CTRL1000] = 0x0e00;
    registers[mii::STAT1000] = 0x3c00;
    registers[mii::SPEC_CONTROL] = 0x0360;
    registers[mii::SPEC_STATUS] = 0xac00;
    registers[mii::EXT_SPEC_CONTROL] = 0x0d60;
    registers
};

/// The register can be read.
const fn readable(register: usize) -> bool {
    writable(register)
        || matches!(register, mii::BMSR | mii::PHYID1 | mii::PHYID2 | mii::ANLPAR | mii::ANER)
        || matches!(register, mii::STAT1000 | mii::SPEC_STATUS | mii::RECEIVE_ERRORS)
}

/// The register can be written.
const fn writable(register: usize) -> bool {
    matches!(register, mii::BMCR | mii::ANAR | mii::CTRL1000 | mii::SPEC_CONTROL | mii::EXT_SPEC_CONTROL)
}

impl E1000 {
    /// Frames sent come back.
    pub const fn loops_back(&self) -> bool {
        self.phy[mii::BMCR] & LOOPBACK != 0
    }

    /// MDIC written: the access is done within the write.
    pub(super) fn access_phy(&mut self, mut value: u32) {
        const READ: u32 = 1 << 27;
        const WRITE: u32 = 1 << 26;
        const READY: u32 = 1 << 28;
        const INTERRUPT: u32 = 1 << 29;
        const ERROR: u32 = 1 << 30;
        let register = (value >> 16 & 0x1f) as usize;
        if value >> 21 & 0x1f != 1 {
            value = self.regs.get(reg::MDIC) | ERROR;
        } else if value & READ != 0 {
            if readable(register) {
                value = value & !0xffff | u32::from(self.phy[register]);
            } else {
                value |= ERROR;
            }
        } else if value & WRITE != 0 {
            if register == mii::BMCR {
                self.control_phy(value as u16);
            } else if writable(register) {
                self.phy[register] = value as u16;
            } else {
                value |= ERROR;
            }
        }
        self.regs.set(reg::MDIC, value | READY);
        if value & INTERRUPT != 0 {
            self.raise(Cause::MDIO);
        }
    }

    fn control_phy(&mut self, value: u16) {
        self.phy[mii::BMCR] = value & BMCR_KEPT;
        if value & NEGOTIATE != 0 && value & RESTART != 0 {
            self.negotiate();
        }
    }

    /// Takes the link down until negotiation is done.
    fn negotiate(&mut self) {
        self.link_down();
        self.negotiated_at = Some((self.now / MILLISECOND * MILLISECOND).saturating_add(NEGOTIATION));
    }

    /// Time is up: the link comes up if the cable is there.
    pub(super) fn negotiated(&mut self) {
        if !self.cable {
            return;
        }
        self.link_up();
        self.phy[mii::ANLPAR] |= ACKNOWLEDGED;
        self.phy[mii::BMSR] |= COMPLETE;
        self.raise(Cause::LINK);
    }

    /// Plugs the cable in or pulls it. Without it no frame goes out or comes in.
    pub fn set_cable(&mut self, plugged: bool) {
        self.cable = plugged;
        let before = self.regs.link_up();
        if !plugged {
            self.link_down();
        } else if self.phy[mii::BMCR] & NEGOTIATE != 0 && self.phy[mii::BMSR] & COMPLETE == 0 {
            self.negotiate();
        } else {
            self.link_up();
        }
        if self.regs.link_up() != before {
            self.raise(Cause::LINK);
        }
    }

    pub(super) fn link_down(&mut self) {
        self.regs.set(reg::STATUS, self.regs.get(reg::STATUS) & !Status::LINK_UP.bits());
        self.phy[mii::BMSR] &= !(LINK | COMPLETE);
        self.phy[mii::ANLPAR] &= !ACKNOWLEDGED;
    }

    fn link_up(&mut self) {
        self.regs.set(reg::STATUS, self.regs.get(reg::STATUS) | Status::LINK_UP.bits());
        self.phy[mii::BMSR] |= LINK;
    }
}
