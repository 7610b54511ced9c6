//! `on_refusal` and `refusals`: what a guest sees when an access to its device is refused.

use super::diagnostic::Source;
use super::walk::{Walk, kind, suggestion};
use super::{Setup, Share};
use sluice_abi::config::{self, Mode, NicModel, Reaction, Select};
use sluice_model::{Model, models};
use std::ops::Range;
use toml::Spanned;
use toml::de::DeValue;

/// What an entry of `devices` says of it.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    /// For registers that are not named.
    pub others: Option<Spanned<Reaction>>,
    /// By register, as the file names it.
    pub registers: Vec<(Spanned<String>, Reaction)>,
}

/// Reads both keys.
pub fn parse(walk: &mut Walk, source: &mut Source) -> Refusals {
    let others = walk.string("on_refusal", source).and_then(|word| {
        let found = reaction(word.get_ref(), word.span(), source);
        found.map(|reaction| Spanned::new(word.span(), reaction))
    });
    let mut registers = Vec::new();
    match walk.value("refusals").map(|value| (value.span(), value.get_ref())) {
        None => {}
        Some((_, DeValue::Table(table))) => {
            for (name, value) in table.iter() {
                let found = match value.get_ref() {
                    DeValue::String(word) => reaction(word, value.span(), source),
                    other => {
                        let message = format!("a reaction must be a string, not {}", kind(other));
                        source.complain(value.span(), message, help());
                        None
                    }
                };
                let name = Spanned::new(name.span(), name.get_ref().clone().into_owned());
                registers.extend(found.map(|reaction| (name, reaction)));
            }
            registers.sort_by_key(|(name, _)| name.span().start);
        }
        Some((span, other)) => {
            let message = format!("'refusals' must be a table, not {}", kind(other));
            source.complain(span, message, "write refusals = { CMD = \"interrupt\" }".to_owned());
        }
    }
    Refusals { others, registers }
}

fn reaction(word: &str, span: Range<usize>, source: &mut Source) -> Option<Reaction> {
    let found = Reaction::ALL.into_iter().find(|(known, _)| *known == word);
    if found.is_none() {
        let help = suggestion(word, &Reaction::ALL.map(|(word, _)| word));
        source.complain(span, format!("'{word}' is no reaction to a refused access"), help);
    }
    found.map(|(_, reaction)| reaction)
}

fn help() -> String {
    let words = Reaction::ALL.map(|(word, _)| format!("\"{word}\""));
    format!("use {}", words.join(", "))
}

/// Checks that the device refuses accesses at all, and has the registers.
pub fn check(share: &Share, setup: &Setup, source: &mut Source) {
    let refusals = &share.refusals;
    let name = share.device.get_ref();
    let first = refusals.others.as_ref().map(Spanned::span);
    let Some(span) = first.or_else(|| refusals.registers.first().map(|(name, _)| name.span())) else {
        return;
    };
    if share.mode != Mode::Vpio {
        let message = format!("'{name}' refuses no access to a register in this mode");
        let help = "leave out on_refusal and refusals, or use mode = \"vpio\"";
        return source.complain(span, message, help.to_owned());
    }
    if share.sectors.is_some() {
        let why = format!("'{name}' is a disk, which refuses commands and no access to a register");
        let silent = format!("'{name}' is a disk, which says of each command how it ended");
        let help = "use \"interrupt\", which it does by itself, \"deferred-error\" or \"machine-check\"";
        return check_own(refusals, why, Some((Reaction::Discard, silent, help)), source);
    }
    if setup.identity(share).is_some_and(|(vendor, device)| models::find_master(vendor, device).is_some()) {
        let why =
            format!("'{name}' refuses transfers, and no access to a register: each guest's card is its own");
        // Of an RTL8139 it is SERR.
        let none = format!("'{name}' has no interrupt for a transfer that is refused: only an RTL8139 has");
        let help = "use \"discard\", \"deferred-error\" or \"machine-check\"";
        let has_one = setup.like(share) == Some(Some(NicModel::Rtl8139));
        return check_own(refusals, why, (!has_one).then_some((Reaction::Interrupt, none, help)), source);
    }
    let Some(model) = model(share, setup) else {
        return;
    };
    for (register, _) in &refusals.registers {
        if named(model, register.get_ref()).is_none() {
            let message = format!("the {} has no register '{}'", model.name, register.get_ref());
            source.complain(register.span(), message, suggestion(register.get_ref(), &names(model)));
        }
    }
    for (index, (register, _)) in refusals.registers.iter().enumerate() {
        let same = |(other, _): &(Spanned<String>, Reaction)| {
            named(model, other.get_ref()).is_some_and(|name| Some(name) == named(model, register.get_ref()))
        };
        if let Some((other, _)) = refusals.registers[..index].iter().find(|other| same(other)) {
            let message = format!(
                "'{}' and '{}' are one register to the model, by one name for reading and one for writing",
                other.get_ref(),
                register.get_ref()
            );
            source.complain(register.span(), message, "name it once".to_owned());
        }
    }
}

/// Checks what is said of a device of the guest's own, which refuses no access to a register (`why`). `lacks`: the
/// reaction that it cannot have, with the reason and what to write.
fn check_own(refusals: &Refusals, why: String, lacks: Option<(Reaction, String, &str)>, source: &mut Source) {
    if let Some((register, _)) = refusals.registers.first() {
        let help = "leave out refusals, and use on_refusal";
        return source.complain(register.span(), why, help.to_owned());
    }
    if let (Some(others), Some((lacking, message, help))) = (&refusals.others, lacks)
        && *others.get_ref() == lacking
    {
        source.complain(others.span(), message, help.to_owned());
    }
}

/// The model that decides which accesses are refused. A device that is named by its place may be an NE2000.
fn model(share: &Share, setup: &Setup) -> Option<&'static Model> {
    let device = setup.devices.iter().find(|device| device.name.get_ref() == share.device.get_ref())?;
    match *device.select.get_ref() {
        Select::Id { vendor, device, .. } => models::find(vendor, device),
        Select::Address { .. } => Some(&models::ne2000::MODEL),
    }
}

/// A register's name in the model: the file may give one of its two names.
fn named(model: &'static Model, word: &str) -> Option<&'static str> {
    let fits = |name: &&str| *name == word || name.split('/').any(|part| part == word);
    model.registers.iter().map(|register| register.name).find(fits)
}

/// The names that the file may use.
fn names(model: &Model) -> Vec<&'static str> {
    let mut names: Vec<_> = model.registers.iter().flat_map(|register| register.name.split('/')).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What the hypervisor is told.
pub fn resolve(share: &Share, setup: &Setup) -> config::Refusals {
    let model = model(share, setup);
    let name = |word: &str| model.and_then(|model| named(model, word)).unwrap_or(word).to_owned();
    config::Refusals {
        others: share.refusals.others.as_ref().map(|others| *others.get_ref()),
        registers: share.refusals.registers.iter().map(|(word, to)| (name(word.get_ref()), *to)).collect(),
    }
}
