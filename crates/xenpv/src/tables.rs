//! Hypercalls on descriptors, exceptions and callbacks.

use crate::abi::{Error, GDT_ENTRIES, LDT_PAGES, PAGE};
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
        self.load_gdt(host, entries, |guest, host, page| {
            guest.words::<1>(host, list.wrapping_add(page * 8)).map(|[frame]| Mfn(frame))
        })?;
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
        let new = self.hold_pages(host, entries.into(), |guest, host, page| {
            guest.place(host, address.wrapping_add(page * PAGE), false).map(|(frame, _)| frame)
        })?;
        let old = core::mem::replace(&mut self.cpu.ldt, new);
        (self.cpu.ldt_entries, self.cpu.ldt_is_stale) = (entries, true);
        self.cpu.change_descriptors();
        self.show_pages(host, self.cpu.area().ldt(), &new);
        // The table is mapped at a place that the processor may have translated.
        host.invalidate();
        self.release_pages(host, &old);
        Ok(())
    }

    /// Where the local descriptor table is and its limit, if they are others since this was asked last.
    #[inline]
    pub fn take_ldt(&mut self) -> Option<(u64, u32)> {
        let limit = (self.cpu.ldt_entries * 8).saturating_sub(1);
        core::mem::take(&mut self.cpu.ldt_is_stale).then(|| (self.cpu.area().ldt(), limit))
    }

    /// Has the processor use a descriptor table of so many entries in place of the old one; `frame` has its frames by their places. Without an error it is
    /// all of them, else none.
    pub(crate) fn load_gdt<H: Host>(
        &mut self,
        host: &mut H,
        entries: u64,
        frame: impl Fn(&Self, &H, u64) -> Result<Mfn, Error>,
    ) -> Result<(), Error> {
        if entries > GDT_ENTRIES {
            return Err(Error::Invalid);
        }
        let new = self.hold_pages(host, entries, frame)?;
        let old = core::mem::replace(&mut self.cpu.gdt, new);
        self.cpu.change_descriptors();
        self.show_pages(host, self.cpu.area().gdt(), &new);
        // The table is mapped at a place that processors may have translated.
        self.types.forget(host);
        self.release_pages(host, &old);
        Ok(())
    }

    /// Holds the pages of a table of so many descriptors, all of them or none.
    fn hold_pages<H: Host, const N: usize>(
        &mut self,
        host: &mut H,
        entries: u64,
        frame: impl Fn(&Self, &H, u64) -> Result<Mfn, Error>,
    ) -> Result<[Option<Mfn>; N], Error> {
        let mut pages = [None; N];
        let held = (0..entries.div_ceil(512)).zip(&mut pages).try_for_each(|(page, slot)| {
            let frame = frame(self, host, page)?;
            let held = self.types.hold_descriptors(host, frame);
            self.note(held)?;
            *slot = Some(frame);
            Ok(())
        });
        if held.is_err() {
            self.release_pages(host, &pages);
        }
        held.map(|()| pages)
    }

    fn release_pages(&mut self, host: &mut impl Host, pages: &[Option<Mfn>]) {
        pages.iter().flatten().for_each(|frame| self.types.release(host, *frame));
    }

    /// Shows the processor a table's pages where it looks for them.
    fn show_pages(&self, host: &mut impl Host, table: u64, pages: &[Option<Mfn>]) {
        for (page, frame) in pages.iter().enumerate() {
            self.layout.show_descriptors(host, table, page, *frame);
        }
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
