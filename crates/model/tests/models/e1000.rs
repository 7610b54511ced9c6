//! The software e1000 beside its model.

use super::beside::Card;
use sluice_model::models::e1000::MODEL;
use sluice_model::{Model, RegisterId};
use sluice_nic::dma::Dma;
use sluice_nic::e1000::registers::{Receive, reg};
use sluice_nic::e1000::{MAX_OUTGOING, Transmission};
use sluice_nic::{Budget, E1000};

impl Card for E1000 {
    const MODEL: &'static Model = &MODEL;

    fn write(&mut self, offset: u32, width: u8, value: u32, _: &mut dyn Dma) {
        E1000::write(self, offset, width, value);
    }

    fn read(&mut self, offset: u32, width: u8) -> u32 {
        E1000::read(self, offset, width)
    }

    fn register(&self, id: RegisterId, _: u8) -> u32 {
        MODEL.register(id).map_or(0, |register| self.regs.get(register.first))
    }

    fn work(&mut self, bus: &mut dyn Dma) {
        let mut frame = vec![0; MAX_OUTGOING];
        for _ in 0..1_000_000 {
            if self.transmit(bus, &mut frame, &mut Budget::default()) == Transmission::Idle {
                return;
            }
        }
        panic!("it sends without end");
    }

    fn receive(&mut self, frame: &[u8], bus: &mut dyn Dma) {
        // Long after RCTL was written.
        let due = self.deadline().unwrap_or(0);
        self.advance(due);
        E1000::receive(self, bus, frame, &mut Budget::default());
    }

    fn pending(&self) -> bool {
        self.regs.get(reg::ICR) != 0
    }

    fn state(&self, machine: &str) -> Option<&'static str> {
        Some(match machine {
            "transmitter" => {
                if self.regs.transmitter_on() {
                    "Idle"
                } else {
                    "Off"
                }
            }
            "receiver" => {
                if self.regs.receive().contains(Receive::ENABLE) {
                    "Running"
                } else {
                    "Off"
                }
            }
            // Chip select. A word may be read otherwise, too.
            "EEPROM" if self.image(reg::EECD) & 2 != 0 => "Selected",
            // Pending says only that there may be a cause.
            "interrupt" if self.pending() => "Pending",
            _ => return None,
        })
    }

    fn buffer(&self) -> u64 {
        self.regs.buffer_size().into()
    }
}
