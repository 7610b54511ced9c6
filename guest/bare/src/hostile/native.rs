//! A virtual interface that shows itself as it is, driven as no driver would: frames that its guest may not send, page numbers, lengths, chains and
//! indices that are none and change while the engine looks, pools of memory that is not the guest's, commands in any order, and the function moved or
//! switched off with frames under way.
//!
//! After each group the interface is set up as a driver does, and has to send a frame that is answered: see [`super::face`], whose answers tell here,
//! too, of a frame that should not have gone out. What the engine writes it is seen to write: pages that it has not got hold a pattern.

mod driver;

use super::face::driver::{LEN, Mac, load, store, wait};
use crate::console::println;
use crate::dma::memory::{Own, put};
use crate::dma::targets;
use crate::entry::BootInfo;
use crate::machine::{pause, sleep};
use crate::pci::{COMMAND, COMMAND_IO, COMMAND_MASTER, COMMAND_MEMORY, COMMAND_SILENT};
use crate::random::Random;
use driver::{Descriptor, Driver, Header, PAGE, PAGES, SENDING};
use sluice_hypercall::vif::{
    VIF_BAR_SIZE, VIF_COMMAND, VIF_COMMAND_POOL, VIF_COMMAND_START, VIF_COMMAND_STOP, VIF_DESCRIPTOR,
    VIF_ENTRIES, VIF_MSIX_PENDING, VIF_MSIX_TABLE, VIF_OFFERED, VIF_OFFERED_RING, VIF_POOL, VIF_POOL_COUNT,
    VIF_POOL_LIST, VIF_POOL_LIST_HIGH, VIF_RECEIVED, VIF_RECEIVED_RING, VIF_SEND_RING, VIF_SENT,
    VIF_STRUCTURE, VIF_TO_SEND, VIF_WANTS_RECEIVED, VIF_WANTS_SENT,
};

const EVERYBODY: Mac = [0xff; 6];
/// QEMU's.
const GATEWAY: Mac = [0x52, 0x55, 10, 0, 2, 2];
/// Who is on the network, too.
const NEIGHBOUR: Mac = [0x52, 0x54, 0, 0, 0, 0x0a];
/// Nobody.
const NOWHERE: Mac = [2, 0, 0, 0, 0, 1];
/// Marks of frames that must not be answered, and that may be.
const FORBIDDEN: u16 = 1;
const ALLOWED: u16 = 0xf000;

/// Bytes of a request.
const BYTES: u16 = LEN as u16;
/// Pages of a small pool.
const SMALL: u16 = 8;
/// Numbers of pages that it has not got.
const BEYOND: [u16; 9] = [SMALL, SMALL + 1, 31, 63, 64, 255, 1023, 1024, u16::MAX];
/// How far an index goes at most that is none.
const JUMPS: [u16; 6] = [VIF_ENTRIES + 1, 300, 0x7fff, 0x8000, u16::MAX - 1, u16::MAX];
/// Vector of the messages: as of the timer that wakes the guest.
const VECTOR: u32 = 0x40;
const MSIX: u32 = 0x11;
const MSIX_ON: u32 = 1 << 31;

struct Native {
    driver: Driver,
    random: Random,
    own: Own,
    /// Bytes of the machine's memory.
    memory: u64,
    tried: u32,
    controls: u16,
    worked: u16,
}

