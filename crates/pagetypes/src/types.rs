//! The use of every frame of one domain, and the operations that change it.

use crate::given::Given;
use crate::{Descriptor, Devices, ENTRIES, Entry, HOLE, Kind, LINE, Machine};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

/// Number of a frame of the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mfn(pub u64);

impl fmt::Display for Mfn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "frame {:#x}", self.0)
    }
}

/// Why an operation was refused. What it had changed is undone, but for the kind of frames that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// The frame is not the domain's, or the hypervisor keeps something in it.
    NotOwn(Mfn),
    /// The frame is used as something else.
    InUse(Mfn, Kind),
    /// There are more users of the frame than can be counted.
    TooMany(Mfn),
    /// An entry or a descriptor, by its place in this frame, that the hardware must not see.
    Bad(Mfn, usize),
    /// The entry is the hypervisor's.
    Reserved(Mfn),
    /// The frame is pinned, or is not.
    Pinned(Mfn),
    /// The guest has given the frame back.
    GivenBack(Mfn),
    /// What was to be a table's level is none.
    NoTable,
    /// The hardware changed the entry again and again.
    Changed(Mfn),
    /// There is more to look at than [`Types::allow`] said. What has been validated is kept for when the same is asked for again.
    Later,
}

/// What the types say of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counts {
    /// What it is used as; what it was used as last, if `uses` is 0.
    pub kind: Kind,
    /// By how many: entries that refer to it as that, roots, pins.
    pub uses: u32,
    /// The same, and entries that let software read it.
    pub references: u32,
    /// The guest pinned it as a table.
    pub pinned: bool,
    /// No device reaches it, whatever it is used as.
    pub semi: bool,
    /// The guest has given it back: no device reaches it, and what refers to it was there before.
    pub given_back: bool,
}

impl Counts {
    /// Whether devices reach the frame.
    pub const fn is_for_devices(&self) -> bool {
        self.kind.is_for_devices(self.semi) && !self.given_back
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub(crate) counts: Counts,
    /// [`Types::epoch`] when its last use ended: processors may translate by that use until the next one.
    pub(crate) released: u32,
    /// Of a table: the lines that may hold present entries, a bit each. There are none in the others.
    lines: u64,
}

/// What becomes of what an entry was when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// All of it is replaced.
    Lost,
    /// What the hardware has noted in it stays.
    Noted,
    /// It is this. If it is not, nothing is written ([`Refused::Changed`]): the hardware notes in entries at any time that they are used.
    Known(u64),
}

/// Lines of a table.
const TABLE: u32 = (ENTRIES / LINE) as u32;

/// The use of every frame of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Types {
    first: u64,
    frames: Vec<Frame>,
    /// Where to look for frames that were given back.
    pub(crate) given: Given,
    /// How often processors have forgotten their translations. At the highest value it stays, and every change has them forget.
    pub(crate) epoch: u32,
    /// Tables whose last use has ended, and what they refer to is counted still: their own count is 1 until it is not.
    dying: Vec<Mfn>,
    /// Tables that were validated below one that is not yet, each used by that once.
    held: Vec<Mfn>,
    /// How many lines of tables may be looked at before the rest is left for later.
    lines: u32,
    /// Frames that are registers of the domain's devices.
    registers: Vec<Range<u64>>,
}

impl Types {
    /// Frames `first` and following, which the domain can write. `None`: there is no memory for the account.
    pub fn new(first: Mfn, count: usize) -> Option<Self> {
        let (kind, uses, references) = (Kind::Writable, 0, 0);
        let counts = Counts { kind, uses, references, pinned: false, semi: false, given_back: false };
        let given = Given::new(count)?;
        let mut frames = Vec::new();
        frames.try_reserve_exact(count).ok()?;
        frames.resize(count, Frame { counts, released: 0, lines: 0 });
        let (dying, held, registers) = (Vec::new(), Vec::new(), Vec::new());
        Some(Self { first: first.0, frames, given, epoch: 1, dying, held, lines: u32::MAX, registers })
    }

    /// Frames that are registers of a device of the domain's, for as long as it lives. Entries of the lowest tables may refer to them, as
    /// often as the guest likes: they are nobody's memory, and never become a table.
    ///
    /// # Errors
    /// Some of them are memory of the domain's.
    pub fn add_registers(&mut self, frames: Range<u64>) -> Result<(), Refused> {
        let end = self.first.saturating_add(self.frames.len() as u64);
        if frames.start < end && self.first < frames.end {
            return Err(Refused::NotOwn(Mfn(frames.start)));
        }
        self.registers.push(frames);
        Ok(())
    }

