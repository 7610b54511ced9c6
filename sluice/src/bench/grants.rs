//! What grants cost. Calls: guest/bare counts the instructions of the whole machine with the time-stamp counter, at so many references that are granted
//! already. Beside them, the calls of Xen's dom0.

mod xen;

use super::parts::Parts;
use super::record::{Aim, Record};
use super::{Clock, driver, sluice};
use crate::outcome::Finding;
use crate::printable::GuestText;
use anyhow::{Result, bail};

/// What is measured: the guest's name for it, and about it.
const MEASURED: [(&str, &str); 5] = [
    ("issue", "a call that issues one page, and the peer's flush"),
    ("revoke", "a call that revokes one page, and the peer's flush"),
    ("forced", "the same, whatever the status word says"),
    ("batch_issue", "for one of 64 pages of a list that do not touch, with one flush"),
    ("batch_revoke", "for one of 64 pages of a list that do not touch, with one flush"),
];
/// References that are granted meanwhile.
const LIVE: [&str; 3] = ["1e3", "1e5", "1e6"];
/// How much more than at 10^3 is still the same: the time-stamp counter's calls are part of it.
const SAME: f64 = 1.1;

/// Its parts: the calls, Xen's, and each way to lend memory to virtual devices.
pub const PARTS: [&str; 7] = {
    let [all, each, held, new, beyond] = driver::LENT;
    ["calls", xen::PART, all, each, held, new, beyond]
};

/// Measures what is wanted.
pub fn measure(record: &mut Record, only: &[String]) -> Result<()> {
    let parts = Parts::new(only);
    if parts.wants("calls", None) {
        calls(record)?;
    }
    if parts.wants(xen::PART, None) {
        let measured = xen::measure(record);
        super::note(record, xen::PART, measured);
    }
    driver::measure_grants(record, only)
}

fn calls(record: &mut Record) -> Result<()> {
    let (_, outcome) = sluice("grants", Clock::Instructions, Vec::new())?;
    let findings: Vec<Finding> = outcome.guests.into_iter().flat_map(|guest| guest.findings).collect();
    let all: Vec<&(GuestText, GuestText)> = findings.iter().flatten().collect();
    let value = |key: &str| all.iter().find(|pair| pair.0 == *key)?.1.raw().parse::<f64>().ok();
    for (name, about) in MEASURED {
        let mut first: Option<f64> = None;
        for live in LIVE {
            let Some(found) = value(&format!("grants.{name}.{live}")) else {
                bail!("the guest did not say what grants.{name}.{live} costs");
            };
            let id = format!("grants.{name}.instructions.{live}");
            let note = format!("{about}; average of 64, with {live} references granted");
            match first {
                None => record.row(id, found, "instructions", note),
                Some(first) => {
                    record.aimed(id, found, "instructions", Some(Aim::AtMost((first * SAME).round())), note)
                }
            }
            first.get_or_insert(found);
        }
    }
    Ok(())
}
