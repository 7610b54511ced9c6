//! What a frame is used as, and what follows when that changes.

/// What a frame is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Memory that software may write.
    Writable,
    /// A page table of the lowest level.
    L1,
    /// A page table of the second level.
    L2,
    /// A page table of the third level.
    L3,
    /// A page table of the highest level.
    L4,
    /// Segment descriptors.
    Descriptors,
    /// The hypervisor's own, within the domain's memory: for good.
    Hypervisor,
}

/// What becomes of the devices' access to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Devices {
    /// It stays as it is.
    Keep,
    /// They lose it, and must have lost it before the frame is looked at.
    Hide,
    /// They get it.
    Show,
}

/// What must be done when a frame that nobody uses changes its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    /// For the devices.
    pub devices: Devices,
    /// What is in the frame must be validated.
    pub validate: bool,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] =
        [Self::Writable, Self::L1, Self::L2, Self::L3, Self::L4, Self::Descriptors, Self::Hypervisor];

    /// What must be done before a frame that nobody uses any more as this is used as `to`. `None`: it never is.
    ///
    /// A `semi`-writable frame is out of the devices' reach whatever it is used as: that is why its changes cost no flush of an IOMMU
    /// (PiBooster, 3.3).
    pub const fn change(self, to: Self, semi: bool) -> Option<Change> {
        use Kind::{Hypervisor, Writable};
        let devices = match (self, to) {
            (Hypervisor, _) | (_, Hypervisor) => return None,
            _ if semi => Devices::Keep,
            (Writable, Writable) => Devices::Keep,
            (Writable, _) => Devices::Hide,
            (_, Writable) => Devices::Show,
            _ => Devices::Keep,
        };
        Some(Change { devices, validate: !matches!(to, Writable) })
    }

    /// Whether devices reach a frame of this kind.
    pub const fn is_for_devices(self, semi: bool) -> bool {
        matches!(self, Self::Writable) && !semi
    }

    /// What the entries of a page table refer to. `None`: to memory, or it is no page table.
    pub const fn below(self) -> Option<Self> {
        match self {
            Self::L4 => Some(Self::L3),
            Self::L3 => Some(Self::L2),
            Self::L2 => Some(Self::L1),
            _ => None,
        }
    }

    /// Whether it is a page table.
    pub const fn is_table(self) -> bool {
        matches!(self, Self::L1 | Self::L2 | Self::L3 | Self::L4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Devices::{Hide, Keep, Show};
    use Kind::{Descriptors, Hypervisor, L1, L2, L3, L4, Writable};

    /// The table, said a second time: rows are from, columns are to, in the order of [`Kind::ALL`].
    const PLAIN: [[Option<Devices>; 7]; 7] = {
        let (k, h, s, n) = (Some(Keep), Some(Hide), Some(Show), None);
        [
            [k, h, h, h, h, h, n],
            [s, k, k, k, k, k, n],
            [s, k, k, k, k, k, n],
            [s, k, k, k, k, k, n],
            [s, k, k, k, k, k, n],
            [s, k, k, k, k, k, n],
            [n, n, n, n, n, n, n],
        ]
    };

    #[test]
    fn kinds_follow_one_another_as_the_table_says() {
        for (row, from) in Kind::ALL.into_iter().enumerate() {
            for (column, to) in Kind::ALL.into_iter().enumerate() {
                let plain = from.change(to, false);
                assert_eq!(plain.map(|change| change.devices), PLAIN[row][column], "{from:?} to {to:?}");
                assert_eq!(plain.is_some_and(|change| change.validate), plain.is_some() && to != Writable);
                let semi = from.change(to, true);
                assert_eq!(semi.is_some(), plain.is_some());
                assert!(
                    semi.is_none_or(|change| change.devices == Keep),
                    "a semi-writable frame costs no flush"
                );
            }
        }
    }

    #[test]
    fn devices_reach_a_frame_after_a_change_exactly_if_its_new_kind_says_so() {
        for (from, to) in Kind::ALL.into_iter().flat_map(|from| Kind::ALL.map(|to| (from, to))) {
            for semi in [false, true] {
                let Some(change) = from.change(to, semi) else { continue };
                let after = match change.devices {
                    Keep => from.is_for_devices(semi),
                    Hide => false,
                    Show => true,
                };
                assert_eq!(after, to.is_for_devices(semi), "{from:?} to {to:?}, {semi}");
            }
        }
    }

    #[test]
    fn tables_refer_to_the_next_level_down() {
        let below = Kind::ALL.map(Kind::below);
        assert_eq!(below, [None, None, Some(L1), Some(L2), Some(L3), None, None]);
        let tables = Kind::ALL.into_iter().filter(|kind| kind.is_table());
        assert!(tables.eq([L1, L2, L3, L4]));
        assert!(!Descriptors.is_table() && !Hypervisor.is_table());
    }
}