    pub(crate) fn is_register(&self, frame: Mfn) -> bool {
        self.registers.iter().any(|frames| frames.contains(&frame.0))
    }

    /// Takes a frame that nobody uses for the hypervisor. Devices must not reach it.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn reserve(&mut self, frame: Mfn) -> Result<(), Refused> {
        let state = self.own(frame)?;
        if state.counts.references != 0 {
            return Err(Refused::InUse(frame, state.counts.kind));
        }
        state.counts.kind = Kind::Hypervisor;
        Ok(())
    }

    /// What is known of a frame. `None`: it is not the domain's.
    pub fn counts(&self, frame: Mfn) -> Option<Counts> {
        self.frames.get(self.index(frame)?).map(|state| state.counts)
    }

    /// Place of a frame in the account, if it is there.
    pub(crate) fn index(&self, frame: Mfn) -> Option<usize> {
        usize::try_from(frame.0.checked_sub(self.first)?).ok()
    }

    /// The frame at a place in the account.
    pub(crate) fn frame(&self, index: usize) -> Option<Mfn> {
        Some(Mfn(self.first.checked_add(index as u64)?))
    }

    /// Whether the frame at a place was given back.
    pub(crate) fn is_given(&self, index: usize) -> bool {
        self.frames.get(index).is_some_and(|state| state.counts.given_back)
    }

    /// Tables are being forgotten, or validated, in pieces.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.dying.is_empty() || !self.held.is_empty()
    }

    /// Whether the guest may name the frame: it is the domain's, the hypervisor keeps nothing in it, and it was not given back.
    pub fn owns(&self, frame: Mfn) -> bool {
        self.counts(frame).is_some_and(|counts| counts.kind != Kind::Hypervisor && !counts.given_back)
    }

    /// The frames of the account.
    pub fn frames(&self) -> impl Iterator<Item = (Mfn, Counts)> + '_ {
        (self.first..).map(Mfn).zip(self.frames.iter().map(|state| state.counts))
    }

    /// Validates a page table and all below it, and keeps it so until [`Self::unpin`].
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn pin(&mut self, machine: &mut impl Machine, frame: Mfn, kind: Kind) -> Result<(), Refused> {
        if !kind.is_table() {
            return Err(Refused::NoTable);
        }
        if self.own(frame)?.counts.pinned {
            return Err(Refused::Pinned(frame));
        }
        let used = self.get(machine, frame, kind);
        self.finish(machine, used)?;
        self.own(frame)?.counts.pinned = true;
        Ok(())
    }

    /// Ends [`Self::pin`].
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn unpin(&mut self, machine: &mut impl Machine, frame: Mfn) -> Result<(), Refused> {
        let state = self.own(frame)?;
        if !core::mem::take(&mut state.counts.pinned) {
            return Err(Refused::Pinned(frame));
        }
        self.put(machine, frame);
        self.settle(machine);
        Ok(())
    }

    /// A processor is about to use a table as its root. It stays one until [`Self::release`].
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn hold_root(&mut self, machine: &mut impl Machine, frame: Mfn) -> Result<(), Refused> {
        let used = self.get(machine, frame, Kind::L4);
        self.finish(machine, used)
    }

    /// A processor is about to use a frame as a part of its descriptor table. It stays one until [`Self::release`].
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn hold_descriptors(&mut self, machine: &mut impl Machine, frame: Mfn) -> Result<(), Refused> {
        self.get(machine, frame, Kind::Descriptors)
    }

    /// The hypervisor is about to write into a frame that the guest named. It stays writable until [`Self::release`].
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn hold_writable(&mut self, machine: &mut impl Machine, frame: Mfn) -> Result<(), Refused> {
        self.get(machine, frame, Kind::Writable)
    }

    /// Ends one of the holds. The caller has one on the frame.
    pub fn release(&mut self, machine: &mut impl Machine, frame: Mfn) {
        self.put(machine, frame);
        self.settle(machine);
    }

    /// From now on so many lines of tables are looked at before the rest waits ([`Refused::Later`]): until then there is no bound. A table has
    /// [`ENTRIES`] / [`LINE`] of them. With those of four tables every piece gets further.
    pub fn allow(&mut self, lines: u32) {
        self.lines = lines;
    }

    /// Goes on with tables whose last use has ended. Until this returns true, they and what they refer to are in use as they were; nothing else
    /// waits for them.
    pub fn settle(&mut self, machine: &mut impl Machine) -> bool {
        while let Some(frame) = self.dying.last().copied() {
            if !self.spend(TABLE) {
                return false;
            }
            self.dying.pop();
            // It may have found another use meanwhile.
            if let Some(Counts { kind, uses: 1, .. }) = self.counts(frame) {
                self.put_entries(machine, frame, kind, ENTRIES);
            }
            self.end_use(frame);
        }
        true
    }

    /// An operation that uses tables has been done or refused, or is to be repeated: unless it is, what was held for it needs no holding any more.
    #[inline]
    fn finish<T>(&mut self, machine: &mut impl Machine, result: Result<T, Refused>) -> Result<T, Refused> {
        if !self.held.is_empty() && !matches!(result, Err(Refused::Later)) {
            self.let_go(machine);
        }
        result
    }

    #[cold]
    fn let_go(&mut self, machine: &mut impl Machine) {
        for frame in core::mem::take(&mut self.held) {
            self.put(machine, frame);
        }
        self.settle(machine);
    }

    /// Takes lines from what is allowed; false if there are not enough.
    fn spend(&mut self, lines: u32) -> bool {
        let left = self.lines.checked_sub(lines);
        // Without a bound there is none, however much is done.
        self.lines = if self.lines == u32::MAX { u32::MAX } else { left.unwrap_or(self.lines) };
        left.is_some()
    }

    /// Writes an entry of a page table, or a word of memory that is none. Returns what it was.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn update(
        &mut self,
        machine: &mut impl Machine,
        table: Mfn,
        index: usize,
        value: u64,
        before: Old,
    ) -> Result<u64, Refused> {
        if let Some(updated) = self.update_mapping(machine, table, index, value, before) {
            return updated;
        }
        let updated = self.update_entry(machine, table, index, value, before);
        self.finish(machine, updated)
    }

    /// [`Self::update`] for an entry of a table of the lowest level, where nothing waits to be settled. `None`: it is none, or something waits; nothing
    /// was done.
    #[inline(always)]
    pub fn update_mapping(
        &mut self,
        machine: &mut impl Machine,
        table: Mfn,
        index: usize,
        value: u64,
        before: Old,
    ) -> Option<Result<u64, Refused>> {
        let Counts { kind, uses, .. } = self.own(table).ok()?.counts;
        if kind != Kind::L1 || uses == 0 || self.is_unsettled() {
            return None;
        }
        Some(self.replace_entry(machine, (table, Kind::L1), index % ENTRIES, value, before))
    }

    #[inline]
    fn update_entry(
        &mut self,
        machine: &mut impl Machine,
        table: Mfn,
        index: usize,
        value: u64,
        before: Old,
    ) -> Result<u64, Refused> {
        let index = index % ENTRIES;
        let Counts { kind, uses, .. } = self.own(table)?.counts;
        if !kind.is_table() || uses == 0 {
            let found = machine.word(table, index);
            return self.write(machine, table, index, value).map(|()| found);
        }
        if kind == Kind::L4 && HOLE.contains(&index) {
            return Err(Refused::Reserved(table));
        }
        self.replace_entry(machine, (table, kind), index, value, before)
    }

    /// Validates an entry and writes it, in a table that is in use.
    #[inline(always)]
    fn replace_entry(
        &mut self,
        machine: &mut impl Machine,
        (table, kind): (Mfn, Kind),
        index: usize,
        value: u64,
        before: Old,
    ) -> Result<u64, Refused> {
        let wanted = Entry::from_bits_retain(value).adjusted(kind).ok_or(Refused::Bad(table, index))?;
        let mut old = Entry::from_bits_retain(match before {
            Old::Known(value) => value,
            Old::Lost | Old::Noted => machine.word(table, index),
        });
        // The hardware sets two bits of an entry and clears none.
        for _ in 0..4 {
            let new = if before == Old::Noted { wanted | old & Entry::HARDWARE } else { wanted };
            let replaces = !same_target(kind, old, new);
            if replaces {
                self.get_entry(machine, kind, new)?;
                if new.contains(Entry::PRESENT) {
                    self.own(table)?.lines |= 1 << (index / LINE);
                }
            }
            match machine.replace(table, index, old.bits(), new.bits()) {
                Ok(()) => {
                    if replaces {
                        self.put_entry(machine, kind, old);
                        self.settle(machine);
                    }
                    return Ok(old.bits());
                }
                Err(found) => {
                    if replaces {
                        self.put_entry(machine, kind, new);
                        self.settle(machine);
                    }
                    old = Entry::from_bits_retain(found);
                }
            }
            if let Old::Known(_) = before {
                break;
            }
        }
        Err(Refused::Changed(table))
    }

    /// Writes a descriptor, in a frame that is a descriptor table or may become one.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn write_descriptor(
        &mut self,
        machine: &mut impl Machine,
        frame: Mfn,
        index: usize,
        value: u64,
    ) -> Result<(), Refused> {
        let index = index % ENTRIES;
        let Descriptor(value) = Descriptor(value).adjusted().ok_or(Refused::Bad(frame, index))?;
        let Counts { kind, uses, .. } = self.own(frame)?.counts;
        if kind == Kind::Descriptors && uses > 0 {
            return store(machine, frame, index, value);
        }
        self.write(machine, frame, index, value)
    }

    /// Makes frames semi-writable, or ends that: no device reaches them, whatever they are used as (PiBooster, 3.3). Devices are dealt with once for
    /// all of them. The order of `frames` changes.
    ///
    /// # Errors
    /// Says what is wrong; nothing was changed.
    pub fn set_semi(
        &mut self,
        machine: &mut impl Machine,
        frames: &mut [Mfn],
        semi: bool,
    ) -> Result<(), Refused> {
        frames.iter().try_for_each(|frame| self.present(*frame).map(drop))?;
        let mut changed = 0;
        for at in 0..frames.len() {
            let Some(frame) = frames.get(at).copied() else { break };
            let counts = &mut self.own(frame)?.counts;
            if core::mem::replace(&mut counts.semi, semi) != semi && counts.kind.is_for_devices(false) {
                frames.swap(changed, at);
                changed += 1;
            }
        }
        let changed = frames.get(..changed).unwrap_or_default();
        match semi {
            _ if changed.is_empty() => {}
            true => machine.hide(changed),
            false => machine.show(changed),
        }
        Ok(())
    }

    /// Has processors forget their translations because the guest asks for it: who changes a frame's kind need not ask again.
    pub fn forget(&mut self, machine: &mut impl Machine) {
        machine.forget();
        self.epoch = self.epoch.saturating_add(1);
    }

    /// A frame of the domain's in which the hypervisor keeps nothing.
    #[inline]
    pub(crate) fn own(&mut self, frame: Mfn) -> Result<&mut Frame, Refused> {
        let index = frame.0.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let state = index.and_then(|index| self.frames.get_mut(index));
        state.filter(|state| state.counts.kind != Kind::Hypervisor).ok_or(Refused::NotOwn(frame))
    }

    /// One of which something new can be made.
    pub(crate) fn present(&mut self, frame: Mfn) -> Result<&mut Frame, Refused> {
        let state = self.own(frame)?;
        if state.counts.given_back { Err(Refused::GivenBack(frame)) } else { Ok(state) }
    }

    /// Counts one more who uses the frame as `kind`; the first has it validated.
    #[inline(always)]
    fn get(&mut self, machine: &mut impl Machine, frame: Mfn, kind: Kind) -> Result<(), Refused> {
        let state = self.present(frame)?;
        // What it is already needs nothing, and what was memory last is memory.
        if state.counts.kind == kind && (state.counts.uses > 0 || kind == Kind::Writable) {
            state.count(frame)?;
            state.counts.uses += 1;
            return Ok(());
        }
        self.get_first(machine, frame, kind)
    }

    /// The same where the frame may become something else.
    #[inline(never)]
    fn get_first(&mut self, machine: &mut impl Machine, frame: Mfn, kind: Kind) -> Result<(), Refused> {
        let epoch = self.epoch;
        let state = self.present(frame)?;
        let from = state.counts.kind;
        if state.counts.uses > 0 && from != kind {
            return Err(Refused::InUse(frame, from));
        }
        let change = from.change(kind, state.counts.semi).ok_or(Refused::NotOwn(frame))?;
        if kind.is_table() && !self.spend(TABLE) {
            return Err(Refused::Later);
        }
        let state = self.own(frame)?;
        state.count(frame)?;
        state.counts.uses += 1;
        state.counts.kind = kind;
        // Translations by its old use are as bad as the use: a processor would write a table, or walk what is none any more.
        if from != kind && state.released == epoch {
            self.forget(machine);
        }
        match change.devices {
            Devices::Keep => {}
            Devices::Hide => machine.hide(&[frame]),
            Devices::Show => machine.show(&[frame]),
        }
        if !change.validate {
            return Ok(());
        }
        // Nobody can write the frame any more: what is found in it stays.
        let validated = match kind {
            Kind::Descriptors => validate_descriptors(machine, frame),
            _ => self.validate_table(machine, frame, kind),
        };
        validated.inspect_err(|refused| {
            self.end_use(frame);
            if *refused != Refused::Later {
                self.settle(machine);
            }
        })
    }

    /// Counts one less; the last invalidates a table, now or in [`Self::settle`].
    #[inline(always)]
    fn put(&mut self, machine: &mut impl Machine, frame: Mfn) {
        let epoch = self.epoch;
        let Ok(state) = self.own(frame) else { return };
        if state.counts.uses == 1 && state.counts.kind.is_table() {
            return self.put_last(machine, frame);
        }
        state.end_use(frame, epoch);
    }

    #[inline(never)]
    fn put_last(&mut self, machine: &mut impl Machine, frame: Mfn) {
        if self.dying.try_reserve(1).is_ok() {
            self.dying.push(frame);
            return;
        }
        if let Some(Counts { kind, .. }) = self.counts(frame) {
            self.put_entries(machine, frame, kind, ENTRIES);
        }
        self.end_use(frame);
    }

    fn end_use(&mut self, frame: Mfn) {
        let epoch = self.epoch;
        if let Ok(state) = self.own(frame) {
            state.end_use(frame, epoch);
        }
    }

    /// Validates every entry of a table, and counts what it refers to. Lines without entries cost one look.
    fn validate_table(&mut self, machine: &mut impl Machine, table: Mfn, kind: Kind) -> Result<(), Refused> {
        self.own(table)?.lines = 0;
        let mut next = 0;
        while let Some((line, words)) = used_line(machine, table, next) {
            next = line + 1;
            self.own(table)?.lines |= 1 << line;
            for (index, found) in (line * LINE..).zip(words) {
                if kind == Kind::L4 && HOLE.contains(&index) {
                    continue;
                }
                let admitted = self.admit(machine, table, kind, index, found);
                if let Err(refused) = admitted {
                    match refused {
                        Refused::Later => self.hold_entries(machine, table, kind, index),
                        _ => self.put_entries(machine, table, kind, index),
                    }
                    return Err(refused);
                }
            }
        }
        if kind == Kind::L4 {
            machine.fill_hole(table);
        }
        Ok(())
    }

    /// Validates one entry of a table that becomes one.
    fn admit(
        &mut self,
        machine: &mut impl Machine,
        table: Mfn,
        kind: Kind,
        index: usize,
        found: u64,
    ) -> Result<(), Refused> {
        let entry = Entry::from_bits_retain(found);
        let adjusted = entry.adjusted(kind).ok_or(Refused::Bad(table, index))?;
        self.get_entry(machine, kind, adjusted)?;
        if adjusted != entry && machine.replace(table, index, found, adjusted.bits()).is_err() {
            self.put_entry(machine, kind, adjusted);
            return Err(Refused::Changed(table));
        }
        Ok(())
    }

    /// Ends what the first entries of a table count.
    fn put_entries(&mut self, machine: &mut impl Machine, table: Mfn, kind: Kind, end: usize) {
        match kind {
            // Most tables are of this kind, and more is known of these here.
            Kind::L1 => self.put_lines(machine, table, Kind::L1, end),
            kind => self.put_lines(machine, table, kind, end),
        }
    }

    #[inline(always)]
    fn put_lines(&mut self, machine: &mut impl Machine, table: Mfn, kind: Kind, end: usize) {
        let Ok(mut lines) = self.own(table).map(|state| state.lines) else { return };
        while lines != 0 {
            let line = lines.trailing_zeros() as usize;
            lines &= lines - 1;
            for (index, word) in (line * LINE..).zip(machine.line(table, line)) {
                let entry = Entry::from_bits_retain(word);
                if !entry.contains(Entry::PRESENT) || index >= end {
                    continue;
                }
                if kind != Kind::L4 || !HOLE.contains(&index) {
                    self.put_entry(machine, kind, entry);
                }
            }
        }
    }

    /// Ends what the first entries of a table count, but keeps tables that are used by nothing else.
    fn hold_entries(&mut self, machine: &mut impl Machine, table: Mfn, kind: Kind, end: usize) {
        for index in 0..end {
            let entry = Entry::from_bits_retain(machine.word(table, index));
            if !entry.contains(Entry::PRESENT) || kind == Kind::L4 && HOLE.contains(&index) {
                continue;
            }
            let last = self.counts(entry.frame()).is_some_and(|counts| counts.uses == 1);
            if last && self.held.try_reserve(1).is_ok() {
                self.held.push(entry.frame());
            } else {
                self.put_entry(machine, kind, entry);
            }
        }
    }

    /// Counts what an entry of a table of that kind refers to.
    #[inline(always)]
    fn get_entry(&mut self, machine: &mut impl Machine, kind: Kind, entry: Entry) -> Result<(), Refused> {
        if !entry.contains(Entry::PRESENT) {
            return Ok(());
        }
        let counted = match kind.below() {
            Some(below) => return self.get(machine, entry.frame(), below),
            None if entry.is_writable() => self.get(machine, entry.frame(), Kind::Writable),
            None => self.present(entry.frame()).and_then(|state| state.count(entry.frame())),
        };
        match counted {
            // Nothing is counted of them, and nothing is to be undone.
            Err(Refused::NotOwn(frame)) if self.is_register(frame) => Ok(()),
            counted => counted,
        }
    }

    /// Ends [`Self::get_entry`].
    #[inline(always)]
    fn put_entry(&mut self, machine: &mut impl Machine, kind: Kind, entry: Entry) {
        if !entry.contains(Entry::PRESENT) {
            return;
        }
        if kind.below().is_some() || entry.is_writable() {
            self.put(machine, entry.frame());
        } else if let Ok(state) = self.own(entry.frame()) {
            state.counts.references = state.counts.references.saturating_sub(1);
        }
    }

    /// Writes a word of memory that must be writable for that.
    fn write(
        &mut self,
        machine: &mut impl Machine,
        frame: Mfn,
        index: usize,
        value: u64,
    ) -> Result<(), Refused> {
        self.get(machine, frame, Kind::Writable)?;
        let stored = store(machine, frame, index, value);
        self.put(machine, frame);
        stored
    }
}

