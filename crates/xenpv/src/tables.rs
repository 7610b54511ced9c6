//! Hypercalls on descriptors, exceptions and callbacks.

use crate::abi::{Error, GDT_ENTRIES, LDT_PAGES, PAGE, RESERVED_GDT_PAGE};
use crate::bounce::is_canonical;
use crate::processor::{Callback, Processor, Trap};
use crate::{Guest, Host, Registers};
use sluice_pagetypes::Mfn;

impl Guest {
    /// HYPERVISOR_set_trap_table: entries of 16 bytes up to one without an address.
    pub(crate) fn set_trap_table(&mut self, host: &impl Host, table: u64) -> Result<u64, Error> {
        self.cpu.gate_is_stale = true;
        if table == 0 {
            self.cpu.traps = [Trap::default(); 256];
            return Ok(0);
        }
        for index in 0..=256 {
            let [what, address] = self.words::<2>(host, table.wrapping_add(index * 16))?;
            if address == 0 {
                return Ok(0);
            }
            if !is_canonical(address) {
                return Err(Error::Invalid);
            }
            if let Some(trap) = self.cpu.traps.get_mut(usize::from(what as u8)) {
                *trap = Trap { address, flags: (what >> 8) as u8 };
            }
        }
        Err(Error::Invalid)
    }

    /// HYPERVISOR_set_gdt: frames of descriptors. The old table stays if a frame of the new one is refused.
    pub(crate) fn set_gdt(&mut self, host: &mut impl Host, list: u64, entries: u64) -> Result<u64, Error> {
        if entries > GDT_ENTRIES {
            return Err(Error::Invalid);
        }
        let frames = (0..entries.div_ceil(512)).map(|page| list.wrapping_add(page * 8));
        let frames = frames.map(|at| self.words::<1>(host, at).map(|[frame]| Mfn(frame)));
        let mut read = [const { Ok(Mfn(0)) }; RESERVED_GDT_PAGE];
        let count = read.iter_mut().zip(frames).map(|(slot, frame)| *slot = frame).count();
        self.load_descriptors(host, read.into_iter().take(count))?;
        Ok(0)
    }

    /// MMUEXT_SET_LDT: so many local descriptors, which the kernel has at an address, in pages that it may only read. Xen looks at each page when it is
    /// used first; here all of them are looked at now.
    pub(crate) fn set_ldt(&mut self, host: &mut impl Host, address: u64, entries: u32) -> Result<(), Error> {
        if entries as usize > LDT_PAGES * 512 || !address.is_multiple_of(PAGE) {
            return Err(Error::Invalid);
        }
        if (entries, self.cpu.ldt_entries) == (0, 0) {
            return Ok(());
        }
        let pages = entries.div_ceil(512) as usize;
        let mut new = [None; LDT_PAGES];
        let mut result = Ok(());
        for (slot, page) in new.iter_mut().zip(0..).take(pages) {
            result = self.place(host, address.wrapping_add(page * PAGE), false).and_then(|(frame, _)| {
                let held = self.types.hold_descriptors(host, frame);
                self.note(held)?;
                *slot = Some(frame);
                Ok(())
            });
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            core::mem::swap(&mut self.cpu.ldt, &mut new);
            (self.cpu.ldt_entries, self.cpu.ldt_is_stale) = (entries, true);
            self.cpu.change_descriptors();
            let table = self.cpu.area().ldt();
            for (page, frame) in self.cpu.ldt.iter().enumerate() {
                self.layout.show_descriptors(host, table, page, *frame);
            }
            // The table is mapped at a place that the processor may have translated.
            host.invalidate();
        }
        for frame in new.into_iter().flatten() {
            self.types.release(host, frame);
        }
        result
    }

    /// Where the local descriptor table is and its limit, if they are others since this was asked last.
    #[inline]
    pub fn take_ldt(&mut self) -> Option<(u64, u32)> {
        let limit = (self.cpu.ldt_entries * 8).saturating_sub(1);
        core::mem::take(&mut self.cpu.ldt_is_stale).then(|| (self.cpu.area().ldt(), limit))
    }

    /// Has the processor use these frames as its descriptor table in place of the old ones, or of none of them.
    pub(crate) fn load_descriptors(
        &mut self,
        host: &mut impl Host,
        frames: impl Iterator<Item = Result<Mfn, Error>>,
    ) -> Result<(), Error> {
        let mut new = [None; RESERVED_GDT_PAGE];
        let mut result = Ok(());
        for (frame, slot) in frames.zip(&mut new) {
            result = frame.and_then(|frame| {
                let held = self.types.hold_descriptors(host, frame);
                self.note(held)?;
                *slot = Some(frame);
                Ok(())
            });
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            core::mem::swap(&mut self.cpu.gdt, &mut new);
            self.cpu.change_descriptors();
            let table = self.cpu.area().gdt();
            for (page, frame) in self.cpu.gdt.iter().enumerate() {
                self.layout.show_descriptors(host, table, page, *frame);
            }
            // The table is mapped at a place that processors may have translated.
            self.types.forget(host);
        }
        for frame in new.into_iter().flatten() {
            self.types.release(host, frame);
        }
        result
    }

    /// HYPERVISOR_update_descriptor.
    pub(crate) fn update_descriptor(
        &mut self,
        host: &mut impl Host,
        at: u64,
        value: u64,
    ) -> Result<u64, Error> {
        if !at.is_multiple_of(8) {
            return Err(Error::Invalid);
        }
        let index = (at % PAGE / 8) as usize;
        let written = self.types.write_descriptor(host, Mfn(at / PAGE), index, value);
        self.processors_mut().for_each(Processor::change_descriptors);
        self.note(written)?;
        Ok(0)
    }

    /// HYPERVISOR_callback_op.
    pub(crate) fn callback_op(&mut self, host: &impl Host, cmd: u64, arg: u64) -> Result<u64, Error> {
        let [what, address] = match cmd {
            0 => self.words::<2>(host, arg)?,
            1 => [u64::from(self.halves::<1>(host, arg)?[0] as u16), 0],
            _ => return Err(Error::NoCall),
        };
        if !is_canonical(address) {
            return Err(Error::Invalid);
        }
        let callback = self.cpu.callbacks.get_mut(usize::from(what as u16)).ok_or(Error::NoCall)?;
        self.cpu.gate_is_stale = true;
        *callback = Callback { address, mask_events: what >> 16 & 1 != 0 };
        Ok(0)
    }

    /// HYPERVISOR_set_segment_base.
    pub(crate) fn set_segment_base(
        &mut self,
        host: &impl Host,
        registers: &mut Registers,
        which: u64,
        base: u64,
    ) -> Result<u64, Error> {
        if which < 3 && !is_canonical(base) {
            return Err(Error::Invalid);
        }
        match which {
            0 => registers.fs_base = base,
            1 => registers.other_gs = base,
            2 => registers.gs_base = base,
            // The selector is of both, kernel and program; SWAPGS is for bases only. One without a descriptor is 0, as where the load of it faults; the
            // null ones are what they are.
            3 => {
                let selector = base as u16;
                let found = self.descriptor(host, selector);
                let descriptor = found.unwrap_or(0);
                registers.gs = Some((if found.is_some() || selector < 4 { selector } else { 0 }, descriptor));
                registers.other_gs = descriptor >> 16 & 0xff_ffff | descriptor >> 32 & 0xff00_0000;
            }
            _ => return Err(Error::Invalid),
        }
        Ok(0)
    }
}
