//! Single values that stand in several tables.

use super::diagnostic::Source;
use super::walk::Walk;
use crate::name::Name;
use toml::Spanned;

/// What names are made of ([`Name`]).
pub const NAME_HELP: &str = "use 1 to 31 of a-z, 0-9 and '-', not '-' first";

/// A name, as long as it is one.
pub fn name(name: &Spanned<String>, what: &str, source: &mut Source) -> Option<Spanned<Name>> {
    let checked = name.get_ref().parse().ok();
    if checked.is_none() {
        let help = NAME_HELP.to_owned();
        let message = format!("'{}' cannot be the name of a {what}", name.get_ref());
        source.complain(name.span(), message, help);
    }
    checked.map(|checked| Spanned::new(name.span(), checked))
}

/// A station address, if there is one.
pub fn mac(walk: &mut Walk, source: &mut Source) -> Option<Spanned<[u8; 6]>> {
    let text = walk.string("mac", source)?;
    let mac = parse_mac(text.get_ref());
    if mac.is_none() {
        let message = format!("'{}' is no station address", text.get_ref());
        source.complain(text.span(), message, "write six bytes: \"52:54:00:00:00:0a\"".to_owned());
    }
    mac.map(|mac| Spanned::new(text.span(), mac))
}

/// Six bytes, as `52:54:00:00:00:0a`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> = text
        .split([':', '-'])
        .map(|part| if part.len() == 2 { u8::from_str_radix(part, 16).ok() } else { None })
        .collect::<Option<_>>()?;
    bytes.try_into().ok()
}

/// `256MiB`, `2 GiB`, `512M`: binary units only.
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim() {
        "KiB" | "K" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}
