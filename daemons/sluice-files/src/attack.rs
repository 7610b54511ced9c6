//! What a guest can do by a graphics card's commands to another guest that has the card: one keeps buffers whose contents it knows, and looks at them; another
//! names these, in commands and to the driver, and sends commands that make no sense.
//!
//! A card's commands name a buffer by a number that is one for all who have the card ([`Buffer::id`]), and the driver does not look into them. So the card is to
//! know who has which. A context that names what is not its own may be lost, so each attempt has a new one. All that is tried is tried first with a buffer that the
//! context has been given: there it has to succeed, or a failure would say nothing.

use crate::result;
use crate::virgl::{
    BLOB, Blob, Buffer, CLOSE, Card, Changing, EXECUTE_CHANGING, EXPORT, FLINK, FROM_HOST, INFO, Info, Named,
    OPEN, PLACE, Pair, Place, Prime, Shape, TO_HOST, Transfer, WAIT, WORDS, commands,
};
use crate::wild::Wild;
use anyhow::{Context, Result};
use sluice_backend::sys::{Mapping, PAGE};
use sluice_devfile::Map;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// What is kept on the card's side, and on a program's.
const CARD: u32 = 0x5a17_ce00;
const PROGRAM: u32 = 0x0dec_0700;
/// What is where others' bytes are to go.
const NOTHING: u32 = 0x3c3c_3c3c;

/// Pages around where a buffer of its own is mapped in the node, where others' are, too.
const PLACES: u64 = 256;

/// Words that are others in each place.
fn pattern(seed: u32) -> Vec<u32> {
    (0..WORDS as u32).map(|place| (place ^ seed).wrapping_mul(0x9e37_79b1)).collect()
}

/// A buffer with something else on either side; one for results has but one.
struct Kept {
    buffer: Buffer,
    on_card: Vec<u32>,
    in_program: Vec<u32>,
}

impl Kept {
    fn new(card: &Card, shape: Shape) -> Result<Self> {
        let buffer = card.create(shape)?;
        let seed = shape as u32 * 0x11;
        let on_card = pattern(CARD ^ seed);
        let in_program = if shape == Results { on_card.clone() } else { pattern(PROGRAM ^ seed) };
        let kept = Self { buffer, on_card, in_program };
        kept.restore(card)?;
        Ok(kept)
    }

    fn restore(&self, card: &Card) -> Result<()> {
        self.buffer.write(&self.on_card);
        card.upload(&self.buffer)?;
        self.buffer.write(&self.in_program);
        Ok(())
    }

    /// Whether either side has changed; it has not any more.
    fn has_changed(&self, card: &Card) -> Result<bool> {
        let in_program = self.buffer.read();
        card.download(&self.buffer)?;
        let on_card = self.buffer.read();
        let changed = in_program != self.in_program || on_card != self.on_card;
        if changed {
            self.restore(card)?;
        } else {
            self.buffer.write(&self.in_program);
        }
        Ok(changed)
    }
}

/// Keeps buffers, and looks at them all the time until a line comes.
pub fn keep(path: &Path) -> Result<()> {
    let card = Card::open(path)?;
    let kept = [Kept::new(&card, Texture)?, Kept::new(&card, Bytes)?, Kept::new(&card, Results)?];
    // They can be told from what they are compared with.
    let mut control = 0;
    for kept in &kept {
        let (id, shape) = (kept.buffer.id, kept.buffer.shape);
        let words = if shape == Results { commands::count(id) } else { commands::write(id, shape, 1) };
        card.execute(&words, &[kept.buffer.handle])?;
        card.wait(&kept.buffer)?;
        control += u32::from(kept.has_changed(&card)?);
    }
    result(&format!(
        "kept_texture={} kept_bytes={} kept_results={} kept_control={control}",
        kept[0].buffer.id, kept[1].buffer.id, kept[2].buffer.id
    ));
    let (sender, line) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let _ = io::stdin().read_line(&mut text);
        let _ = sender.send(());
    });
    let (mut looks, mut changed) = (0_u32, 0_u32);
    loop {
        let told = line.recv_timeout(Duration::from_millis(50)).is_ok();
        for kept in &kept {
            changed += u32::from(kept.has_changed(&card)?);
        }
        looks += 1;
        if told {
            break;
        }
    }
    let enough = if looks > 20 { "many" } else { "few" };
    result(&format!("kept_looks={enough} kept_looked={looks} kept_changed={changed}"));
    Ok(())
}

