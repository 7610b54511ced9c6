//! A guest's software card on its PCI bus: identity, BARs, and what follows when the guest programs them.
//!
//! Its ports are where no physical device of the configuration has any, and do not move, as no guest's ports do. Its memory is
//! wherever the guest puts it. Every access exits.

use super::super::{Device, Windows, devices};
use super::mirror::Mirror;
use crate::domain::{Access, Answer, Domain, PageHandler, Piece, PortHandler};
use crate::pci;
use crate::sync::{Rank, SpinLock};
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_abi::config::NicModel;
use sluice_emulated::{Bar, Description, Direct, PAGES, PortId, Register, Shown};
use sluice_memory::{Gpa, Hpa, PAGE_SIZE};
use sluice_platform::pci::{BarKind, Builder, ConfigEffect, Identity};
use sluice_traps::Direction;

/// QEMU's subsystem, for drivers that look.
const SUBSYSTEM: (u16, u16) = (0x1af4, 0x1100);
/// Ports per slot, more than any card has.
const PORTS_PER_SLOT: u64 = 0x100;
/// Slots' ports lie together in such a stretch.
const STRETCH: u64 = 0x1000;

/// A BAR and where it is to begin with.
#[derive(Clone, Copy)]
struct Window {
    bar: Bar,
    initial: u64,
    /// Bytes: whole pages of memory, of which the card ignores what is behind its registers.
    size: u64,
}

/// A guest's card.
pub struct Station {
    port: PortId,
    description: Description,
    windows: ArrayVec<Window, 6>,
    /// What the guest sees of its memory without an exit.
    mirror: Option<Mirror>,
    /// TSC at which the card goes on with what it has left to do; `u64::MAX`: nothing.
    resumes_at: AtomicU64,
    state: SpinLock<State>,
}

#[derive(Default)]
struct State {
    /// By BAR: where it answers now.
    mapped: [Option<u64>; 6],
    /// In the memory BAR.
    shown: Shown,
}

/// Ports for the cards of a slot, where no physical device has any.
fn ports(slot: u8) -> Option<u64> {
    let physical = |range: &core::ops::Range<u64>| {
        let bars = devices().iter().flat_map(|device| device.function.bars.iter()).filter(|bar| bar.io);
        bars.clone().any(|bar| bar.address < range.end && range.start < bar.address + bar.size)
    };
    (1..16)
        .map(|stretch| stretch * STRETCH + u64::from(slot & 15) * PORTS_PER_SLOT)
        .find(|start| !physical(&(*start..start + PORTS_PER_SLOT)))
}

impl Station {
    /// A card at a port of the switch; `None` if the guest has no room for it.
    pub fn new(port: PortId, model: NicModel, slot: u8, windows: &mut Windows) -> Option<Self> {
        let description = sluice_emulated::describe(model);
        let mut placed = ArrayVec::new();
        for bar in description.bars {
            let size = u64::from(bar.size).max(if bar.io { 0 } else { PAGE_SIZE });
            let initial = if bar.io { ports(slot) } else { windows.take(size) }?;
            placed.try_push(Window { bar: *bar, initial, size }).ok()?;
        }
        Some(Self {
            port,
            description,
            windows: placed,
            mirror: None,
            resumes_at: AtomicU64::new(u64::MAX),
            state: SpinLock::new(Rank::Share, State::default()),
        })
    }

    /// The same card, whose memory the guest can read without an exit where it makes no difference.
    pub fn mirrored(self, mirror: Mirror, shown: Shown) -> Self {
        self.state.lock().shown = shown;
        Self { mirror: Some(mirror), ..self }
    }

    /// Its port of the switch.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// TSC at which the card goes on with what it has left to do, in its guest's time; `u64::MAX`: nothing.
    pub fn resumes_at(&self) -> u64 {
        self.resumes_at.load(Ordering::SeqCst)
    }

    /// Notes when that is.
    pub fn resume_at(&self, tsc: u64) {
        self.resumes_at.store(tsc, Ordering::SeqCst);
    }

    /// Goes on with what the card has left to do, if it is time and nobody else does so already.
    pub fn resume(&self, device: &Device, now: u64) {
        let at = self.resumes_at();
        let claim = || self.resumes_at.compare_exchange(at, u64::MAX, Ordering::SeqCst, Ordering::SeqCst);
        if at <= now && claim().is_ok() {
            device.with_shared_nic(|shared, env| shared.resume(env, self.port));
        }
    }

    /// Who it says it is.
    pub fn identity(&self) -> Identity {
        let Description { vendor, device, revision, class, .. } = self.description;
        let (subsystem_vendor, subsystem) = SUBSYSTEM;
        Identity { vendor, device, class, revision, subsystem_vendor, subsystem }
    }

    /// Adds its BARs.
    pub fn describe(&self, mut builder: Builder) -> Builder {
        for Window { bar, initial, size } in &self.windows {
            let kind = if bar.io { BarKind::Io } else { BarKind::Mem32 { prefetchable: false } };
            builder = builder.bar(bar.index, kind, *size, *initial);
        }
        builder
    }

