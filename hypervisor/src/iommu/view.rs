//! Spaces as devices see them.
//!
//! Key types: [`DeviceView`], [`Devices`] (who uses it: the functions behind some units, in one space).

use super::{Cause, Counted};
use crate::mm::TableFrames;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::marker::PhantomData;
use sluice_iommu::{Invalidation, PageFormat, SpaceTag};
use sluice_iospace::{Audience, RANGES, Rights, Stale, TableView};
use sluice_memory::Access;

/// Tables by which units show a space to devices.
pub type DeviceView<O> = TableView<PageFormat, TableFrames, Devices<O>>;

/// The devices in the space of an owner `O`.
pub struct Devices<O> {
    tag: SpaceTag,
    /// Whose translations they use.
    units: Vec<&'static Counted>,
    owner: PhantomData<fn(&O)>,
}

impl<O> Devices<O> {
    /// An empty view for devices behind `units`, all of which know the same format of tables and this tag. `None` without
    /// memory, or without a unit.
    pub fn view(tag: SpaceTag, units: Vec<&'static Counted>) -> Option<DeviceView<O>> {
        let format = units.first()?.unit().format();
        let write_back = units.iter().any(|counted| counted.unit().reads_memory_only());
        TableView::new(format, TableFrames { write_back }, Self { tag, units, owner: PhantomData })
    }

    /// The number of the space.
    pub fn tag(&self) -> SpaceTag {
        self.tag
    }

    /// What units must be told to forget: the pages that are stale, or, with the feature `flush-spaces`, the whole space for any of them.
    fn invalidations(&self, stale: &Stale) -> ArrayVec<Invalidation, RANGES> {
        if cfg!(feature = "flush-spaces") {
            return core::iter::once(Invalidation::Space(self.tag)).collect();
        }
        stale.invalidations(self.tag).collect()
    }
}

impl<O> Audience for Devices<O> {
    type Owner = O;

    fn access(&self, rights: Rights) -> Access {
        rights.party
    }

    fn caches_absent(&self) -> bool {
        self.units.iter().any(|counted| counted.unit().caches_absent())
    }

    fn forget(&mut self, _: &O, stale: &Stale) {
        let cause = if stale.ranges().is_some() { Cause::Revoke } else { Cause::Whole };
        let what = self.invalidations(stale);
        self.units.iter().for_each(|counted| counted.invalidate(&what, cause));
    }
}
