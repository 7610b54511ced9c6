//! Who works the physical card, and what a guest may do with it.

use crate::mirror::{Shown, unhooked};
use crate::nic::Register;
use sluice_model::{Model, Questions, hook_set};
use sluice_switch::PortId;

/// What a guest may do with the physical card when it has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectPolicy {
    /// It never has it.
    #[default]
    Never,
    /// All but what outlives it: EEPROM, PHY, wake-up.
    Guarded,
    /// Everything, as with passthrough.
    Open,
}

/// A write that waits until the card has come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub(crate) register: Register,
    pub(crate) width: u8,
    pub(crate) value: u32,
}

/// Who owns the physical card.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CardOwner {
    /// The driver's.
    Driver,
    /// This guest's.
    Guest(PortId),
    /// This guest's, and wanted back since then.
    Wanted(PortId, u64),
    /// Still this guest's, but its accesses exit from now on.
    Leaving(PortId, Option<Late>),
}

impl CardOwner {
    /// The driver may work the card.
    pub(crate) const fn is_driver(self) -> bool {
        matches!(self, Self::Driver)
    }

    /// The guest that has it.
    pub(crate) const fn guest(self) -> Option<PortId> {
        match self {
            Self::Driver => None,
            Self::Guest(port) | Self::Wanted(port, _) | Self::Leaving(port, _) => Some(port),
        }
    }
}

/// How often the card changed owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handoffs {
    /// All.
    pub all: u64,
    /// Those while its guest was in the midst of something.
    pub forced: u64,
}

/// What a guest that has the card does without an exit.
pub(crate) fn shown(model: &'static Model, policy: DirectPolicy, owner: CardOwner) -> Shown {
    let questions = match (owner, policy) {
        (CardOwner::Leaving(..), _) => Questions::ABSENT,
        (_, DirectPolicy::Open) => Questions::SHADOW,
        _ => Questions::SHADOW | Questions::PRESERVE,
    };
    Shown { direct: unhooked(hook_set(model, &[], questions)), hardware: true, symbiotic: false }
}