impl Frame {
    /// Counts one more reference.
    fn count(&mut self, frame: Mfn) -> Result<(), Refused> {
        // There are never more uses than references.
        self.counts.references = self.counts.references.checked_add(1).ok_or(Refused::TooMany(frame))?;
        Ok(())
    }

    /// Ends a use and its reference, in an epoch of the account's.
    #[inline]
    fn end_use(&mut self, frame: Mfn, epoch: u32) {
        debug_assert!(self.counts.uses > 0 && self.counts.references > 0, "{frame} has no user");
        self.counts.uses = self.counts.uses.saturating_sub(1);
        self.counts.references = self.counts.references.saturating_sub(1);
        if self.counts.uses == 0 {
            self.released = epoch;
        }
    }
}

/// Whether two entries count the same: nothing is validated again when one takes the other's place.
fn same_target(kind: Kind, old: Entry, new: Entry) -> bool {
    let present = old.contains(Entry::PRESENT);
    if present != new.contains(Entry::PRESENT) {
        return false;
    }
    !present || old.frame() == new.frame() && (kind != Kind::L1 || old.is_writable() == new.is_writable())
}

fn validate_descriptors(machine: &mut impl Machine, frame: Mfn) -> Result<(), Refused> {
    for line in 0..ENTRIES / LINE {
        for (index, found) in (line * LINE..).zip(machine.line(frame, line)) {
            let Descriptor(adjusted) = Descriptor(found).adjusted().ok_or(Refused::Bad(frame, index))?;
            if adjusted != found {
                machine.replace(frame, index, found, adjusted).map_err(|_| Refused::Changed(frame))?;
            }
        }
    }
    Ok(())
}

