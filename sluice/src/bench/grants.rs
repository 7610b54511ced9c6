//! What grants cost. Calls: guest/bare counts the instructions of the whole machine with the time-stamp counter, at so many references that are granted
//! already. Beside them, the calls of Xen's dom0.

mod xen;

use super::parts::Parts;
use super::record::{Aim, Record};
use super::{Clock, driver, sluice};
use crate::outcome::Finding;
use crate::printable::GuestText;
use anyhow::{Context, Result, bail};

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

/// The same for grants by a table, the older way.
const BY_TABLE: [(&str, &str); 8] = [
    ("map", "a call that maps one page"),
    ("unmap", "a call that unmaps one page, and the flush of the caller's processor"),
    ("copy", "a call that copies 4096 bytes into a page"),
    ("copy_64", "a call that copies 64 bytes into a page"),
    ("batch_map", "for one of 64 pages of a list that do not touch"),
    ("batch_unmap", "for one of 64 pages of a list that do not touch, with one flush"),
    ("batch_copy", "for one of 64 parts of 4096 bytes of a list"),
    ("batch_copy_64", "for one of 64 parts of 64 bytes of a list"),
];

/// What more than Xen's is the same: nobody is to say that the older way was slow on purpose.
const AS_XEN: f64 = 1.2;

/// Its parts: the calls, those of the older way, Xen's, and each way to lend memory to virtual devices.
pub const PARTS: [&str; 15] = {
    let [a, b, c, d, e, f, g, h, i, j, k] = driver::LENT;
    ["calls", "table", xen::PART, a, b, c, d, e, f, g, h, i, j, k, driver::ATTACKED]
};

/// Measures what is wanted.
pub fn measure(record: &mut Record, only: &[String]) -> Result<()> {
    let parts = Parts::new(only);
    if parts.wants("calls", None) {
        calls(record)?;
    }
    if parts.wants("table", None) {
        by_table(record)?;
    }
    if parts.wants(xen::PART, None) {
        let measured = xen::measure(record);
        super::note(record, xen::PART, measured);
    }
    beside_xen(record);
    driver::measure_grants(record, only)
}

/// The older way beside Xen's, with pages of guests that have nested tables.
fn beside_xen(record: &mut Record) {
    for (name, _) in BY_TABLE {
        let of = |whose: &str| record.value(&format!("grants.{whose}.{name}.instructions"));
        let Some((own, xen)) = of("old").zip(of("xen.pvh")) else { continue };
        let note = "beside grants.xen.pvh; a call is a VM exit here, of 256 instructions without any work, and none of Xen's paravirtual dom0";
        record.aimed(
            format!("grants.old.{name}.ratio_to_xen"),
            own / xen,
            "ratio",
            Some(Aim::AtMost(AS_XEN)),
            note,
        );
    }
}

fn by_table(record: &mut Record) -> Result<()> {
    let found = said("grants-table")?;
    for (name, about) in BY_TABLE {
        let instructions = found(name).with_context(|| format!("the guest did not say what {name} costs"))?;
        record.row(
            format!("grants.old.{name}.instructions"),
            instructions,
            "instructions",
            format!("{about}; average of 64"),
        );
    }
    Ok(())
}

/// What the guests of a configuration say of a name.
fn said(configuration: &str) -> Result<impl Fn(&str) -> Option<f64>> {
    let (_, outcome) = sluice(configuration, Clock::Instructions, Vec::new())?;
    let findings: Vec<Finding> = outcome.guests.into_iter().flat_map(|guest| guest.findings).collect();
    let all: Vec<(GuestText, GuestText)> = findings.into_iter().flatten().collect();
    Ok(move |key: &str| all.iter().find(|pair| pair.0 == *key)?.1.raw().parse::<f64>().ok())
}

fn calls(record: &mut Record) -> Result<()> {
    let value = said("grants")?;
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
