//! With whom a domain may share single pages of its memory.

use super::diagnostic::Source;
use super::walk::{Walk, suggestion};
use super::{Domain, Setup};
use sluice_abi::config::{Kind, MAX_PEERS};
use toml::Spanned;
use toml::de::DeValue;

/// Reads the list.
pub fn parse(walk: &mut Walk, source: &mut Source) -> Vec<Spanned<String>> {
    let mut names = Vec::new();
    for item in walk.list("peers", source) {
        match item.get_ref() {
            DeValue::String(text) => names.push(Spanned::new(item.span(), text.clone().into_owned())),
            _ => source.complain(
                item.span(),
                "a peer is the name of a domain".to_owned(),
                "write it as \"name\"".to_owned(),
            ),
        }
    }
    names
}

/// Checks that both sides agree.
pub fn check(setup: &Setup, source: &mut Source) {
    for domain in &setup.domains {
        for (index, peer) in domain.peers.iter().enumerate() {
            if index >= MAX_PEERS {
                let message = format!("'{}' has more than {MAX_PEERS} peers", domain.name.get_ref());
                source.complain(peer.span(), message, "leave some out".to_owned());
                break;
            }
            agree(setup, domain, peer, source);
        }
    }
}

fn agree(setup: &Setup, domain: &Domain, peer: &Spanned<String>, source: &mut Source) {
    let (name, wanted) = (domain.name.get_ref(), peer.get_ref());
    let Some(other) = setup.domains.iter().find(|other| &**other.name.get_ref() == wanted) else {
        let names: Vec<&str> = setup.domains.iter().map(|domain| &**domain.name.get_ref()).collect();
        return source.complain(
            peer.span(),
            format!("no domain is called '{wanted}'"),
            suggestion(wanted, &names),
        );
    };
    if other.name.get_ref() == name {
        let help = "name the domain that pages are shared with".to_owned();
        return source.complain(peer.span(), "a domain is not its own peer".to_owned(), help);
    }
    if !other.peers.iter().any(|back| *back.get_ref() == **name) {
        let message = format!("'{wanted}' does not name '{name}' as its peer, and so they share nothing");
        source.complain(peer.span(), message, format!("add to [domain.{wanted}]: peers = [\"{name}\"]"));
    }
    for side in [domain, other] {
        if *side.kind.get_ref() == Kind::Paravirtual {
            let message = format!("'{}' is paravirtual, and such domains have no peers", side.name.get_ref());
            source.complain(peer.span(), message, "leave out peers, or kind = \"paravirtual\"".to_owned());
        }
    }
}
