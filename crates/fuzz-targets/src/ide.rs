//! Commands for a shared IDE disk.

use crate::Input;
use sluice_ide::{Disk, Kind, Register, SECTOR, Slice, TaskFile, Verdict, prd, vet};
use sluice_memory::{Gpa, GuestMemory, Hpa, PhysicalMemory};

/// Memory that holds what the input has left, over and over.
struct Repeated<'a>(&'a [u8], bool);

impl PhysicalMemory for Repeated<'_> {
    fn read(&self, at: Hpa, buffer: &mut [u8]) {
        for (offset, byte) in buffer.iter_mut().enumerate() {
            let index = (at.as_u64() as usize + offset) % self.0.len().max(1);
            // Random descriptors would hardly ever be even, or near the guest's memory.
            let mask = if self.1 { [0xfe, 0xff, 0x1f, 0, 0xfe, 0xff, 0xff, 0xff][offset % 8] } else { 0xff };
            *byte = self.0.get(index).copied().unwrap_or(0) & mask;
        }
    }
    fn write(&self, _: Hpa, _: &[u8]) {}
    fn fill(&self, _: Hpa, _: u64, _: u8) {}
    fn read_u64(&self, _: Hpa) -> u64 {
        0
    }
    fn write_u64(&self, _: Hpa, _: u64) {}
}

/// Any writes, any command, any table. Asserts that what is issued is within the slice, and that its table
/// has the command's bytes, all of them the guest's.
pub fn command(data: &[u8]) {
    const FROM: u64 = 0x1_3000;
    const LEN: u64 = 0x10_0000;
    let mut input = Input::new(data);
    let sectors = 1 + u64::from(input.u32());
    let slice = Slice::new(input.u64() >> 17, sectors, 1 << 48).expect("both are below 2^47");
    let disk = Disk { long: input.flag() };
    let mut guest = GuestMemory::new();
    guest.add(Gpa::new(0), Hpa::new(FROM), LEN).expect("nothing else is there");
    let mut file = TaskFile::default();
    for _ in 0..input.u8() % 16 {
        use Register::{Count, Features, High, Low, Mid};
        file.write(input.choose(&[Features, Count, Low, Mid, High]), input.u8());
    }
    file.select(input.u8());
    let (dma, plausible) = (input.flag(), input.flag());
    let code = if dma { input.choose(&[0xc8, 0xca, 0x25, 0x35]) } else { input.u8() };
    let table = input.u32() & if plausible { 0x1f_fffc } else { u32::MAX };
    let Verdict::Issue(issue) = vet(code, &file, &slice, disk) else { return };
    let end = issue.lba + u64::from(issue.count);
    assert!(issue.count == 0 || slice.first() <= issue.lba && end <= slice.first() + sectors);
    assert!(disk.long || !issue.long && end <= 1 << 28);
    if !matches!(issue.kind, Kind::DmaIn | Kind::DmaOut) {
        return;
    }
    let mut shadow = vec![prd::Region::default(); prd::LONGEST];
    let memory = Repeated(input.rest(), plausible);
    if let Ok(regions) = prd::translate(&guest, &memory, Gpa::new(table.into()), issue.bytes(), &mut shadow) {
        let total: u64 = regions.iter().map(|region| u64::from(region.len)).sum();
        assert_eq!(total, u64::from(issue.count) * SECTOR);
        for region in regions {
            let (base, end) = (u64::from(region.base), u64::from(region.base) + u64::from(region.len));
            assert!(FROM <= base && end <= FROM + LEN);
        }
        assert!(regions.last().is_some_and(|region| region.last));
    }
}