/// What an attempt at another's buffer is to do, and can be seen to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Bring its contents into a buffer of ours.
    Read,
    /// Alter it.
    Written,
    /// Have it used for something, which is seen by that alone that the context goes on.
    Named,
}

/// An attempt: commands that name a buffer of ours, and another one.
struct Kind {
    name: &'static str,
    shape: Shape,
    effect: Effect,
    commands: fn(u32, u32) -> Vec<u32>,
}

const fn kind(name: &'static str, shape: Shape, effect: Effect, commands: fn(u32, u32) -> Vec<u32>) -> Kind {
    Kind { name, shape, effect, commands }
}

use Effect::{Named as Used, Read, Written};
use Shape::{Bytes, Results, Texture};

const KINDS: [Kind; 24] = [
    kind("copy", Texture, Read, |own, other| commands::copy(own, other, Texture)),
    kind("copy-bytes", Bytes, Read, |own, other| commands::copy(own, other, Bytes)),
    kind("copy-in-other", Bytes, Read, |own, other| commands::copy_in_other(own, other, Bytes)),
    kind("blit", Texture, Read, commands::blit),
    kind("stage", Texture, Read, |own, other| commands::stage(own, other, Texture)),
    kind("stage-bytes", Bytes, Read, |own, other| commands::stage(own, other, Bytes)),
    kind("copy-over", Texture, Written, |own, other| commands::copy(other, own, Texture)),
    kind("copy-bytes-over", Bytes, Written, |own, other| commands::copy(other, own, Bytes)),
    kind("blit-over", Texture, Written, |own, other| commands::blit(other, own)),
    kind("stage-over", Texture, Written, |own, other| commands::stage(other, own, Texture)),
    kind("write", Texture, Written, |_, other| commands::write(other, Texture, 1)),
    kind("write-bytes", Bytes, Written, |_, other| commands::write(other, Bytes, 1)),
    kind("upload", Texture, Written, |_, other| commands::transfer(other, Texture, 1)),
    kind("download", Bytes, Written, |_, other| commands::transfer(other, Bytes, 2)),
    kind("clear", Texture, Written, |_, other| commands::clear(other)),
    kind("clear-texture", Texture, Written, |_, other| commands::clear_texture(other)),
    kind("count", Results, Written, |_, other| commands::count(other)),
    kind("sample", Texture, Used, |_, other| commands::sample(other)),
    kind("stream-out", Bytes, Used, |_, other| commands::stream_out(other)),
    kind("vertices", Bytes, Used, |_, other| commands::vertices(other)),
    kind("indices", Bytes, Used, |_, other| commands::indices(other)),
    kind("uniforms", Bytes, Used, |_, other| commands::uniforms(other)),
    kind("storage", Bytes, Used, |_, other| commands::storage(other)),
    kind("image", Texture, Used, |_, other| commands::image(other)),
];

/// What came of attempts.
#[derive(Default)]
struct Count {
    tried: u32,
    succeeded: u32,
}

impl Count {
    fn add(&mut self, succeeded: bool) {
        self.tried += 1;
        self.succeeded += u32::from(succeeded);
    }
}

