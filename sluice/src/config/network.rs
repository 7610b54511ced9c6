//! The part of a network that the job `serve` of the recipe `driver-domain` gives to the guests that it serves, as its command line says:
//! `sluice.job=serve:bridge=br0,network=10.0.2.129/25`. A domain with another job has a network of which nothing is known here.

use super::diagnostic::Source;
use super::{Domain, Setup};
use std::net::Ipv4Addr;

/// How the job is asked for.
const JOB: &str = "sluice.job=serve";

/// The longest prefix of a network with room for a router and a guest.
const LONGEST_PREFIX: u32 = 30;

/// A network, by what a router in it says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    router: Ipv4Addr,
    prefix: u32,
}

impl Network {
    /// `10.0.2.129/25`.
    fn parse(text: &str) -> Option<Self> {
        let (router, prefix) = text.split_once('/')?;
        let network = Self { router: router.parse().ok()?, prefix: prefix.parse().ok()? };
        ((1..=LONGEST_PREFIX).contains(&network.prefix) && network.has_host(network.router))
            .then_some(network)
    }

    fn first(self) -> u32 {
        self.router.to_bits() & u32::MAX << (u32::BITS - self.prefix)
    }

    fn last(self) -> u32 {
        self.first() | u32::MAX >> self.prefix
    }

    /// A host can have the address: it is in the network, and neither the network's own nor that of everybody in it.
    fn has_host(self, address: Ipv4Addr) -> bool {
        address.to_bits() > self.first() && address.to_bits() < self.last()
    }

    /// An address for a guest.
    fn example(self) -> Ipv4Addr {
        let mut candidates = (self.first() + 1..self.last()).map(Ipv4Addr::from_bits);
        candidates.find(|address| *address != self.router).unwrap_or(self.router)
    }
}

/// What the command line says of the network: nothing if the domain has another job, then nothing if it leaves addresses to others.
fn said(cmdline: &str) -> Option<Option<&str>> {
    let job = cmdline.split_whitespace().filter_map(|word| word.strip_prefix(JOB)).next_back()?;
    let values = match job.strip_prefix(':') {
        Some(values) => values,
        None if job.is_empty() => "",
        // Another job, whose name begins alike.
        None => return None,
    };
    Some(values.split(',').filter_map(|value| value.strip_prefix("network=")).next_back())
}

/// Checks the network that a domain gives to its guests, and the addresses that they are to have of it.
pub fn check(setup: &Setup, server: &Domain, source: &mut Source) {
    let name = &**server.name.get_ref();
    let devices = setup.domains.iter().flat_map(|domain| &domain.virtio);
    let addresses =
        devices.filter(|device| device.by.get_ref() == name).filter_map(|device| device.address.as_ref());
    let Some(said) = said(server.cmdline.get_ref()) else { return };
    let network = said.and_then(Network::parse);
    if let (Some(text), None) = (said, network) {
        let message = format!("'{text}' is no network that '{name}' could give to guests");
        let help =
            "write its own address in it, and how many bits all of them begin with: network=10.0.2.129/25";
        return source.complain(server.cmdline.span(), message, help.to_owned());
    }
    for address in addresses {
        let (shown, span) = (address.get_ref(), address.span());
        let Some(network) = network else {
            let message = format!("'{name}' gives no addresses to guests");
            let help = "leave address out, or add to the job on its command line its own address and network: network=10.0.2.129/25";
            source.complain(span, message, help.to_owned());
            continue;
        };
        if *shown == network.router {
            let message = format!("{shown} is the address of '{name}' already");
            source.complain(
                span,
                message,
                format!("use another of its network, such as {}", network.example()),
            );
        } else if !network.has_host(*shown) {
            let (first, last) =
                (Ipv4Addr::from_bits(network.first() + 1), Ipv4Addr::from_bits(network.last() - 1));
            let message = format!("{shown} is no address of the network that '{name}' gives to guests");
            source.complain(span, message, format!("use one of {first} to {last}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read() {
        let network = Network::parse("10.0.2.129/25").unwrap();
        let host = |text: &str| network.has_host(text.parse().unwrap());
        assert!(host("10.0.2.129") && host("10.0.2.254"));
        assert!(!host("10.0.2.127") && !host("10.0.2.128") && !host("10.0.2.255") && !host("10.0.3.130"));
        assert_eq!(network.example(), Ipv4Addr::new(10, 0, 2, 130));
        assert_eq!(Network::parse("10.0.2.1/30").unwrap().example(), Ipv4Addr::new(10, 0, 2, 2));
        for text in [
            "10.0.2.129",
            "10.0.2.129/",
            "10.0.2.129/31",
            "10.0.2.129/0",
            "10.0.2.129/33",
            "10.0.2.128/25",
            "10.0.2.255/25",
            "/25",
            "a/25",
        ] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
        assert!(Network::parse("10.0.2.129/1").is_some());
    }

    #[test]
    fn only_the_job_serve_says_its_network() {
        assert_eq!(
            said("quiet sluice.job=serve:bridge=br0,network=10.0.2.1/24,pool=x"),
            Some(Some("10.0.2.1/24"))
        );
        assert_eq!(said("sluice.job=serve:bridge=br0"), Some(None));
        assert_eq!(said("sluice.job=serve"), Some(None));
        assert_eq!(said("sluice.job=server:network=10.0.2.1/24"), None);
        assert_eq!(
            said("sluice.job=serve:network=1 sluice.job=serve:network=2"),
            Some(Some("2")),
            "Linux's programs take the last"
        );
        assert_eq!(said("quiet"), None);
    }
}