/// The first line of a table from one on that holds something, and what: most hold nothing.
#[inline(never)]
fn used_line(machine: &impl Machine, table: Mfn, from: usize) -> Option<(usize, [u64; LINE])> {
    (from..ENTRIES / LINE).map(|line| (line, machine.line(table, line))).find(|(_, words)| !is_empty(*words))
}

/// Whether a line of entries holds nothing. A comparison of arrays would be a call.
#[inline]
fn is_empty(words: [u64; LINE]) -> bool {
    words.into_iter().fold(0, |all, word| all | word) == 0
}

/// Writes a word that software or hardware may change meanwhile.
fn store(machine: &mut impl Machine, frame: Mfn, index: usize, value: u64) -> Result<(), Refused> {
    let mut old = machine.word(frame, index);
    for _ in 0..64 {
        match machine.replace(frame, index, old, value) {
            Ok(()) => return Ok(()),
            Err(found) => old = found,
        }
    }
    Err(Refused::Changed(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of zeros whose flushes are counted.
    #[derive(Default)]
    struct Empty(u32);

    impl Machine for Empty {
        fn line(&self, _: Mfn, _: usize) -> [u64; LINE] {
            [0; LINE]
        }
        fn replace(&mut self, _: Mfn, _: usize, _: u64, _: u64) -> Result<(), u64> {
            Ok(())
        }
        fn clear(&mut self, _: Mfn) {}
        fn fill_hole(&mut self, _: Mfn) {}
        fn forget(&mut self) {
            self.0 += 1;
        }
        fn hide(&mut self, _: &[Mfn]) {}
        fn show(&mut self, _: &[Mfn]) {}
    }

    /// Memory whose reads are counted.
    #[derive(Default)]
    struct Counting {
        words: alloc::collections::BTreeMap<(Mfn, usize), u64>,
        lines: core::cell::Cell<u32>,
    }

    impl Machine for Counting {
        fn line(&self, frame: Mfn, line: usize) -> [u64; LINE] {
            self.lines.set(self.lines.get() + 1);
            core::array::from_fn(|at| self.words.get(&(frame, line * LINE + at)).copied().unwrap_or_default())
        }
        fn replace(&mut self, frame: Mfn, index: usize, _: u64, new: u64) -> Result<(), u64> {
            self.words.insert((frame, index), new);
            Ok(())
        }
        fn clear(&mut self, frame: Mfn) {
            self.words.retain(|(at, _), _| *at != frame);
        }
        fn fill_hole(&mut self, _: Mfn) {}
        fn forget(&mut self) {}
        fn hide(&mut self, _: &[Mfn]) {}
        fn show(&mut self, _: &[Mfn]) {}
    }

    /// A tree of one table of each upper level, and `leaves` of the lowest, each of which shows a frame.
    fn tree(leaves: u64) -> (Types, Counting) {
        let mut machine = Counting::default();
        let mut refer = |table: u64, index: u64, to: u64| {
            let entry = Entry::new(Mfn(to), Entry::PRESENT | Entry::WRITE).bits();
            machine.words.insert((Mfn(table), index as usize), entry);
        };
        refer(1, 0, 2);
        refer(2, 5, 3);
        for leaf in 0..leaves {
            refer(3, leaf, 10 + leaf);
            refer(10 + leaf, 511, 10 + leaves);
        }
        (Types::new(Mfn(1), 10 + leaves as usize).unwrap(), machine)
    }

    #[test]
    fn a_tree_is_validated_and_forgotten_in_pieces() {
        const LEAVES: u64 = 20;
        /// A piece goes down the three upper tables again, and finishes one more at least.
        const PIECE: u32 = 4 * TABLE;
        let (mut types, mut machine) = tree(LEAVES);
        let mut pieces = 0;
        loop {
            types.allow(PIECE);
            machine.lines.set(0);
            let pinned = types.pin(&mut machine, Mfn(1), Kind::L4);
            // What is left for later is looked at once more, down to where it was left.
            assert!(
                machine.lines.get() <= PIECE + 3 * ENTRIES as u32,
                "{} lines in one piece",
                machine.lines.get()
            );
            if pinned.is_ok() {
                break;
            }
            assert_eq!(pinned, Err(Refused::Later));
            assert!(types.held.len() > pieces, "every piece gets further");
            pieces += 1;
        }
        assert!((5..100).contains(&pieces), "{pieces} pieces");
        assert!(types.held.is_empty());
        let (mut once, mut same) = tree(LEAVES);
        once.pin(&mut same, Mfn(1), Kind::L4).unwrap();
        let counts = |types: &Types| types.frames().collect::<Vec<_>>();
        assert_eq!(counts(&types), counts(&once), "in pieces or at once");

        types.allow(0);
        types.unpin(&mut machine, Mfn(1)).unwrap();
        assert_eq!(
            types.pin(&mut machine, Mfn(10), Kind::L4),
            Err(Refused::InUse(Mfn(10), Kind::L1)),
            "still in use"
        );
        assert_eq!(
            types.update_mapping(&mut machine, Mfn(10), 0, 0, Old::Lost),
            None,
            "what it refers to is to be let go of first"
        );
        let mut pieces = 0;
        loop {
            types.allow(PIECE);
            machine.lines.set(0);
            let done = types.settle(&mut machine);
            assert!(machine.lines.get() <= PIECE);
            if done {
                break;
            }
            pieces += 1;
        }
        assert!((5..100).contains(&pieces), "{pieces} pieces");
        assert!(types.frames().all(|(_, counts)| counts.uses == 0 && counts.references == 0));
    }

    #[test]
    fn a_table_that_is_used_again_before_it_is_forgotten_stays() {
        let (mut types, mut machine) = tree(1);
        types.pin(&mut machine, Mfn(1), Kind::L4).unwrap();
        let before = types.frames().collect::<Vec<_>>();
        types.allow(0);
        types.unpin(&mut machine, Mfn(1)).unwrap();
        types.pin(&mut machine, Mfn(1), Kind::L4).unwrap();
        types.allow(u32::MAX);
        assert!(types.settle(&mut machine));
        assert_eq!(types.frames().collect::<Vec<_>>(), before);
    }

    #[test]
    fn counts_do_not_overflow() {
        let mut types = Types::new(Mfn(1), 1).unwrap();
        types.frames[0].counts.references = u32::MAX;
        types.frames[0].counts.uses = u32::MAX;
        let before = types.clone();
        assert_eq!(types.hold_writable(&mut Empty(0), Mfn(1)), Err(Refused::TooMany(Mfn(1))));
        assert_eq!(types, before);
        types.release(&mut Empty(0), Mfn(1));
        assert_eq!(types.hold_writable(&mut Empty(0), Mfn(1)), Ok(()));
    }

    #[test]
    fn the_count_of_flushes_does_not_wrap() {
        let mut types = Types::new(Mfn(1), 1).unwrap();
        types.epoch = u32::MAX - 1;
        let mut machine = Empty(0);
        for flushes in 1..4 {
            types.hold_writable(&mut machine, Mfn(1)).unwrap();
            types.release(&mut machine, Mfn(1));
            types.pin(&mut machine, Mfn(1), Kind::L1).unwrap();
            assert!(machine.0 >= flushes, "a frame that was written a moment ago needs a flush");
            types.unpin(&mut machine, Mfn(1)).unwrap();
        }
    }

    #[test]
    fn registers_are_mapped_by_the_lowest_tables_only_and_never_counted() {
        let mut types = Types::new(Mfn(8), 4).unwrap();
        types.add_registers(100..102).unwrap();
        for overlapping in [0..9, 11..12, 9..10, 0..100] {
            assert!(types.add_registers(overlapping).is_err(), "memory is no register");
        }
        let machine = &mut Counting::default();
        for (table, kind) in [(8, Kind::L1), (9, Kind::L2)] {
            types.pin(machine, Mfn(table), kind).unwrap();
        }
        let before = types.frames().collect::<Vec<_>>();
        let map = |frame: u64, flags: Entry| Entry::new(Mfn(frame), Entry::PRESENT | flags).bits();
        for flags in [Entry::WRITE | Entry::UNCACHED, Entry::empty()] {
            for frame in [100, 101] {
                types.update(machine, Mfn(8), 3, map(frame, flags), Old::Lost).unwrap();
            }
            for frame in [99, 102] {
                let refused = types.update(machine, Mfn(8), 3, map(frame, flags), Old::Lost);
                assert_eq!(refused, Err(Refused::NotOwn(Mfn(frame))), "registers of others");
            }
            let as_table = types.update(machine, Mfn(9), 0, map(100, Entry::WRITE), Old::Lost);
            assert_eq!(as_table, Err(Refused::NotOwn(Mfn(100))), "no table is in a device");
        }
        assert_eq!(types.pin(machine, Mfn(100), Kind::L1), Err(Refused::NotOwn(Mfn(100))));
        assert!(!types.owns(Mfn(100)), "they are not the domain's memory");
        types.update(machine, Mfn(8), 3, map(100, Entry::WRITE), Old::Lost).unwrap();
        types.update(machine, Mfn(8), 3, 0, Old::Lost).unwrap();
        assert_eq!(types.frames().collect::<Vec<_>>(), before, "nothing is left of them");
    }

    #[test]
    fn processors_that_have_forgotten_need_not_forget_again() {
        let mut types = Types::new(Mfn(1), 2).unwrap();
        let mut machine = Empty(0);
        for frame in [Mfn(1), Mfn(2)] {
            types.hold_writable(&mut machine, frame).unwrap();
            types.release(&mut machine, frame);
        }
        types.pin(&mut machine, Mfn(1), Kind::L1).unwrap();
        types.pin(&mut machine, Mfn(2), Kind::L1).unwrap();
        assert_eq!(machine.0, 1, "one flush serves both");
    }
}
