//! Groups: functions that an IOMMU cannot keep apart, and as whom it sees each of them.
//!
//! Functions behind a bridge to conventional PCI all speak with one requester identifier, and functions of one device, or
//! behind a port that does not redirect requests upward (ACS), can reach each other without passing the IOMMU. A group
//! has one owner.
//!
//! Source: PCI Express to PCI/PCI-X Bridge Specification 1.0, 2.3 (requester of forwarded requests); PCI Express 4.0,
//! 6.12 (access control services); PCI-to-PCI Bridge 1.2, 3.2.5 (bus numbers).

use crate::RequesterId;
use alloc::vec::Vec;

/// What of a function matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it is.
    pub id: RequesterId,
    /// What it leads to, if it is a bridge.
    pub bridge: Option<Bridge>,
    /// It sends requests between peers up to the IOMMU: all of ACS that takes is on.
    pub isolates: bool,
}

/// The secondary side of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Number of the bus behind it.
    pub secondary: u8,
    /// Its primary side is PCI Express.
    pub from_express: bool,
    /// Its secondary side is PCI Express; otherwise conventional PCI.
    pub to_express: bool,
}

fn parent(nodes: &[Node], bus: u8) -> Option<usize> {
    nodes.iter().position(|node| node.bridge.is_some_and(|bridge| bridge.secondary == bus && bus != 0))
}

/// The bridges above a bus, nearest first. Bus numbers that lead in a circle end.
fn path(nodes: &[Node], bus: u8) -> impl Iterator<Item = usize> {
    let mut bus = bus;
    (0..nodes.len()).map_while(move |_| {
        let above = parent(nodes, bus)?;
        bus = nodes.get(above)?.id.bus();
        Some(above)
    })
}

/// As whom an IOMMU sees the requests of a function: of the bridge to conventional PCI that is nearest to it, if there
/// is one.
pub fn requester(nodes: &[Node], function: RequesterId) -> RequesterId {
    let mut seen = function;
    for above in path(nodes, function.bus()) {
        let Some(Node { id, bridge: Some(bridge), .. }) = nodes.get(above) else { break };
        if !bridge.to_express {
            seen = if bridge.from_express { RequesterId::new(bridge.secondary, 0, 0) } else { *id };
        }
    }
    seen
}

/// The group of each function: the lowest position in `nodes` of any function of it.
pub fn groups(nodes: &[Node]) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..nodes.len()).collect();
    let mut unite = |a: usize, b: usize| {
        let (Some(&a), Some(&b)) = (groups.get(a), groups.get(b)) else { return };
        let (low, high) = (a.min(b), a.max(b));
        groups.iter_mut().filter(|group| **group == high).for_each(|group| *group = low);
    };
    for (index, node) in nodes.iter().enumerate() {
        for above in path(nodes, node.id.bus()) {
            let open = |node: &Node| !node.isolates || node.bridge.is_some_and(|bridge| !bridge.to_express);
            if nodes.get(above).is_some_and(open) {
                unite(index, above);
            }
        }
        let same_device = |other: &Node| other.id.0 >> 3 == node.id.0 >> 3;
        for (sibling, other) in nodes.iter().enumerate().filter(|(_, other)| same_device(other)) {
            if !(node.isolates && other.isolates) {
                unite(index, sibling);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(bus: u8, device: u8, function: u8) -> Node {
        Node { id: RequesterId::new(bus, device, function), bridge: None, isolates: false }
    }

    fn bridge(at: Node, secondary: u8, from_express: bool, to_express: bool, isolates: bool) -> Node {
        Node { bridge: Some(Bridge { secondary, from_express, to_express }), isolates, ..at }
    }

    #[test]
    fn devices_on_the_root_bus_are_apart_and_their_functions_are_not() {
        let nodes = [function(0, 2, 0), function(0, 3, 0), function(0, 31, 0), function(0, 31, 2)];
        assert_eq!(groups(&nodes), [0, 1, 2, 2]);
        assert_eq!(requester(&nodes, nodes[3].id), nodes[3].id);
    }

    #[test]
    fn functions_that_redirect_are_apart() {
        let isolated = |n| Node { isolates: true, ..function(1, 0, n) };
        assert_eq!(groups(&[isolated(0), isolated(1)]), [0, 1]);
        assert_eq!(groups(&[isolated(0), isolated(1), function(1, 0, 2)]), [0, 0, 0]);
    }

    #[test]
    fn ports_separate_only_with_access_control() {
        let port =
            |device, secondary, isolates| bridge(function(0, device, 0), secondary, true, true, isolates);
        let nodes = [port(1, 1, true), port(2, 2, false), function(1, 0, 0), function(2, 0, 0)];
        assert_eq!(groups(&nodes), [0, 1, 2, 1]);
        // A switch whose upper port does not isolate, below a port that does not either.
        let nodes = [port(1, 1, false), bridge(function(1, 0, 0), 2, true, true, true), function(2, 0, 0)];
        assert_eq!(groups(&nodes), [0, 0, 0]);
    }

    #[test]
    fn conventional_buses_speak_with_one_voice() {
        let to_pci = bridge(function(0, 4, 0), 1, true, false, true);
        let below = bridge(function(1, 2, 0), 2, false, false, false);
        let nodes = [to_pci, function(1, 1, 0), below, function(2, 5, 0), function(0, 5, 0)];
        assert_eq!(groups(&nodes), [0, 0, 0, 0, 4]);
        for node in [1, 2, 3] {
            assert_eq!(requester(&nodes, nodes[node].id), RequesterId::new(1, 0, 0));
        }
        // On a machine that is conventional throughout, the bridge itself asks.
        let old = [bridge(function(0, 30, 0), 1, false, false, false), function(1, 1, 0)];
        assert_eq!(requester(&old, old[1].id), old[0].id);
    }

    #[test]
    fn bus_numbers_in_a_circle_end() {
        let nodes = [
            bridge(function(1, 0, 0), 2, true, true, false),
            bridge(function(2, 0, 0), 1, true, true, false),
            function(2, 1, 0),
        ];
        assert_eq!(groups(&nodes), [0, 0, 0]);
        assert_eq!(requester(&nodes, nodes[2].id), nodes[2].id);
    }
}
