//! How far a function that a guest drives itself is kept from what is not that guest's.

/// What stands between a function and the rest of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containment {
    /// Nothing, and nothing is needed: the function does not master the bus.
    NoBusMaster,
    /// Nothing: the function reaches all memory, the interrupt controllers' included.
    Missing,
    /// An IOMMU.
    Iommu {
        /// The function can raise only the interrupts that it was given.
        remaps_interrupts: bool,
        /// Firmware wants the function to reach memory of its own, whoever drives it.
        firmware_memory: bool,
    },
}

/// Why a guest must not drive a function itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncontained {
    /// It could reach all memory.
    Dma,
    /// It could raise any interrupt.
    Interrupts,
    /// It could reach memory of the firmware's.
    FirmwareMemory,
}

impl Containment {
    /// Whether a guest may drive the function itself, where the user accepts that it reaches all memory, or that it can raise any
    /// interrupt.
    ///
    /// # Errors
    /// What is not contained, and not accepted.
    pub fn check(self, accept_dma: bool, accept_interrupts: bool) -> Result<(), Uncontained> {
        match self {
            Self::NoBusMaster => Ok(()),
            Self::Missing if accept_dma => Ok(()),
            Self::Missing => Err(Uncontained::Dma),
            // A function that reaches all memory can raise any interrupt, too: both are accepted.
            Self::Iommu { remaps_interrupts: false, .. } if !accept_dma && !accept_interrupts => {
                Err(Uncontained::Interrupts)
            }
            // That memory would have to be part of the guest's.
            Self::Iommu { firmware_memory: true, .. } => Err(Uncontained::FirmwareMemory),
            Self::Iommu { .. } => Ok(()),
        }
    }

    /// Whether the function reaches its guest's memory and raises its guest's interrupts, and does nothing else.
    pub fn is_complete(self) -> bool {
        self == Self::Iommu { remaps_interrupts: true, firmware_memory: false }
    }
}

#[cfg(test)]
mod tests {
    use super::Containment::{self, Iommu, Missing, NoBusMaster};
    use super::Uncontained::{Dma, FirmwareMemory, Interrupts};

    const fn iommu(remaps_interrupts: bool, firmware_memory: bool) -> Containment {
        Iommu { remaps_interrupts, firmware_memory }
    }

    #[test]
    fn what_is_not_contained_must_be_accepted() {
        // Accepted: nothing, interrupts, DMA, both.
        let table = [
            (NoBusMaster, [Ok(()), Ok(()), Ok(()), Ok(())]),
            (Missing, [Err(Dma), Err(Dma), Ok(()), Ok(())]),
            (iommu(true, false), [Ok(()), Ok(()), Ok(()), Ok(())]),
            (iommu(false, false), [Err(Interrupts), Ok(()), Ok(()), Ok(())]),
            (iommu(true, true), [Err(FirmwareMemory); 4]),
            (
                iommu(false, true),
                [Err(Interrupts), Err(FirmwareMemory), Err(FirmwareMemory), Err(FirmwareMemory)],
            ),
        ];
        for (containment, expected) in table {
            for (accepted, expected) in expected.into_iter().enumerate() {
                let found = containment.check(accepted & 2 != 0, accepted & 1 != 0);
                assert_eq!(found, expected, "{containment:?}, accepted {accepted:#b}");
            }
        }
    }

    #[test]
    fn only_an_iommu_that_remaps_and_lets_nothing_through_is_complete() {
        let all = [
            NoBusMaster,
            Missing,
            iommu(true, false),
            iommu(false, false),
            iommu(true, true),
            iommu(false, true),
        ];
        assert_eq!(
            all.into_iter().filter(|one| one.is_complete()).collect::<alloc::vec::Vec<_>>(),
            [iommu(true, false)]
        );
    }
}
