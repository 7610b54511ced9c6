//! What a station says of itself above Ethernet: with addresses set it speaks for these, and for no others.
//!
//! Source: RFC 826 (ARP), RFC 5227, 1.1 (a probe's sender address is zero), RFC 2131, 4.1 (DHCP begins without an address), RFC 8200, 4 (extension
//! headers), RFC 4861, 4 (neighbour discovery), RFC 4291, 2.5.6 and appendix A (link-local addresses), RFC 6105 (routers that are none).

use crate::Mac;

/// Most addresses of a VIF.
pub const MAX_ADDRESSES: usize = 8;

/// An IPv6 address, or an IPv4 address as RFC 4291, 2.5.5.2 has it in one.
pub type Address = [u8; 16];

/// The addresses of a VIF: none, and it sends what it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    addresses: [Address; MAX_ADDRESSES],
    count: u8,
}

const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERNET: usize = 14;
/// What ARP says of Ethernet and IPv4 (kinds and lengths of addresses).
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Numbers of what an IP header carries.
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
/// Headers that may come between IPv6's and what it carries.
const MOST_HEADERS: usize = 8;

/// ICMPv6: what routers alone say, and who has an address.
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

impl Filter {
    /// For these addresses, of which the first [`MAX_ADDRESSES`] count.
    pub fn new(addresses: &[Address]) -> Self {
        let mut filter = Self::default();
        for (place, address) in filter.addresses.iter_mut().zip(addresses) {
            *place = *address;
            filter.count += 1;
        }
        filter
    }

    /// The addresses.
    pub fn addresses(&self) -> &[Address] {
        self.addresses.get(..self.count.into()).unwrap_or_default()
    }

    /// Whether everything may be sent.
    pub const fn is_open(&self) -> bool {
        self.count == 0
    }

    /// Whether the station with this address may send a frame that begins so: with all of it, or more than its headers. What cannot be read it may not send.
    pub fn allows(&self, mac: Mac, frame: &[u8]) -> bool {
        self.is_open() || self.is_its_own(mac, frame).unwrap_or(false)
    }

    /// `None`: it is too short.
    fn is_its_own(&self, mac: Mac, frame: &[u8]) -> Option<bool> {
        let packet = frame.get(ETHERNET..)?;
        Some(match array(frame, 12)? {
            ARP => {
                let sender = array(packet, 14)?;
                array(packet, 0)? == ARP_KIND
                    && array(packet, 8)? == mac
                    && (sender == [0; 4] || self.has_v4(sender))
            }
            IPV4 => {
                let source = array(packet, 12)?;
                packet.first()? >> 4 == 4
                    && (self.has_v4(source) || source == [0; 4] && asks_for_one(packet)?)
            }
            IPV6 => {
                let source: Address = array(packet, 8)?;
                packet.first()? >> 4 == 6
                    && (source == [0; 16] || self.has(mac, source))
                    && self.may_discover(mac, packet)?
            }
            _ => false,
        })
    }

