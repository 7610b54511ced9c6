//! Where functions stand: behind which unit, as which requester, in which group, and who owns the group.

use super::{Counted, units};
use crate::pci::{self, Bdf, Function};
use crate::sync::{Once, Rank, SpinLock};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use sluice_abi::DomainId;
use sluice_iommu::group::{self, Node};
use sluice_iommu::{Interrupt, RequesterId, SpaceTag};
use sluice_memory::Hpa;

/// A function that masters the bus, as the IOMMU before it knows it.
#[derive(Clone, Copy)]
pub struct DmaEndpoint {
    counted: &'static Counted,
    requester: RequesterId,
    group: usize,
}

/// Whose a group of functions is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The hypervisor's, which drives them itself.
    Hypervisor,
    /// A domain's.
    Domain(DomainId),
}

/// The group has another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// What [`survey`] found.
pub(super) struct Survey {
    pub(super) nodes: Vec<Node>,
    /// The group of each node.
    pub(super) groups: Vec<usize>,
    /// Where each node stands, if behind a unit.
    endpoints: Vec<Option<DmaEndpoint>>,
    /// By group: who owns it, and how many of its functions it has.
    pub(super) owners: SpinLock<Vec<Option<(Owner, usize)>>>,
}

static SURVEY: Once<Survey> = Once::new();

/// Finds all functions, where they stand and the groups they form. After the units are known.
pub(super) fn survey() {
    let nodes: Vec<Node> = pci::functions().map(|function| node(&function)).collect();
    let groups = group::groups(&nodes);
    let owners = SpinLock::new(Rank::Owners, alloc::vec![None; nodes.len()]);
    let stands = |(node, group): (&Node, &usize)| {
        let seen = group::requester(&nodes, node.id);
        let counted = units().iter().find(|counted| counted.unit.serves(seen))?;
        Some(DmaEndpoint { counted, requester: counted.unit.alias(seen), group: *group })
    };
    let endpoints = nodes.iter().zip(&groups).map(stands).collect();
    SURVEY.call_once(|| Survey { nodes, groups, endpoints, owners });
}

pub(super) fn survey_result() -> Option<&'static Survey> {
    SURVEY.get()
}

fn node(function: &Function) -> Node {
    Node { id: id(function.bdf), bridge: function.bridge(), isolates: function.isolates() }
}

fn id(bdf: Bdf) -> RequesterId {
    RequesterId::new(bdf.bus, bdf.device, bdf.function)
}

/// Where a function stands; `None` without an IOMMU before it.
pub fn endpoint_of(bdf: Bdf) -> Option<DmaEndpoint> {
    let survey = SURVEY.get()?;
    let index = survey.nodes.iter().position(|node| node.id == id(bdf))?;
    *survey.endpoints.get(index)?
}

impl Owner {
    /// The domain, if it is one's.
    pub fn domain(self) -> Option<DomainId> {
        match self {
            Self::Domain(domain) => Some(domain),
            Self::Hypervisor => None,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hypervisor => out.write_str("the hypervisor"),
            Self::Domain(domain) => write!(out, "domain {domain}"),
        }
    }
}

impl DmaEndpoint {
    /// The unit.
    pub fn counted(&self) -> &'static Counted {
        self.counted
    }

    /// Whether the function can raise only the interrupts that it was given.
    pub fn remaps_interrupts(&self) -> bool {
        self.counted.unit.remaps_interrupts()
    }

    /// Memory that firmware wants the function to reach, whoever owns it.
    pub fn unity(&self) -> Vec<Range<u64>> {
        self.counted.unit.unity(self.requester)
    }

    /// Makes somebody the owner of the group, or counts another of its functions.
    ///
    /// # Errors
    /// Somebody else owns a function of the group.
    pub fn claim(&self, claimant: Owner) -> Result<(), Busy> {
        let mut owners = SURVEY.get().ok_or(Busy)?.owners.lock();
        let owner = owners.get_mut(self.group).ok_or(Busy)?;
        match owner {
            Some((known, functions)) if *known == claimant => *functions += 1,
            Some(_) => return Err(Busy),
            None => *owner = Some((claimant, 1)),
        }
        Ok(())
    }

    /// Ends one claim.
    pub fn release(&self) {
        let Some(survey) = SURVEY.get() else { return };
        if let Some(owner) = survey.owners.lock().get_mut(self.group) {
            *owner = owner.filter(|(_, functions)| *functions > 1).map(|(known, count)| (known, count - 1));
        }
    }

    /// Lets the function reach a space.
    pub fn attach(&self, tag: SpaceTag, root: Hpa) {
        self.counted.attach(self.requester, Some((tag, root)));
    }

    /// Blocks the function.
    pub fn block(&self) {
        self.counted.attach(self.requester, None);
    }

    /// Lets the function raise an interrupt; returns address and data of the message.
    pub fn allow_interrupt(&self, interrupt: Interrupt) -> (u32, u32) {
        self.counted.allow_interrupt(self.requester, interrupt)
    }

    /// Takes that back.
    pub fn forbid_interrupt(&self, vector: u8) {
        self.counted.forbid_interrupt(self.requester, vector);
    }
}

/// Who owns what speaks as `requester`.
pub(super) fn owner_of(requester: RequesterId) -> Option<Owner> {
    let survey = SURVEY.get()?;
    let endpoint = survey.endpoints.iter().flatten().find(|endpoint| endpoint.requester == requester)?;
    survey.owners.lock().get(endpoint.group).copied().flatten().map(|(owner, _)| owner)
}
