//! The software RTL8139 beside its model.

use super::beside::Card;
use sluice_model::models::rtl8139::{MODEL, id};
use sluice_model::{Model, RegisterId};
use sluice_nic::dma::Dma;
use sluice_nic::rtl8139::registers::{Command, CplusCommand};
use sluice_nic::{Budget, Rtl8139};

impl Card for Rtl8139 {
    const MODEL: &'static Model = &MODEL;

    fn write(&mut self, offset: u32, width: u8, value: u32, bus: &mut dyn Dma) {
        Rtl8139::write(self, offset as u16, width, value, bus);
    }

    fn read(&mut self, offset: u32, width: u8) -> u32 {
        Rtl8139::read(self, offset as u16, width)
    }

    fn register(&self, id: RegisterId, n: u8) -> u32 {
        let Some(register) = MODEL.register(id) else { return 0 };
        // The ring's length is what RCR said when it was last written, 8 KiB after reset.
        if id == id::RCR {
            return u32::from(self.regs.ring_shift) << 11;
        }
        let offset = register.first + u32::from(n) * u32::from(register.width);
        Rtl8139::read(self, offset as u16, register.width)
    }

    fn turn(&self) -> u8 {
        self.regs.next_tsd
    }

    fn work(&mut self, bus: &mut dyn Dma) {
        for _ in 0..10_000 {
            if !self.busy() {
                return;
            }
            self.transmit(bus, &mut Budget::default());
        }
        panic!("it sends without end");
    }

    fn receive(&mut self, frame: &[u8], bus: &mut dyn Dma) {
        Rtl8139::receive(self, frame, bus);
    }

    fn state(&self, machine: &str) -> Option<&'static str> {
        let on = |bit: Command| self.regs.cr & bit.bits() != 0;
        let chosen = |bit: CplusCommand| self.regs.cpcr & bit.bits() != 0;
        Some(match machine {
            "mode" => {
                if self.regs.cplus {
                    "C+"
                } else {
                    "C"
                }
            }
            "transmitter, C" => {
                if on(Command::TRANSMIT) {
                    "Idle"
                } else {
                    "Off"
                }
            }
            "transmitter, C+" => match (on(Command::TRANSMIT), chosen(CplusCommand::TRANSMIT)) {
                (false, false) => "Off",
                (true, false) => "TE only",
                (false, true) => "CPCR only",
                (true, true) => "Idle",
            },
            "receiver" => match (on(Command::RECEIVE), chosen(CplusCommand::RECEIVE)) {
                (false, false) => "Off",
                (false, true) => "CPCR only",
                (true, false) => "Running, C",
                (true, true) => "Running, C+",
            },
            "tally dump" => "Quiet",
            "EEPROM" => match self.regs.cr9346 & 0xc0 {
                0x80 => "Programming",
                0xc0 => "Unlocked",
                _ => "Locked",
            },
            _ => return None,
        })
    }

    fn buffer(&self) -> u64 {
        0x1fff
    }
}