/// Something that is tried.
type Group = (&'static str, fn(&mut Native));

/// What is tried, one after the other.
const GROUPS: [Group; 18] = [
    ("sources", Native::sources),
    ("link", Native::link),
    ("tags", Native::tags),
    ("lengths", Native::lengths),
    ("sums", Native::sums),
    ("flips", Native::flips),
    ("numbers", Native::numbers),
    ("chains", Native::chains),
    ("indices", Native::indices),
    ("offers", Native::offers),
    ("stores", Native::stores),
    ("pages", Native::pages),
    ("commands", Native::commands),
    ("lists", Native::lists),
    ("stops", Native::stops),
    ("replaced", Native::replaced),
    ("moves", Native::moves),
    ("registers", Native::registers),
];

/// Runs the attack.
pub fn run(random: &mut Random, boot: &BootInfo) {
    let Some(driver) = Driver::open(boot) else {
        println!("no interface");
        return;
    };
    let megabytes: u64 = boot.argument("machine").and_then(|text| text.parse().ok()).unwrap_or(768);
    let (own, memory) = (Own::new(boot), megabytes << 20);
    let random = Random::new(random.next());
    let mut native = Native { driver, random, own, memory, tried: 0, controls: 0, worked: 0 };
    native.control("nothing");
    for (name, group) in GROUPS {
        if boot.argument("group").is_none_or(|only| only == name) {
            native.restart();
            group(&mut native);
            native.control(name);
        }
    }
    println!("SLUICE-RESULT native.tried={} native.succeeded={}", native.tried, native.driver.seen);
}

impl Native {
    /// Shows that the interface works after it was set up as it should be.
    fn control(&mut self, group: &str) {
        self.restart();
        self.driver.look_at_fences();
        self.controls += 1;
        let (in_time, answered) = self.driver.is_answered(self.controls);
        self.worked += u16::from(in_time && answered);
        if !(in_time && answered) {
            println!("after {group}: sent in time {in_time}, answered {answered}");
        }
        println!(
            "SLUICE-RESULT group={group} native.controls={} native.worked={}",
            self.controls, self.worked
        );
    }

    /// Something succeeded.
    fn notice(&mut self, what: &str, at: u64) {
        self.driver.seen += 1;
        println!("{what}: {at:#x}");
    }

    /// Starts anew as a driver does.
    fn restart(&mut self) {
        if !self.driver.set_up(PAGES) {
            println!("it does not start");
        }
        self.driver.offer_all();
    }

    /// With a small pool, and frames in its first pages that may be sent; the pages that were in it hold a pattern.
    fn restart_small(&mut self) {
        self.driver.set_up(SMALL);
        self.driver.fill(SMALL..PAGES);
        self.driver.ask(0, EVERYBODY, self.driver.mac, ALLOWED);
        self.driver.ask(1, EVERYBODY, self.driver.mac, FORBIDDEN);
    }

    fn send(&mut self, descriptors: &[Descriptor]) {
        self.tried += 1;
        if !self.driver.send(descriptors) {
            self.restart();
        }
    }

    /// What was done breaks the rules: it must be said.
    fn must_break(&mut self, what: &str, at: u64) {
        self.tried += 1;
        if !self.driver.breaks() {
            self.notice(what, at);
        }
    }

    /// Has frames come, the answers to those in the first page, until the rules are broken.
    fn must_break_when_answered(&mut self, what: &str, at: u64) {
        for _ in 0..20 {
            self.driver.ring(&[Descriptor::whole(0, BYTES)]);
            if wait(100_000_000, || self.driver.is_broken()) {
                break;
            }
        }
        self.must_break(what, at);
    }

    /// Moves what is in the first page from `first` on to `into`, and what is before to the page before that.
    fn split(&self, first: u64, into: u16) {
        let [from, head, rest] = [1, into - 1, into].map(|number| self.driver.page(number));
        (0..first).for_each(|at| store(head + at, 1, load(from + at, 1)));
        (first..2048).for_each(|at| store(rest + at - first, 1, load(from + at, 1)));
    }

    /// Sends the frame that is in page 1 whole, and in pieces.
    fn send_in_all_ways(&mut self, len: u16) {
        self.send(&[Descriptor::whole(1, len)]);
        for first in [7, 8] {
            self.split(first.into(), 3);
            self.send(&[Descriptor::whole(2, first).open(), Descriptor::whole(3, len - first)]);
        }
    }

    /// From the addresses of others: one, a group's, any that differs in one bit from its own.
    fn sources(&mut self) {
        let mac = self.driver.mac;
        let flipped = |bit: usize| {
            let mut from = mac;
            from[bit / 8] ^= 1 << (bit % 8);
            from
        };
        let named = [NEIGHBOUR, GATEWAY, EVERYBODY, [0; 6], [1, 0, 0x5e, 0, 0, 1], [3, 0, 0, 0, 0, 1]];
        for from in named.into_iter().chain((0..48).map(flipped)) {
            for to in [EVERYBODY, GATEWAY] {
                self.driver.ask(1, to, from, FORBIDDEN);
                self.send_in_all_ways(BYTES);
            }
        }
        self.driver.settle();
    }

    /// To those that bridges keep to a link, of the type that is kept there, and to itself.
    fn link(&mut self) {
        let mac = self.driver.mac;
        for last in 0..16 {
            self.driver.ask(1, [1, 0x80, 0xc2, 0, 0, last], mac, FORBIDDEN);
            self.send_in_all_ways(BYTES);
        }
        self.driver.ask(1, EVERYBODY, mac, FORBIDDEN);
        store(self.driver.page(1) + 12, 2, 0x0888);
        self.send_in_all_ways(BYTES);
        self.driver.ask(1, mac, mac, FORBIDDEN);
        self.send_in_all_ways(BYTES);
        self.driver.settle();
    }

    /// With tags of VLANs.
    fn tags(&mut self) {
        for kind in [0x8100u16, 0x88a8, 0x9100] {
            for vlan in [0, 1, 7, 0xfff] {
                self.driver.ask(1, EVERYBODY, self.driver.mac, FORBIDDEN);
                let at = self.driver.page(1);
                store(at + 12, 2, u64::from(kind.swap_bytes()));
                store(at + 14, 2, vlan << 8);
                self.send_in_all_ways(BYTES);
            }
        }
        self.driver.settle();
    }

    /// Too short and too long, in one piece and in up to 32.
    fn lengths(&mut self) {
        for to in [EVERYBODY, GATEWAY] {
            self.driver.ask(1, to, self.driver.mac, FORBIDDEN);
            for len in [1, 2, 7, 12, 13, 1515, 1518, 1519, 2048, 4095, 4096] {
                self.send(&[Descriptor::whole(1, len)]);
            }
            for (count, each) in
                [(2, 4096), (16, 4096), (17, 4096), (32, 4096), (32, 48), (13, 1), (32, 2048)]
            {
                let mut pieces = [Descriptor::whole(1, each).open(); 32];
                pieces[count - 1].flags = 0;
                self.send(&pieces[..count]);
            }
        }
        self.driver.settle();
    }

    /// What is left to do to a frame goes where its addresses and its type are, or makes no sense.
    fn sums(&mut self) {
        for to in [EVERYBODY, GATEWAY] {
            self.driver.ask(1, to, self.driver.mac, FORBIDDEN);
            for place in 0..14 {
                for start in 0..=place {
                    for kind in [0, 1, 4] {
                        let sums =
                            Header { flags: 1, start, offset: place - start, kind, ..Header::default() };
                        self.send(&[Descriptor::whole(1, BYTES).with(sums)]);
                    }
                }
            }
            // A sum that ends behind the frame, segments of no packet.
            for (start, offset) in [(0xffff, 0), (14, 0xffff), (0xffff, 0xffff), (14, 45), (58, 1), (60, 0)] {
                let sums = Header { flags: 1, start, offset, ..Header::default() };
                self.send(&[Descriptor::whole(1, BYTES).with(sums)]);
            }
            for kind in [1, 3, 4, 5, 0x80, 0x81, 0xff] {
                for (segment, len) in [(0, 54), (1, 54), (1, 0), (255, 14), (1460, 0xffff), (0xffff, 54)] {
                    for flags in [0, 1, 0xff] {
                        let (start, offset) = (34, 16);
                        let cut = Header { flags, kind, len, segment, start, offset };
                        self.send(&[Descriptor::whole(1, BYTES).with(cut)]);
                    }
                }
            }
        }
        self.driver.ask(1, NOWHERE, self.driver.mac, ALLOWED);
        for _ in 0..400 {
            let wild = [0; 6].map(|_: u16| {
                self.random.wild() as u16 & if self.random.below(2) == 0 { 63 } else { 0xffff }
            });
            let [flags, kind, len, segment, start, offset] = wild;
            let (flags, kind) = (flags as u8, kind as u8);
            let header = Header { flags, kind, len, segment, start, offset };
            let bytes = 1 + self.random.below(4096) as u16;
            self.send(&[Descriptor::whole(1, bytes).with(header)]);
        }
        self.driver.settle();
    }

    /// The source address, or the descriptor, changes while the engine looks at it. What it changes to is another's, and a page that there is not.
    fn flips(&mut self) {
        let mac = self.driver.mac;
        let at = self.driver.page(1);
        let entries = self.driver.bar + u64::from(VIF_SEND_RING);
        for to in [EVERYBODY, GATEWAY] {
            self.driver.ask(1, to, mac, ALLOWED);
            self.driver.ask(4, to, NEIGHBOUR, FORBIDDEN);
            self.split(10, 3);
            let whole = [Descriptor::whole(1, BYTES); 2];
            let parts = [Descriptor::whole(2, 10).open(), Descriptor::whole(3, BYTES - 10)];
            for round in 0..160u64 {
                let first = self.driver.to_send;
                for _ in 0..16 {
                    self.driver.ring(if round % 2 == 0 { &whole } else { &parts });
                    self.tried += 1;
                }
                for step in 0..300 {
                    store(at + 6, 1, u64::from(mac[0] | 1));
                    store(at + 6, 1, u64::from(mac[0]));
                    let index = u64::from(first.wrapping_add(step % 32) % VIF_ENTRIES);
                    let entry = entries + u64::from(VIF_DESCRIPTOR) * index;
                    match round % 4 {
                        0 => store(entry, 2, if step % 2 == 0 { 4 } else { 1 }),
                        2 => store(entry + 2, 2, if step % 2 == 0 { 4097 } else { u64::from(BYTES) }),
                        _ => {}
                    }
                }
                wait(1_000_000, || self.driver.is_sent() || self.driver.is_broken());
                self.driver.take();
                if self.driver.is_broken() {
                    self.restart();
                }
            }
            self.driver.settle();
        }
    }

    /// Pages that are not in the pool, of which some were before.
    fn numbers(&mut self) {
        for number in BEYOND {
            let there = Descriptor::whole(1, 30);
            let beyond = Descriptor::whole(number, 30);
            for chain in [&[beyond][..], &[there.open(), beyond], &[beyond.open(), there], &[there, beyond]] {
                self.restart_small();
                if number < PAGES {
                    self.driver.ask(number, EVERYBODY, self.driver.mac, FORBIDDEN);
                }
                self.driver.ring(chain);
                self.must_break("a page beyond the pool is sent", number.into());
            }
            self.restart_small();
            self.driver.offer(number);
            self.must_break_when_answered("a page beyond the pool is on offer", number.into());
            if !self.driver.are_filled(SMALL..PAGES) {
                self.notice("a page beyond the pool is written", number.into());
            }
        }
    }

    /// Descriptors without bytes or with too many; chains that are too long, or have no end.
    fn chains(&mut self) {
        let there = Descriptor::whole(0, 20);
        for len in [0, 4097, 0x7fff, 0x8000, u16::MAX] {
            let wrong = Descriptor::whole(0, len);
            for chain in [&[wrong][..], &[there.open(), wrong], &[wrong.open(), there]] {
                self.restart();
                self.driver.ring(chain);
                self.must_break("a length that is none", len.into());
            }
        }
        for count in [1, 2, 31, 32, 33, 34, 100, 255, 256] {
            self.restart();
            let open = [there.open(); VIF_ENTRIES as usize];
            self.driver.ring(&open[..count]);
            self.must_break("a chain without an end", count as u64);
            if count > 33 {
                self.restart();
                let mut chain = open;
                chain[count - 1].flags = 0;
                self.driver.ring(&chain[..count]);
                self.must_break("a chain that is too long", count as u64);
            }
        }
    }

    /// Indices that go too far, or back.
    fn indices(&mut self) {
        for jump in JUMPS {
            for before in [0, 1, 9] {
                self.restart();
                self.driver.ask(0, EVERYBODY, self.driver.mac, ALLOWED);
                (0..before).for_each(|_| _ = self.driver.send(&[Descriptor::whole(0, BYTES)]));
                self.driver.to_send = self.driver.to_send.wrapping_add(jump);
                self.driver.tell();
                self.must_break("an index of what is sent jumps", jump.into());
            }
            self.restart();
            self.driver.ask(0, EVERYBODY, self.driver.mac, ALLOWED);
            let received = self.driver.look(VIF_RECEIVED);
            self.driver.show(VIF_OFFERED, received.wrapping_add(jump));
            self.must_break_when_answered("an index of what is offered jumps", jump.into());
        }
    }

    /// The same page on offer many times, pages that are sent from, and any order.
    fn offers(&mut self) {
        for round in 0..24 {
            self.driver.set_up(PAGES);
            self.driver.ask(0, EVERYBODY, self.driver.mac, ALLOWED);
            for _ in 0..VIF_ENTRIES {
                let number =
                    if round % 2 == 0 { 1 } else { 1 + self.random.below(u64::from(PAGES) - 1) as u16 };
                self.driver.offer(number);
                self.tried += 1;
            }
            for _ in 0..8 {
                self.driver.ring(&[Descriptor::whole(0, BYTES); 4]);
                // What comes is sent again, from a page that is on offer.
                self.driver.ring(&[Descriptor::whole(1, BYTES)]);
                pause(200_000);
            }
            if self.driver.is_broken() {
                self.notice("it is broken without a reason", round);
            }
        }
    }

    /// Anything anywhere in the driver's pages while the engine looks.
    fn stores(&mut self) {
        for _ in 0..16 {
            self.restart();
            (1..SENDING).for_each(|number| self.driver.ask(number, NOWHERE, self.driver.mac, ALLOWED));
            for round in 0..2_000u32 {
                self.tried += 1;
                let ring = [VIF_SEND_RING, VIF_OFFERED_RING, VIF_SEND_RING, VIF_TO_SEND]
                    [self.random.below(4) as usize];
                let near = if self.random.below(4) == 0 { 0x1000 } else { 0x100 };
                let at = u64::from(ring) + self.random.below(near);
                let (width, value) = (1 << self.random.below(4), self.random.wild());
                // A little sense, so that it takes a while until rules are broken.
                let value = if self.random.below(4) != 0 { value & 0x1f_001f_001f_001f } else { value };
                let is_index = (VIF_TO_SEND..VIF_SEND_RING).contains(&(at as u32));
                if is_index || round % 8 == 0 {
                    self.driver.to_send = self.driver.to_send.wrapping_add(self.random.below(5) as u16);
                    self.driver.tell();
                    self.driver.show(VIF_WANTS_SENT, value as u16);
                    self.driver.show(VIF_WANTS_RECEIVED, width as u16);
                }
                if !is_index || self.random.below(64) == 0 {
                    store(self.driver.bar + at, width, value);
                }
                if self.driver.is_broken() {
                    self.driver.set_up(PAGES);
                    self.driver.offer_all();
                }
            }
        }
    }

    /// Stores into the engine's pages, and over their ends.
    fn pages(&mut self) {
        self.driver.command(VIF_COMMAND_STOP);
        let bar = self.driver.bar;
        let engines = [(0, VIF_TO_SEND), (VIF_RECEIVED_RING, VIF_STRUCTURE)]
            .map(|(from, to)| (u64::from(from), u64::from(to)));
        for (from, to) in engines {
            let inside = (from..to - 8).step_by(24).chain((from..from + 0x110).step_by(4));
            let over = (1..8).flat_map(|bytes| [to - bytes, (from + 0x8000 - bytes) % 0x8000]);
            for at in inside.chain(over).filter(|at| *at < u64::from(VIF_STRUCTURE)) {
                for width in [1, 2, 4, 8] {
                    let words = [0, 4, 8].map(|word| (at & !3) + word);
                    let words = words.map(|word| if (from..to).contains(&word) { word } else { from });
                    let before = words.map(|word| load(bar + word, 4));
                    store(bar + at, width, self.random.next());
                    self.tried += 1;
                    if words.map(|word| load(bar + word, 4)) != before {
                        self.notice("the engine's page is written", at);
                    }
                }
            }
        }
    }

    /// What the guest may not have done: it must be refused.
    fn must_be_refused(&mut self, what: &str, at: u64, done: bool) {
        self.tried += 1;
        if done {
            self.notice(what, at);
        }
    }

    /// Commands that make no sense, and in an order that makes none.
    fn commands(&mut self) {
        let list = self.driver.list;
        for round in 0..100 {
            self.restart();
            let done = self.driver.hand_over(list, 1 + round);
            self.must_be_refused("a pool while it runs", round.into(), done);
            let done = self.driver.command(VIF_COMMAND_START);
            self.must_be_refused("a start while it runs", round.into(), done);
            let wrong = if round % 2 == 0 { round } else { self.random.wild() as u32 };
            if !(VIF_COMMAND_START..=VIF_COMMAND_POOL).contains(&wrong) {
                let done = self.driver.command(wrong);
                self.must_be_refused("a command that is none", wrong.into(), done);
            }
            // The pool is what it was.
            self.driver.ask(0, NOWHERE, self.driver.mac, ALLOWED);
            if !self.driver.send(&[Descriptor::whole(PAGES - 1, BYTES)]) {
                self.notice("a refused command did something", round.into());
            }
            for _ in 0..3 {
                if !self.driver.command(VIF_COMMAND_STOP) {
                    self.notice("no stop", round.into());
                }
            }
        }
        // Without a pool, or with one that was taken back.
        self.driver.command(VIF_COMMAND_STOP);
        for count in [0, VIF_POOL + 1] {
            self.driver.hand_over(list, count);
            self.driver.start();
            self.driver.ring(&[Descriptor::whole(0, BYTES)]);
            self.must_break("a page of no pool is sent", count.into());
            self.driver.command(VIF_COMMAND_STOP);
        }
        // The longest list again and again: the engine stands still meanwhile.
        (0..u64::from(VIF_POOL)).for_each(|nth| self.driver.put_in_list(nth, self.driver.page(1)));
        for _ in 0..300 {
            self.tried += 1;
            if !self.driver.hand_over(list, VIF_POOL) {
                self.notice("the same page many times is refused", list);
            }
        }
    }

    /// Memory that is not its own: others', registers, the structure, the end of all addresses.
    fn foreign(&self) -> impl Iterator<Item = u64> + use<> {
        let (bar, end) = (self.driver.bar, self.driver.end);
        let structure = [0, 0x1000, 0x2000, 0x4000, 0x5000, 0x6000].map(|offset| bar + offset);
        let ends = [end, end + PAGE, u64::MAX << 12, 1 << 63, 1 << 52, (1 << 52) - PAGE];
        targets::some(&self.own, self.memory).chain(structure).chain(ends)
    }

    /// Lists that are not its memory, or not wholly; pages that are not, anywhere in a list.
    fn lists(&mut self) {
        self.driver.command(VIF_COMMAND_STOP);
        let (list, end) = (self.driver.list, self.driver.end);
        let odd = [
            end - 8,
            end - 4,
            end - 512,
            end - 4095,
            u64::MAX,
            u64::MAX - 7,
            u64::MAX - 511,
            u64::MAX - 8191,
        ];
        for at in self.foreign().chain(odd) {
            for count in [1, 64, 65, VIF_POOL] {
                let is_inside = at < end && at + 8 * u64::from(count) <= end;
                if !is_inside {
                    let done = self.driver.hand_over(at, count);
                    self.must_be_refused("a list that is not its memory", at, done);
                }
            }
        }
        for count in [VIF_POOL + 1, 1025, 2048, 0x8000_0001, u32::MAX] {
            let done = self.driver.hand_over(list, count);
            self.must_be_refused("a list that is too long", count.into(), done);
        }
        let page = self.driver.page(1);
        let odd = [1, 8, 512, 2048, 4095].map(|offset| page + offset);
        for wrong in self.foreign().chain(odd).chain([end - 1, end - 4095]) {
            for (place, count) in [(0, 1), (0, 64), (63, 64), (64, 65), (1023, VIF_POOL), (500, VIF_POOL)] {
                (0..u64::from(VIF_POOL)).for_each(|nth| self.driver.put_in_list(nth, page));
                self.driver.put_in_list(place, wrong);
                let done = self.driver.hand_over(list, count);
                self.must_be_refused("a page that is not its memory", wrong, done);
            }
            // Nothing of what was refused is in the pool.
            self.driver.start();
            self.driver.ring(&[Descriptor::whole(1, BYTES)]);
            self.must_break("a page of a refused list is sent", wrong);
            self.driver.command(VIF_COMMAND_STOP);
        }
    }

    /// Stops with frames under way in both directions: no page changes after that, and none is read.
    fn stops(&mut self) {
        for round in 0..60 {
            self.restart();
            self.driver.ask(0, EVERYBODY, self.driver.mac, ALLOWED);
            self.driver.ring(&[Descriptor::whole(0, BYTES); 32]);
            pause(self.random.below(400_000));
            self.driver.command(VIF_COMMAND_STOP);
            self.tried += 1;
            self.driver.fill(0..PAGES);
            let indices = [VIF_RECEIVED, VIF_TO_SEND].map(|index| self.driver.look(index));
            // Nor does a doorbell begin anything.
            self.driver.ring(&[Descriptor::whole(0, BYTES); 8]);
            self.driver.knock();
            sleep(3_000_000);
            if !self.driver.are_filled(0..PAGES) {
                self.notice("a page is written after a stop", round);
            }
            if self.driver.look(VIF_RECEIVED) != indices[0] {
                self.notice("something is received after a stop", round);
            }
        }
    }

    /// Pages that were replaced by others, and pages that the list names only after it was taken.
    fn replaced(&mut self) {
        for round in 0..12 {
            self.restart();
            self.driver.ask(0, EVERYBODY, self.driver.mac, ALLOWED);
            self.driver.ring(&[Descriptor::whole(0, BYTES); 8]);
            pause(self.random.below(100_000));
            self.driver.command(VIF_COMMAND_STOP);
            let others = PAGES..PAGES + SMALL;
            for (nth, number) in (0..).zip(others.clone()) {
                self.driver.put_in_list(nth, self.driver.page(number));
            }
            self.driver.hand_over(self.driver.list, SMALL.into());
            let later = others.end..others.end + SMALL;
            for (nth, number) in (0..).zip(later.clone()) {
                self.driver.put_in_list(nth, self.driver.page(number));
            }
            self.driver.fill(0..PAGES);
            self.driver.fill(later.clone());
            self.driver.ask(others.start, EVERYBODY, self.driver.mac, ALLOWED);
            self.driver.start();
            (0..200).for_each(|nth| self.driver.offer(1 + nth % (SMALL - 1)));
            self.tried += 1;
            let mut came = false;
            for _ in 0..20 {
                self.driver.ring(&[Descriptor::whole(0, BYTES); 4]);
                came |= wait(100_000_000, || self.driver.look(VIF_RECEIVED) != 0);
                if came {
                    break;
                }
            }
            if !came {
                println!("nothing came in round {round}");
            }
            if !self.driver.are_filled(0..PAGES) || !self.driver.are_filled(later) {
                self.notice("a page that was replaced is written", round);
            }
            self.driver.command(VIF_COMMAND_STOP);
        }
    }

    /// The function moves, answers nowhere, or does not master the bus, with frames under way.
    fn moves(&mut self) {
        let (bar, function) = (self.driver.bar as u32, self.driver.function);
        let places = [
            0,
            self.driver.page(0) as u32,
            self.driver.list as u32,
            bar + 0x8000,
            bar + 0x1000,
            bar.wrapping_sub(0x8000),
            bar + 0x80_0000,
            0xc000_0000,
            0xe000_0000,
            0xfec0_0000,
            0xfee0_0000,
            0xffff_8000,
            u32::MAX,
        ];
        self.driver.ask(1, NOWHERE, self.driver.mac, ALLOWED);
        for round in 0..240 {
            if round % 4 == 0 || self.driver.is_broken() {
                self.restart();
            }
            self.driver.ring(&[Descriptor::whole(1, BYTES); 32]);
            self.tried += 1;
            pause(self.random.below(20_000));
            match round % 3 {
                0 => {
                    let place = places[(round / 3) as usize % places.len()];
                    function.write(0x10, place);
                    let moved = u64::from(function.read(0x10) & !0xf);
                    if self.driver.is_there() && moved != u64::from(bar) {
                        self.notice("answers where it is no more", moved);
                    }
                    store(u64::from(bar + VIF_TO_SEND), 2, self.random.below(256));
                    store(u64::from(bar + VIF_COMMAND), 4, u64::from(VIF_COMMAND_STOP));
                    function.write(0x10, bar);
                }
                1 => {
                    function.write(COMMAND, COMMAND_MASTER | COMMAND_SILENT);
                    if self.driver.is_there() {
                        self.notice("answers switched off", bar.into());
                    }
                    self.driver.knock();
                    store(u64::from(bar + VIF_TO_SEND), 2, self.random.below(256));
                    function.enable();
                }
                _ => {
                    function.write(COMMAND, COMMAND_IO | COMMAND_MEMORY | COMMAND_SILENT);
                    let sent = self.driver.look(VIF_SENT);
                    self.driver.ring(&[Descriptor::whole(1, BYTES); 4]);
                    self.driver.knock();
                    pause(self.random.below(50_000));
                    if self.driver.look(VIF_SENT) != sent {
                        self.notice("goes on without the bus", round);
                    }
                    function.enable();
                    self.restart();
                }
            }
        }
    }

    /// Any value in any register and in the table of messages, at any width; then messages for whatever happens.
    fn registers(&mut self) {
        let (bar, list) = (self.driver.bar, self.driver.list);
        self.driver.ask(1, NOWHERE, self.driver.mac, ALLOWED);
        for _ in 0..6_000 {
            let (width, wild) = (1 << self.random.below(4), self.random.wild());
            let any =
                u64::from(VIF_STRUCTURE) + self.random.below(VIF_BAR_SIZE - u64::from(VIF_STRUCTURE) - 8);
            self.tried += 1;
            match self.random.below(12) {
                0 => drop(load(bar + any, width)),
                1 => store(bar + any, width, wild),
                2 => store(bar + u64::from(VIF_COMMAND) + self.random.below(0x20), width, wild),
                3 => store(bar + u64::from(VIF_MSIX_TABLE) + self.random.below(0x30), width, wild),
                4 => store(bar + u64::from(VIF_MSIX_PENDING) + self.random.below(0x10), width, wild),
                5 => drop(load(bar + u64::from(VIF_COMMAND) + self.random.below(0x20), width)),
                6 => self.driver.set_register(VIF_POOL_COUNT, self.random.below(1100) as u32),
                7 => {
                    // Nothing that it needs itself is in the pool.
                    self.driver.set_register(VIF_POOL_LIST, list as u32);
                    self.driver.set_register(VIF_POOL_LIST_HIGH, 0);
                }
                8 => self.driver.knock(),
                9 => self.driver.ring(&[Descriptor::whole(1, BYTES)]),
                _ => self.driver.set_register(VIF_COMMAND, self.random.below(5) as u32),
            }
        }
        self.restart();
        let Some(capability) = self.driver.function.capability(MSIX) else { return };
        for (vector, data) in [(0, VECTOR), (16, VECTOR)] {
            let at = bar + u64::from(VIF_MSIX_TABLE) + vector;
            [0xfee0_0000, 0, data, 0].into_iter().zip((at..).step_by(4)).for_each(|(word, at)| put(at, word));
        }
        self.driver.function.write(capability, MSIX_ON);
        self.driver.show(VIF_WANTS_SENT, 1);
        self.driver.show(VIF_WANTS_RECEIVED, 1);
        for round in 0..500u64 {
            self.tried += 1;
            self.driver.ring(&[Descriptor::whole(1, BYTES)]);
            // Masked and not, while they come.
            put(bar + u64::from(VIF_MSIX_TABLE) + 12 + 16 * (round % 2), (round / 2 % 2) as u32);
            if round % 50 == 0 {
                sleep(100_000);
            }
        }
        self.driver.function.write(capability, 0);
        sleep(1_000_000);
    }
}