    /// The guest wrote to the function's configuration space, or did not yet.
    pub fn configured(&self, domain: &Domain, share: u8, slot: u8, device: &Device, effect: ConfigEffect) {
        let mut state = self.state.lock();
        let State { mapped, shown } = &mut *state;
        let platform = domain.platform.lock();
        let wanted: [Option<u64>; 6] = core::array::from_fn(|index| {
            let bar = platform.pci.bar(slot, index as u8)?;
            bar.enabled.then_some(bar.address)
        });
        drop(platform);
        // First away with what moves, so that two BARs can change places.
        for adding in [false, true] {
            for window in &self.windows {
                let index = usize::from(window.bar.index);
                let (Some(wanted), Some(mapped)) = (wanted.get(index), mapped.get_mut(index)) else {
                    continue;
                };
                match *mapped {
                    Some(at) if !adding && *wanted != Some(at) => {
                        self.move_bar(domain, device, share, window, at, None);
                        *mapped = None;
                    }
                    None if adding => {
                        let shown = Some(*shown);
                        *mapped = wanted.filter(|at| self.move_bar(domain, device, share, window, *at, shown))
                    }
                    _ => {}
                }
            }
        }
        drop(state);
        if let ConfigEffect::CommandChanged(..) = effect {
            device.with_shared_nic(|shared, env| {
                // Read here, so that what the guest wrote last is what the card is told last.
                let command = domain.platform.lock().pci.command(slot);
                let (master, silent) =
                    (command & pci::COMMAND_MASTER != 0, command & pci::COMMAND_NO_INTX != 0);
                shared.configure(self.port, master, silent);
                shared.poll(env);
            });
        }
    }

    /// An access to its ports.
    pub fn io(&self, device: &Device, port: u16, width: u8, access: Access<'_>) -> Answer {
        let window = self.windows.iter().find(|window| window.bar.io);
        let offset = window.and_then(|window| u64::from(port).checked_sub(window.initial));
        match offset {
            Some(offset) => self.access(device, Register { io: true, offset: offset as u32 }, width, access),
            None => Answer::Refused,
        }
    }

    /// An access to its memory.
    pub fn memory(&self, device: &Device, bar: u8, gpa: Gpa, mut access: Access<'_>) -> Answer {
        let base = self.state.lock().mapped.get(usize::from(bar)).copied().flatten();
        let Some(offset) = base.and_then(|base| gpa.as_u64().checked_sub(base)) else {
            return Answer::Refused;
        };
        let mut done = 0;
        while done < access.len() {
            let left = access.len() - done;
            let width = [4, 2, 1].into_iter().find(|width| *width <= left).unwrap_or(1);
            let at = Register { io: false, offset: (offset as u32).wrapping_add(done as u32) };
            if self.access(device, at, width as u8, access.part(done..done + width)) == Answer::Refused {
                return Answer::Refused;
            }
            done += width;
        }
        Answer::Done
    }

    /// Interrupts of this guest's own are posted to it, so that its processor looks before it goes on.
    fn access(&self, device: &Device, register: Register, width: u8, access: Access<'_>) -> Answer {
        let done = device.with_shared_nic(|shared, env| match access {
            Access::Read(into) => shared.read(env, self.port, register, width, into),
            Access::Write(from) => shared.write(env, self.port, register, width, from),
        });
        match done {
            // Its processor learns when the card goes on before it goes on itself.
            Some(()) if self.resumes_at() != u64::MAX => Answer::Attend,
            Some(()) => Answer::Done,
            None => Answer::Refused,
        }
    }

    /// The guest finds something else in its card's memory from now on.
    pub fn show(&self, domain: &Domain, device: &Device, share: u8, new: Shown) {
        let mut state = self.state.lock();
        let old = core::mem::replace(&mut state.shown, new);
        for window in self.windows.iter().filter(|window| !window.bar.io) {
            let Some(at) = state.mapped.get(usize::from(window.bar.index)).copied().flatten() else {
                continue;
            };
            let handler = PageHandler::Device { share, bar: window.bar.index };
            let pages = old.direct.iter().zip(&new.direct);
            for (piece, (old_direct, direct)) in pieces(window, at, &new.direct).iter().zip(pages) {
                let same = old_direct == direct && (old.hardware == new.hardware || direct.is_empty());
                if !same && !domain.redirect_device(handler, self.behind(device, window, new), piece) {
                    log::warn!("domain {}: no memory to show registers in", domain.name());
                }
            }
        }
    }

    /// Where a memory BAR is: the mirror, or the physical card.
    fn behind(&self, device: &Device, window: &Window, shown: Shown) -> Hpa {
        let physical = device.function.bar(window.bar.index).filter(|_| shown.hardware);
        let mirror = self.mirror.as_ref().map_or(Hpa::new(0), Mirror::hpa);
        physical.map_or(mirror, |bar| Hpa::new(bar.address))
    }

    /// Lets a BAR answer at an address, showing this, or no more. False if it cannot.
    fn move_bar(
        &self,
        domain: &Domain,
        device: &Device,
        share: u8,
        window: &Window,
        at: u64,
        there: Option<Shown>,
    ) -> bool {
        let Window { bar, size, .. } = window;
        if bar.io {
            let handler = if there.is_some() { PortHandler::Device(share) } else { PortHandler::None };
            domain.set_ports(at as u16, *size as u16, handler, |_| false);
            return true;
        }
        let shown = there.unwrap_or_default();
        let pieces = pieces(window, at, &shown.direct);
        if there.is_some() {
            let handler = PageHandler::Device { share, bar: bar.index };
            return domain.map_device(handler, self.behind(device, window, shown), &pieces);
        }
        domain.unmap_device(&pieces);
        true
    }
}

/// The pages of a memory BAR that can be direct, one by one, and the rest.
fn pieces(window: &Window, at: u64, direct: &Direct) -> ArrayVec<Piece, { PAGES + 1 }> {
    let pages = (0..PAGES as u64).map(|page| page * PAGE_SIZE..(page + 1) * PAGE_SIZE);
    let rest = PAGES as u64 * PAGE_SIZE..window.size;
    pages
        .zip(direct.iter().copied())
        .chain([(rest, Direction::empty())])
        .filter(|(range, _)| !range.is_empty() && range.end <= window.size)
        .map(|(range, direct)| Piece { gpa: Gpa::new(at + range.start), range, direct })
        .collect()
}