/// The attacker's buffers, as the card has them by the file that looks at them.
struct Attacker {
    card: Card,
    /// Where others' bytes are to go, of each shape.
    own: [(Buffer, OwnedFd); 3],
    /// Where a context that goes on writes.
    mark: (Buffer, OwnedFd),
    marks: u32,
    /// What can be told from its own: buffers that other contexts of its own have not got, unless they are given it.
    prey: [(Kept, OwnedFd); 3],
}

/// What was seen of an attempt.
struct Seen {
    effect: bool,
    /// The commands after it were carried out, and those of the next batch.
    goes_on: bool,
}

impl Attacker {
    fn new(path: &Path) -> Result<Self> {
        let card = Card::open(path)?;
        let exported = |shape| -> Result<_> {
            let buffer = card.create(shape)?;
            buffer.write(&[NOTHING; WORDS]);
            card.upload(&buffer)?;
            let descriptor = card.export(&buffer)?;
            Ok((buffer, descriptor))
        };
        let prey = |shape| -> Result<_> {
            let kept = Kept::new(&card, shape)?;
            let descriptor = card.export(&kept.buffer)?;
            Ok((kept, descriptor))
        };
        let own = [exported(Texture)?, exported(Bytes)?, exported(Results)?];
        let mark = exported(Bytes)?;
        let prey = [prey(Texture)?, prey(Bytes)?, prey(Results)?];
        Ok(Self { card, own, mark, marks: 0, prey })
    }

