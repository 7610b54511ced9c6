//! The command block registers that a guest writes, kept until it writes a command.
//!
//! Source: ATA-6, sections 6.20 (48-bit Address feature set: each register remembers what it held before) and 7.

/// Registers of the command block that carry parameters, at their offsets from its base (1F0h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Register {
    /// Features.
    Features = 1,
    /// Sector count.
    Count = 2,
    /// LBA low.
    Low = 3,
    /// LBA mid.
    Mid = 4,
    /// LBA high.
    High = 5,
}

/// What a guest wrote. `[0]` is the latest content of a register, `[1]` the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskFile {
    registers: [[u8; 2]; 5],
    device: u8,
}

impl TaskFile {
    /// The guest writes a register.
    pub const fn write(&mut self, register: Register, value: u8) {
        let kept = &mut self.registers[register as usize - 1];
        *kept = [value, kept[0]];
    }

    /// The guest writes the device register.
    pub const fn select(&mut self, value: u8) {
        self.device = value;
    }

    /// What the guest reads; `previous` if it set HOB in the device control register.
    pub const fn read(&self, register: Register, previous: bool) -> u8 {
        self.registers[register as usize - 1][previous as usize]
    }

    /// The device register.
    pub const fn device(&self) -> u8 {
        self.device
    }

    /// Device 1 is selected. A slice is device 0.
    pub const fn selects_second(&self) -> bool {
        self.device & 0x10 != 0
    }

    /// The address is in LBA form, not in cylinders, heads and sectors.
    pub const fn is_lba(&self) -> bool {
        self.device & 0x40 != 0
    }

    /// Address and number of sectors of a command with 28-bit addresses. A count of 0 stands for 256.
    pub fn short(&self) -> (u64, u32) {
        let low = |register| u64::from(self.read(register, false));
        let lba = low(Register::Low) | low(Register::Mid) << 8 | low(Register::High) << 16;
        let count = u32::from(self.read(Register::Count, false));
        (lba | u64::from(self.device & 0xf) << 24, if count == 0 { 256 } else { count })
    }

    /// Address and number of sectors of a command with 48-bit addresses. A count of 0 stands for 65,536.
    pub fn long(&self) -> (u64, u32) {
        let both = |register| [self.read(register, false), self.read(register, true)];
        let ([l, ll], [m, mm], [h, hh]) = (both(Register::Low), both(Register::Mid), both(Register::High));
        let count = u32::from(u16::from_le_bytes(both(Register::Count)));
        (u64::from_le_bytes([l, m, h, ll, mm, hh, 0, 0]), if count == 0 { 1 << 16 } else { count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pairs: &[(Register, u8)]) -> TaskFile {
        let mut file = TaskFile::default();
        pairs.iter().for_each(|&(register, value)| file.write(register, value));
        file
    }

    #[test]
    fn a_register_remembers_what_it_held_before() {
        use Register::{Count, High, Low, Mid};
        let file = written(&[
            (Count, 0x01),
            (Low, 0x04),
            (Mid, 0x05),
            (High, 0x06),
            (Count, 0x02),
            (Low, 0x11),
            (Mid, 0x12),
            (High, 0x13),
        ]);
        assert_eq!(file.long(), (0x0605_0413_1211, 0x0102));
        assert_eq!((file.read(Low, false), file.read(Low, true)), (0x11, 0x04));
    }

    #[test]
    fn short_addresses_end_in_the_device_register() {
        let mut file =
            written(&[(Register::Low, 1), (Register::Mid, 2), (Register::High, 3), (Register::Count, 9)]);
        file.select(0xe4);
        assert_eq!(file.short(), (0x0403_0201, 9));
        assert!(file.is_lba() && !file.selects_second());
    }

    #[test]
    fn no_count_is_the_largest() {
        assert_eq!(TaskFile::default().short().1, 256);
        assert_eq!(TaskFile::default().long().1, 65_536);
    }
}