    fn has_v4(&self, address: [u8; 4]) -> bool {
        let [a, b, c, d] = address;
        self.is_listed([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// An IPv6 address: one that is listed, or the link-local one that a station makes of its own.
    fn has(&self, mac: Mac, address: Address) -> bool {
        let [a, b, c, d, e, f] = mac;
        let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        let is_mapped = address[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        address == local || !is_mapped && self.is_listed(address)
    }

    fn is_listed(&self, address: Address) -> bool {
        self.addresses().contains(&address)
    }

    /// Whether what an IPv6 packet says to its neighbours is so.
    fn may_discover(&self, mac: Mac, packet: &[u8]) -> Option<bool> {
        let (mut kind, mut at) = (*packet.get(6)?, 40);
        for _ in 0..MOST_HEADERS {
            let bytes = match kind {
                HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(*packet.get(at + 1)?) + 1) * 8,
                // Nobody puts pieces of a discovery together (RFC 6980), and of others the first alone has its header.
                FRAGMENT if u16::from_be_bytes(array(packet, at + 2)?) & 0xfff8 != 0 => return Some(true),
                FRAGMENT => 8,
                ICMPV6 => {
                    return Some(match *packet.get(at)? {
                        ROUTER_ADVERTISEMENT | REDIRECT => false,
                        NEIGHBOUR_ADVERTISEMENT => self.has(mac, array(packet, at + 8)?),
                        _ => true,
                    });
                }
                _ => return Some(true),
            };
            kind = *packet.get(at)?;
            at += bytes;
        }
        None
    }
}

/// Whether an IPv4 packet without a source asks for an address: by DHCP, of all.
fn asks_for_one(packet: &[u8]) -> Option<bool> {
    let len = usize::from(packet.first()? & 15) * 4;
    let is_whole = u16::from_be_bytes(array(packet, 6)?) & 0x3fff == 0;
    let to_all = array(packet, 16)? == [0xff; 4];
    let ports: [u8; 4] = array(packet, len)?;
    Some(len >= 20 && is_whole && to_all && *packet.get(9)? == UDP && ports == [0, 68, 0, 67])
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const MAC: Mac = [0x52, 0x54, 0, 0, 0, 0x0a];
    const V4: [u8; 4] = [10, 0, 0, 2];
    const V6: Address = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    const LOCAL: Address = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 0x0a];

    fn filter() -> Filter {
        Filter::new(&[[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2], V6])
    }

    fn frame(kind: [u8; 2], packet: &[u8]) -> Vec<u8> {
        [&[0xff; 6][..], &MAC, &kind, packet].concat()
    }

    fn arp(mac: Mac, from: [u8; 4]) -> Vec<u8> {
        frame(ARP, &[&ARP_KIND[..], &[0, 2], &mac, &from, &[0; 6], &[10, 0, 0, 1]].concat())
    }

    fn ipv4(from: [u8; 4], to: [u8; 4], ports: [u8; 4]) -> Vec<u8> {
        frame(
            IPV4,
            &[&[0x45, 0, 0, 28, 0, 1, 0, 0, 64, UDP, 0, 0][..], &from, &to, &ports, &[0, 8, 0, 0]].concat(),
        )
    }

    fn ipv6(from: Address, next: u8, rest: &[u8]) -> Vec<u8> {
        frame(
            IPV6,
            &[&[0x60, 0, 0, 0, 0, rest.len() as u8, next, 255][..], &from, &[0xff; 16], rest].concat(),
        )
    }

    /// An ICMPv6 message of this kind about an address.
    fn about(kind: u8, target: Address) -> Vec<u8> {
        [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target].concat()
    }

    #[test]
    fn it_speaks_for_its_own_addresses_only() {
        let elsewhere = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2];
        let neighbour = |target| about(NEIGHBOUR_ADVERTISEMENT, target);
        let behind = |next: u8, rest: &[u8]| [&[next, 0, 0, 0, 0, 0, 0, 0][..], rest].concat();
        let cases = [
            ("ARP of its own", arp(MAC, V4), true),
            ("a probe", arp(MAC, [0; 4]), true),
            ("ARP of another's address", arp(MAC, [10, 0, 0, 1]), false),
            ("ARP for another station", arp([0x52, 0x54, 0, 0, 0, 0x0b], V4), false),
            ("IPv4 of its own", ipv4(V4, [10, 0, 0, 1], [0, 7, 0, 7]), true),
            ("IPv4 of another's", ipv4([10, 0, 0, 3], [10, 0, 0, 1], [0, 7, 0, 7]), false),
            ("who has none asks", ipv4([0; 4], [255; 4], [0, 68, 0, 67]), true),
            ("who has none asks one", ipv4([0; 4], [10, 0, 0, 1], [0, 68, 0, 67]), false),
            ("who has none answers", ipv4([0; 4], [255; 4], [0, 67, 0, 68]), false),
            ("IPv6 of its own", ipv6(V6, UDP, &[0; 8]), true),
            ("its link-local address", ipv6(LOCAL, UDP, &[0; 8]), true),
            ("no address yet", ipv6([0; 16], ICMPV6, &about(135, V6)), true),
            ("IPv6 of another's", ipv6(elsewhere, UDP, &[0; 8]), false),
            ("IPv4 in IPv6", ipv6(mapped, UDP, &[0; 8]), false),
            ("it has its address", ipv6(V6, ICMPV6, &neighbour(V6)), true),
            ("it has another's", ipv6(V6, ICMPV6, &neighbour(elsewhere)), false),
            ("behind options", ipv6(V6, HOP_BY_HOP, &behind(ICMPV6, &neighbour(elsewhere))), false),
            (
                "behind two",
                ipv6(V6, DESTINATION, &behind(FRAGMENT, &behind(ICMPV6, &neighbour(elsewhere)))),
                false,
            ),
            ("its own behind options", ipv6(V6, ROUTING, &behind(ICMPV6, &neighbour(LOCAL))), true),
            ("it is a router", ipv6(LOCAL, ICMPV6, &about(ROUTER_ADVERTISEMENT, V6)), false),
            ("another router is better", ipv6(LOCAL, ICMPV6, &about(REDIRECT, V6)), false),
            ("a later piece", ipv6(V6, FRAGMENT, &[ICMPV6, 0, 0, 8, 0, 0, 0, 1, 0, 0]), true),
            ("another protocol", frame([0x88, 0xcc], &[0; 46]), false),
        ];
        for (what, frame, allowed) in cases {
            assert_eq!(filter().allows(MAC, &frame), allowed, "{what}");
            assert!(Filter::default().allows(MAC, &frame), "{what}");
            // What is not there cannot be looked at.
            for short in 0..frame.len().min(ETHERNET + 8) {
                assert!(!filter().allows(MAC, &frame[..short]), "{what}: {short} bytes");
            }
        }
    }

    #[test]
    fn headers_without_an_end_are_not_followed() {
        let endless: Vec<u8> = (0..40).flat_map(|_| [DESTINATION, 0, 0, 0, 0, 0, 0, 0]).collect();
        assert!(!filter().allows(MAC, &ipv6(V6, DESTINATION, &endless)));
        assert!(!filter().allows(MAC, &ipv6(V6, DESTINATION, &[ICMPV6, 255, 0, 0, 0, 0, 0, 0])));
    }
}
