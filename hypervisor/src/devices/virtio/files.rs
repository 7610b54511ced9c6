//! Memory operations of device files: what a guest has declared, and copies of it for who serves the device.
//!
//! A copy walks the page tables of the process as its processor would at privilege level 3, page by page as it goes: what the guest unmaps
//! meanwhile, or may not write, is not reached. The lock of the link is held for a copy, so that nothing is copied any more once a
//! declaration was withdrawn.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 4.1, 5.2.

use super::{Link, State};
use crate::domain::Domain;
use crate::exit::guest::GuestTables;
use sluice_devfile::{Declarations, Ranges, Refused};
use sluice_hypercall::call::Error;
use sluice_hypercall::devfile::Copy;
use sluice_insn::PagingState;
use sluice_insn::walk::{Access, Kind, touch};
use sluice_memory::{Gpa, PAGE_SIZE};

/// What the operations of a device reach.
#[derive(Default)]
pub struct Files {
    declarations: Declarations<PagingState>,
    /// Bytes that were copied.
    pub copied: u64,
    /// Copies that were refused.
    pub refused: u64,
}

impl State {
    /// No operation reaches anything any more.
    pub(super) fn forget_declarations(&mut self) {
        if let Some(files) = &mut self.files {
            files.declarations.clear();
        }
    }

    pub(super) fn declare(&mut self, tag: u32, reach: Option<(PagingState, Ranges)>) -> Result<(), Error> {
        let live = self.device.is_live();
        let files = self.files.as_mut().ok_or(Error::BadArgument)?;
        match reach {
            None if files.declarations.withdraw(tag) => Ok(()),
            None => Err(Error::Absent),
            Some(_) if !live => Err(Error::NoPeer),
            Some((paging, ranges)) => {
                let declared = files.declarations.declare(tag, paging, ranges);
                declared.then_some(()).ok_or(Error::BadArgument)
            }
        }
    }

    /// Copies for `server`, which serves the device.
    pub(super) fn copy(&mut self, link: &Link, server: &Domain, copy: &Copy) -> Result<(), Error> {
        let guest = self.front().map(|(_, guest)| guest);
        let files = self.files.as_mut().ok_or(Error::BadArgument)?;
        let paging = match files.declarations.check(copy) {
            Ok(paging) => paging,
            Err(Refused) => {
                files.refused += 1;
                if files.refused == 1 {
                    let (guest, server) = &link.between;
                    log::warn!(
                        "device {}: domain {server} is refused memory of {guest} that is not declared",
                        link.name
                    );
                }
                return Err(Error::NotPermitted);
            }
        };
        let guest = guest.ok_or(Error::NoPeer)?;
        transfer(&guest, &paging, server, copy)?;
        files.copied += u64::from(copy.bytes);
        Ok(())
    }
}

/// Copies between a process of `guest` and memory of `server`.
fn transfer(guest: &Domain, paging: &PagingState, server: &Domain, copy: &Copy) -> Result<(), Error> {
    let access = Access { kind: if copy.out { Kind::Write } else { Kind::Read }, user: true, ac: false };
    server.holds(Gpa::new(copy.local), copy.bytes.into()).then_some(()).ok_or(Error::BadArgument)?;
    let mut done = 0;
    while done < u64::from(copy.bytes) {
        let address = copy.address.wrapping_add(done);
        let in_page = PAGE_SIZE - address % PAGE_SIZE;
        let length = (u64::from(copy.bytes) - done).min(in_page);
        let local = Gpa::new(copy.local + done);
        let there = touch(paging, address, access, &GuestTables(guest)).map_err(|_| Error::Fault)?;
        let copied = match copy.out {
            true => server.copy(local, (guest, there), length),
            false => guest.copy(there, (server, local), length),
        };
        copied.map_err(|_| Error::Fault)?;
        done += length;
    }
    Ok(())
}