    /// Its own buffers.
    fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let own = self.own.iter().map(|(buffer, _)| buffer);
        own.chain([&self.mark.0]).chain(self.prey.iter().map(|(kept, _)| &kept.buffer))
    }

    /// Has a context of its own name a buffer, and looks at what comes of it.
    fn attempt(&mut self, kind: &Kind, other: u32, given: Option<&OwnedFd>) -> Result<Seen> {
        let attacker = self.card.another()?;
        let (own, descriptor) = &self.own[kind.shape as usize];
        let handles = [attacker.import(descriptor)?, attacker.import(&self.mark.1)?];
        given.map(|descriptor| attacker.import(descriptor)).transpose()?;
        let marks = [self.marks + 1, self.marks + 2];
        self.marks += 2;
        let mark = |card: &Card, before: &[u32], mark| -> Result<bool> {
            let words = [before, &commands::write(self.mark.0.id, Bytes, mark)].concat();
            let begun = Instant::now();
            card.execute(&words, &handles).with_context(|| {
                format!("EXECBUFFER failed: {} of {other}, after {:?}", kind.name, begun.elapsed())
            })?;
            self.card.wait(&self.mark.0)?;
            self.card.download(&self.mark.0)?;
            Ok(self.mark.0.read() == [mark; WORDS])
        };
        let goes_on =
            mark(&attacker, &(kind.commands)(own.id, other), marks[0])? && mark(&attacker, &[], marks[1])?;
        let mut effect = false;
        if kind.effect == Read {
            self.card.download(own)?;
            if own.read() != [NOTHING; WORDS] {
                effect = true;
                own.write(&[NOTHING; WORDS]);
                self.card.upload(own)?;
            }
        }
        for (prey, _) in self.prey.iter().filter(|(prey, _)| prey.buffer.id == other) {
            effect |= prey.has_changed(&self.card)?;
        }
        Ok(Seen { effect, goes_on })
    }

    /// What does not work with buffers of its own, which each context is given.
    fn control(&mut self, kinds: &[&Kind]) -> Result<String> {
        let mut failed = Vec::new();
        for kind in kinds {
            let prey = &self.prey[kind.shape as usize];
            let (id, descriptor) = (prey.0.buffer.id, prey.1.try_clone()?);
            let seen = self.attempt(kind, id, Some(&descriptor))?;
            if !seen.goes_on || (kind.effect != Used && !seen.effect) {
                failed.push(kind.name);
            }
        }
        Ok(if failed.is_empty() { "ok".into() } else { failed.join("+") })
    }

    /// Names buffers that a context has not got: first what another context of its own has, whose names and contents are known, then all there may be.
    fn name_others(&mut self, kinds: &[&Kind], ids: u32) -> Result<()> {
        let mine: Vec<u32> = self.buffers().map(|buffer| buffer.id).collect();
        let others: Vec<u32> = (1..=ids).filter(|id| !mine.contains(id)).collect();
        let mut went_on = Vec::new();
        let mut all = Count::default();
        for kind in kinds {
            let known = self.prey[kind.shape as usize].0.buffer.id;
            let mut count = Count::default();
            for other in [known].iter().chain(&others) {
                let seen = self.attempt(kind, *other, None)?;
                count.add(seen.effect || seen.goes_on);
                if seen.goes_on && !seen.effect {
                    went_on.push(format!("{}:{other}", kind.name));
                }
            }
            println!("attack: {}: {} of {}", kind.name, count.succeeded, count.tried);
            all.tried += count.tried;
            all.succeeded += count.succeeded;
        }
        for chunk in went_on.chunks(8) {
            println!("attack: not refused, without an effect here: {}", chunk.join(" "));
        }
        result(&format!("names_tried={} names_succeeded={}", all.tried, all.succeeded));
        Ok(())
    }

    /// Has the driver do something with buffers that a file has not got, by numbers, names, descriptors and places of its own.
    fn ask_driver(&self, ids: u32) -> Result<()> {
        let mut handles = Count::default();
        for handle in 1..=ids {
            let attacker = self.card.another()?;
            let transfer = Transfer { handle, size: Bytes.size(), ..Transfer::default() };
            let asks: [&dyn Fn() -> io::Result<()>; 9] = [
                &|| PLACE.update(&attacker, &mut Place { handle, ..Place::default() }),
                &|| INFO.update(&attacker, &mut Info { handle, ..Info::default() }),
                &|| FROM_HOST.update(&attacker, &mut transfer.clone()),
                &|| TO_HOST.update(&attacker, &mut transfer.clone()),
                &|| WAIT.update(&attacker, &mut Pair([handle, 0])),
                &|| attacker.execute(&[0], &[handle]),
                &|| FLINK.update(&attacker, &mut Pair([handle, 0])),
                &|| CLOSE.set(&attacker, &Pair([handle, 0])),
                &|| EXPORT.update(&attacker, &mut Prime { handle, flags: 2, descriptor: -1 }),
            ];
            asks.iter().for_each(|ask| handles.add(ask().is_ok()));
        }
        let mut names = Count::default();
        for name in 0..=ids {
            names.add(OPEN.update(&self.card, &mut Named { name, ..Named::default() }).is_ok());
        }
        let mut maps = Count::default();
        let attacker = self.card.another()?;
        let first = self.mark.0.offset.saturating_sub(PLACES / 2 * PAGE as u64);
        for place in (0..PLACES).map(|page| first + page * PAGE as u64) {
            let map = Map { offset: place, first: 0, pages: 1, read: true, write: false };
            maps.add(Mapping::new(&attacker, &map).is_ok());
            if self.buffers().all(|buffer| buffer.offset != place) {
                maps.add(Mapping::new(&self.card, &map).is_ok());
            }
        }
        // Memory of the card's that another context has named.
        let mut blobs = Count::default();
        for blob in (0..ids).map(|blob| Blob {
            memory: 1 + blob % 3,
            flags: 1,
            bytes: PAGE as u64,
            blob: blob.into(),
            ..Blob::default()
        }) {
            blobs.add(BLOB.update(&attacker, &mut blob.clone()).is_ok());
        }
        let all = [("handles", handles), ("flink", names), ("maps", maps), ("blobs", blobs)];
        result(&format!("driver_tried={}", all.iter().map(|(_, count)| count.tried).sum::<u32>()));
        for (name, Count { tried, succeeded }) in all {
            println!("attack: {name}: {succeeded} of {tried}");
            result(&format!("{name}_succeeded={succeeded}"));
        }
        Ok(())
    }

    /// Sends commands at random, each batch in a context of its own.
    fn send_wildly(&self, batches: u32) -> Result<()> {
        let mut wild = Wild::new(self.own[0].0.id, self.own[1].0.id);
        let (mut sent, mut taken) = (0_u32, 0_u32);
        for _ in 0..batches {
            let attacker = self.card.another()?;
            for (_, descriptor) in &self.own {
                attacker.import(descriptor)?;
            }
            let words = wild.batch();
            let begun = Instant::now();
            sent += 1;
            match attacker.execute(&words, &[]) {
                Ok(()) => taken += 1,
                Err(error) => {
                    println!("attack: batch {sent} was not taken, after {:?}: {error}", begun.elapsed())
                }
            }
        }
        result(&format!("wild_sent={sent} wild_taken={taken}"));
        Ok(())
    }

    /// Sends commands, buffers and what leads to both while another thread alters all of it.
    fn send_changing(&self, batches: u32, ids: u32) -> Result<()> {
        let (own, mark) = (&self.own[1].0, &self.mark.0);
        let (into, from) = (own.id, mark.id);
        mark.write(&[NOTHING; WORDS]);
        self.card.upload(mark)?;
        let words: Vec<AtomicU32> =
            commands::copy(into, from, Bytes).into_iter().map(AtomicU32::new).collect();
        let batch = Changing::default();
        let address = words.as_ptr() as u64;
        let fields = [0, (words.len() * 4) as u32, address as u32, (address >> 32) as u32, 0, 0, 0, u32::MAX];
        let set =
            || batch.0.iter().zip(fields).for_each(|(field, value)| field.store(value, Ordering::Relaxed));
        let (done, mut taken) = (AtomicBool::new(false), 0_u32);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut state = 1_u32;
                while !done.load(Ordering::Relaxed) {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let other = 1 + (state >> 8) % ids;
                    words[6].store(if state >> 31 == 0 { from } else { other }, Ordering::Relaxed);
                    words[0].store(17 | (state >> 16 & 0xf) << 16, Ordering::Relaxed);
                    batch.0[1].store(state >> 20 & 0x3f, Ordering::Relaxed);
                    batch.0[6].store(state >> 29, Ordering::Relaxed);
                }
            });
            let sent = (0..batches).try_for_each(|_| -> Result<()> {
                let attacker = self.card.another()?;
                for descriptor in [&self.own[1].1, &self.mark.1] {
                    attacker.import(descriptor)?;
                }
                set();
                taken += u32::from(EXECUTE_CHANGING.set(&attacker, &batch).is_ok());
                Ok(())
            });
            done.store(true, Ordering::Relaxed);
            sent
        })?;
        self.card.download(own)?;
        let succeeded = own.read() != [NOTHING; WORDS];
        result(&format!(
            "changing_sent={batches} changing_taken={taken} changing_succeeded={}",
            u32::from(succeeded)
        ));
        Ok(())
    }
}

/// Attacks all who have the card: by so many numbers, by so many batches that make no sense, and by as many that change.
pub fn attack(path: &Path, ids: u32, batches: u32) -> Result<()> {
    let mut attacker = Attacker::new(path)?;
    let kinds: Vec<&Kind> = KINDS.iter().collect();
    result(&format!("attack_control={}", attacker.control(&kinds)?));
    attacker.name_others(&kinds, ids)?;
    attacker.ask_driver(ids)?;
    attacker.send_changing(batches, ids)?;
    attacker.send_wildly(batches)?;
    // All of it has left the card's other users, and this program's own buffers, as they were.
    let mut again = Attacker::new(path)?;
    let mut changed = 0;
    for (prey, _) in &attacker.prey {
        changed += u32::from(prey.has_changed(&attacker.card)?);
    }
    result(&format!("attack_after={} attack_changed={changed}", again.control(&kinds)?));
    Ok(())
}
