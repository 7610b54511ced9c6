//! The 82540EM that a virtual interface has as its face, driven as no driver would: frames that its guest may not send, descriptors and rings that
//! lead anywhere and change while the engine looks, registers written at any width, and the card moved or switched off with frames under way.
//!
//! After each group the card is set up as a driver does, and has to send a frame that is answered. QEMU's gateway answers requests to who seems to
//! have sent them: so the guest sees that a frame went out from a group's address, or one that should not have gone out at all.
//! What the card reads and writes it sees in the loopback of its PHY.

pub(super) mod driver;

use crate::console::println;
use crate::dma::e1000::{
    CONTROL, CONTROL_LINK_UP, DONE, HEAD, RECEIVE, RECEIVE_ALL, RX_RING, TAIL, TRANSMIT, TRANSMIT_ON, TX_RING,
};
use crate::dma::memory::{Own, get, put};
use crate::dma::targets;
use crate::entry::BootInfo;
use crate::machine::{pause, sleep};
use crate::pci::{COMMAND, COMMAND_IO, COMMAND_MASTER, COMMAND_MEMORY, COMMAND_SILENT};
use crate::random::Random;
use driver::{
    Context, Descriptor, Driver, EOP, FRAMES, IP_SUM, LEN, Mac, PLAY, REACH, SEGMENT, SUM, TAGGED, VLAN_TYPE,
    fold, load, store, sum,
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

/// Bytes that a stamp consists of, and an Ethernet header.
const STAMP: u64 = 512;
const ETHERNET: u64 = 14;
const VLANS: u32 = 1 << 30;
/// What a sink holds before something is read into it.
const FILL: u32 = 0x5a5a_5a5a;
/// Bytes of all registers.
const WINDOW: u64 = 0x2_0000;

struct Face {
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
type Group = (&'static str, fn(&mut Face));

/// What is tried, one after the other.
const GROUPS: [Group; 17] = [
    ("sources", Face::sources),
    ("sums", Face::sums),
    ("link", Face::link),
    ("tags", Face::tags),
    ("lengths", Face::lengths),
    ("flips", Face::flips),
    ("segments", Face::segments),
    ("buffers", Face::buffers),
    ("rings", Face::rings),
    ("descriptors", Face::descriptors),
    ("stores", Face::stores),
    ("endless", Face::endless),
    ("switches", Face::switches),
    ("master", Face::master),
    ("bars", Face::bars),
    ("decoding", Face::decoding),
    ("registers", Face::registers),
];

/// Runs the attack.
pub fn run(random: &mut Random, boot: &BootInfo) {
    let Some(driver) = Driver::open(boot) else {
        println!("no card");
        return;
    };
    let megabytes: u64 = boot.argument("machine").and_then(|text| text.parse().ok()).unwrap_or(768);
    let (own, memory) = (Own::new(boot), megabytes << 20);
    let random = Random::new(random.next());
    let mut face = Face { driver, random, own, memory, tried: 0, controls: 0, worked: 0 };
    // Rings lead there, too: what they find is nothing.
    (8..0x8_0000).step_by(4).for_each(|at| put(at, 0));
    face.control("nothing");
    for (name, group) in GROUPS {
        if boot.argument("group").is_none_or(|only| only == name) {
            group(&mut face);
            face.control(name);
        }
    }
    println!("SLUICE-RESULT face.tried={} face.succeeded={}", face.tried, face.driver.seen);
}

impl Face {
    /// Shows that the card works after it was set up as it should be.
    fn control(&mut self, group: &str) {
        self.driver.set_up();
        self.driver.look_at_fences();
        self.controls += 1;
        let (in_time, answered) = self.driver.is_answered(self.controls);
        self.worked += u16::from(in_time && answered);
        if !(in_time && answered) {
            println!("after {group}: sent in time {in_time}, answered {answered}");
        }
        println!("SLUICE-RESULT group={group} face.controls={} face.worked={}", self.controls, self.worked);
    }

    /// Something succeeded.
    fn notice(&mut self, what: &str, at: u64) {
        self.driver.seen += 1;
        println!("{what}: {at:#x}");
    }

    fn send(&mut self, descriptors: &[Descriptor]) {
        self.tried += 1;
        self.driver.send(descriptors);
    }

    /// Answers have come by then.
    fn settle(&mut self) {
        sleep(50_000_000);
        self.driver.take();
    }

    /// Sends the frame by descriptors of each kind, and in pieces.
    fn send_in_all_ways(&mut self, len: u64) {
        let at = self.driver.frame;
        // The sums go where nobody looks.
        let sums = Context { ip: (14, 44), transport: (14, 46), ..Context::default() };
        self.send(&[Descriptor::legacy(at, len)]);
        self.send(&[Descriptor::data(at, len, 0)]);
        self.send(&[sums.descriptor(), Descriptor::data(at, len, SUM | IP_SUM)]);
        for first in [7, 8] {
            self.send(&[
                Descriptor::legacy(at, first).open(),
                Descriptor::legacy(at + first, len.saturating_sub(first)),
            ]);
            self.send(&[
                Descriptor::data(at, first, 0).open(),
                Descriptor::data(at + first, len.saturating_sub(first), 0),
            ]);
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
                self.driver.ask(to, from, FORBIDDEN);
                self.send_in_all_ways(LEN);
            }
        }
        self.settle();
    }

    /// What the card is to put into a frame goes where its addresses and its type are.
    fn sums(&mut self) {
        let (mac, at) = (self.driver.mac, self.driver.frame);
        let link = [1, 0x80, 0xc2, 0, 0xff, 0xff];
        // Where, and what is to be there.
        let places = [
            (EVERYBODY, 6, 0x0354),
            (EVERYBODY, 6, 0x0100),
            (EVERYBODY, 5, 0xff01),
            (GATEWAY, 6, 0x0354),
            (GATEWAY, 8, 0x1234),
            (GATEWAY, 10, 0x000a),
            (link, 4, 0x0002),
            (EVERYBODY, 12, 0x8100),
            (EVERYBODY, 12, 0x8808),
        ];
        for (to, offset, wanted) in places {
            for (start, options, len) in [(14, SUM, LEN), (14, IP_SUM, LEN), (0, SUM, LEN), (14, SUM, 1400)] {
                self.driver.ask(to, mac, FORBIDDEN);
                let rest = sum(at + start, len - start);
                let word = fold(u64::from(!rest) + u64::from(!wanted as u16));
                store(at + len - 2, 2, u64::from(word.swap_bytes()));
                let place = (start as u8, offset);
                let context = Context { ip: place, transport: place, ..Context::default() };
                self.send(&[context.descriptor(), Descriptor::data(at, len, options)]);
            }
        }
        // Lengths, numbers and identifications of segments.
        self.driver.ask(EVERYBODY, mac, ALLOWED);
        for place in 0..14 {
            for kinds in 0..4 {
                let (ipv4, tcp) = (kinds & 1 != 0, kinds & 2 != 0);
                for (ip, transport) in [(place, 14), (14, place)] {
                    for (payload, segment) in [(512, 255), (512, 256), (511, 600)] {
                        let (ip, transport, header) = ((ip, 44), (transport, 46), 48);
                        let sizes =
                            Context { payload, segment, header, segmenting: true, ..Context::default() };
                        let context = Context { ip, transport, ipv4, tcp, ..sizes };
                        let len = u64::from(header) + u64::from(payload);
                        self.send(&[context.descriptor(), Descriptor::data(at, len, 0).with(SEGMENT)]);
                    }
                }
            }
        }
        self.settle();
    }

    /// To those that bridges keep to a link, and of the type that is kept there.
    fn link(&mut self) {
        let (mac, at) = (self.driver.mac, self.driver.frame);
        for last in 0..16 {
            self.driver.ask([1, 0x80, 0xc2, 0, 0, last], mac, FORBIDDEN);
            self.send_in_all_ways(LEN);
        }
        self.driver.ask(EVERYBODY, mac, FORBIDDEN);
        store(at + 12, 2, 0x0888);
        self.send_in_all_ways(LEN);
        self.settle();
    }

    /// With tags of VLANs: its own, and such as the card puts in.
    fn tags(&mut self) {
        let (mac, at) = (self.driver.mac, self.driver.frame);
        for kind in [0x8100u16, 0x88a8, 0x9100] {
            for vlan in [0, 1, 7, 0xfff] {
                self.driver.ask(EVERYBODY, mac, FORBIDDEN);
                store(at + 12, 2, u64::from(kind.swap_bytes()));
                store(at + 14, 2, vlan << 8);
                self.send_in_all_ways(LEN);
            }
            self.driver.ask(EVERYBODY, mac, FORBIDDEN);
            self.driver.registers.set(VLAN_TYPE, kind.into());
            self.driver.registers.set(CONTROL, VLANS | CONTROL_LINK_UP);
            for vlan in [0, 1, 7, 0xfff] {
                self.send(&[Descriptor::legacy(at, LEN).with(TAGGED | vlan << 48)]);
                self.send(&[Descriptor::data(at, LEN, 0).with(TAGGED | vlan << 48)]);
            }
            self.driver.registers.set(CONTROL, CONTROL_LINK_UP);
        }
        self.settle();
    }

    /// Too short and too long, in one piece and in up to 16.
    fn lengths(&mut self) {
        let (mac, at) = (self.driver.mac, self.driver.frame);
        for len in [0, 1, 13, 1515, 1518, 1519, 1523, 2048, 16_384, 16_385, 65_535] {
            for to in [EVERYBODY, GATEWAY] {
                self.driver.ask(to, mac, FORBIDDEN);
                self.send_in_all_ways(len);
                let piece = len.div_ceil(16);
                let mut pieces = [Descriptor::default(); 16];
                for (nth, descriptor) in (0..).zip(&mut pieces) {
                    let start = (nth * piece).min(len);
                    *descriptor = Descriptor::legacy(at + start, piece.min(len - start)).open();
                }
                pieces[15] = pieces[15].with(EOP);
                self.send(&pieces);
            }
        }
        // More than a card can collect.
        self.send(&[Descriptor::legacy(at, 0xffff).open(), Descriptor::legacy(at, 0xffff)]);
        self.settle();
    }

    /// The source address changes while the card and the engine look at it.
    fn flips(&mut self) {
        let (mac, at) = (self.driver.mac, self.driver.frame);
        for to in [EVERYBODY, GATEWAY] {
            self.driver.ask(to, mac, ALLOWED);
            let whole = [Descriptor::legacy(at, LEN); 2];
            for round in 0..120u64 {
                let parts = [Descriptor::legacy(at, 10).open(), Descriptor::legacy(at + 10, LEN - 10)];
                for _ in 0..16 {
                    self.driver.ring(if round % 2 == 0 { &whole } else { &parts });
                    self.tried += 1;
                }
                for _ in 0..400 {
                    store(at + 6, 1, u64::from(mac[0] | 1));
                    store(at + 6, 1, u64::from(mac[0]));
                }
                self.driver.take();
            }
            self.settle();
        }
    }

    /// Cut as makes no sense.
    fn segments(&mut self) {
        let at = self.driver.frame;
        self.ask_nobody();
        for _ in 0..150 {
            let [ip, transport] =
                [0, 1].map(|_| (self.random.next() as u8, self.pick([0, 6, 14, 50, 255]) as u8));
            let context = Context {
                ip,
                transport,
                segmenting: self.random.below(8) != 0,
                ipv4: self.random.below(2) == 0,
                tcp: self.random.below(2) == 0,
                payload: self.pick([0, 1, 512, 60_000, 0xf_ffff]) as u32,
                segment: self.pick([0, 1, 255, 1460, 65_535]) as u16,
                header: self.pick([0, 13, 54, 200, 255]) as u8,
            };
            let (len, options) = (self.pick([0, 13, 60, 1514, 65_535]), self.random.below(4) as u8);
            let data = Descriptor::data(at, len, options);
            let data = if self.random.below(8) == 0 { data } else { data.with(SEGMENT) };
            match self.random.below(4) {
                0 => self.send(&[data.open(), context.descriptor(), data]),
                1 => self.send(&[context.descriptor(), data.open(), Descriptor::legacy(at, len)]),
                _ => self.send(&[context.descriptor(), data]),
            }
        }
        self.settle();
    }

    /// The frame is one of its own that nobody answers.
    fn ask_nobody(&self) {
        self.driver.ask(NOWHERE, self.driver.mac, ALLOWED);
        store(self.driver.frame + 12, 2, 0xb588);
    }

    fn pick(&mut self, from: [u64; 5]) -> u64 {
        from[self.random.below(5) as usize]
    }

    /// Memory that is not its own: others', registers, its card's own registers, the end of all addresses.
    fn foreign(&self) -> impl Iterator<Item = u64> + use<> {
        let bar = u64::from(self.driver.bar);
        let card = [0, 0x100, 0x2000, 0x2800, 0x3000, 0x3800, 0x5400].map(|offset| bar + offset);
        let ends = [self.driver.end - 16, u64::MAX, u64::MAX - 15, u64::MAX - STAMP, u64::MAX << 12];
        targets::some(&self.own, self.memory).chain(card).chain(ends)
    }

    /// Descriptors whose buffers are there: the card is to read what it sends, and to write what it receives.
    fn buffers(&mut self) {
        let (at, sink) = (self.driver.frame, self.driver.play);
        self.driver.loop_back();
        self.driver.ask(EVERYBODY, self.driver.mac, ALLOWED);
        let own = self.reads(sink + 0x1000, Some(FILL));
        println!("SLUICE-RESULT face.loopback={}", if own { "ok" } else { "failed" });
        for target in self.foreign() {
            let found = self.reads(target, None);
            let stamp = self.random.next() as u32 & 0x3f3f_3f3f | 0x4040_4040;
            (at + ETHERNET..at + STAMP).step_by(2).for_each(|word| store(word, 2, u64::from(stamp)));
            self.tried += 1;
            self.driver.pass(&[Descriptor::legacy(at, STAMP)], STAMP, target);
            // Nothing of it is left in the card.
            self.driver.pass(&[Descriptor::legacy(at, LEN)], LEN, sink);
            let kept = self.reads(target, Some(stamp & 0xffff | stamp << 16));
            if found || kept {
                self.notice(if kept { "written" } else { "read" }, target);
            }
        }
        // What is there is its own.
        for target in [0, 1, 14] {
            self.send_blindly(&[Descriptor::legacy(target, LEN)]);
            self.send_blindly(&[Descriptor::data(target, 0xffff, 3)]);
        }
    }

    fn send_blindly(&mut self, descriptors: &[Descriptor]) {
        self.tried += 1;
        self.driver.pass(descriptors, LEN, self.driver.play);
    }

    /// Whether the card reads something at `from`, or this.
    fn reads(&mut self, from: u64, wanted: Option<u32>) -> bool {
        let (at, sink) = (self.driver.frame, self.driver.play);
        (sink..sink + 2 * 4096).step_by(4).for_each(|word| put(word, FILL));
        let head = Descriptor::legacy(at, ETHERNET).open();
        self.tried += 1;
        self.driver.pass(&[head, Descriptor::legacy(from, STAMP)], ETHERNET + STAMP, sink);
        let found = (sink + ETHERNET..sink + ETHERNET + STAMP).step_by(2).map(|word| load(word, 2) as u32);
        let is_news = |word: u32| match wanted {
            Some(stamp) => word == stamp & 0xffff && word != 0,
            None => word.to_le_bytes()[..2].iter().any(|byte| ![0, 0xff, FILL as u8].contains(byte)),
        };
        found.filter(|word| is_news(*word)).count() >= 4
    }

    /// Rings there, of any length, with heads and tails beyond; and one that is the other.
    fn rings(&mut self) {
        let (at, play) = (self.driver.frame, self.driver.play);
        let shapes = [
            (0x80, 0, 7),
            (0, 0, 1),
            (0, 5, 0),
            (u32::MAX, 0, 0xffff),
            (0xf_ff80, 0xfffe, 0xffff),
            (0x7f, 0, 2),
            (0x81, 9, 3),
            (0x80, 0xffff, 0),
            (0x80, u32::MAX, u32::MAX - 1),
            (0x100, 0x1_0000, 0x10),
        ];
        (play..play + PLAY).step_by(8).for_each(|word| store(word, 8, 0));
        for target in self.foreign().chain([0, play]) {
            for shape in shapes {
                self.tried += 2;
                self.driver.loop_back();
                self.driver.put_ring(TX_RING, target, shape);
                pause(20_000);
                self.driver.loop_back();
                self.driver.put_ring(RX_RING, target, shape);
                self.driver.ring(&[Descriptor::legacy(at, LEN); 3]);
                pause(20_000);
            }
        }
        // The transmit ring is what is received into, by the ring and by its buffers.
        for shape in shapes {
            self.tried += 2;
            self.driver.loop_back();
            (play..play + 0x1000).step_by(16).for_each(|word| {
                self.driver.put_descriptor(word, Descriptor::legacy(play + (word & 0xff0), LEN));
            });
            self.driver.put_ring(RX_RING, play, shape);
            self.driver.put_ring(TX_RING, play, shape);
            pause(200_000);
            self.driver.put_ring(RX_RING, play + 0x40, shape);
            self.driver.put_ring(TX_RING, play, (0x1000, 0, 255));
            pause(200_000);
        }
    }

    /// Whether the card may be told this address: it is none of what the guest itself needs.
    fn is_harmless(&self, at: u64) -> bool {
        let low = at & 0xffff_ffff;
        low == 0 || low >= self.driver.end || (self.driver.play..self.driver.play + REACH).contains(&low)
    }

    fn wild_address(&mut self) -> u64 {
        let (play, end) = (self.driver.play, self.driver.end);
        let at = match self.random.below(8) {
            0 => self.random.wild(),
            1 => return end - self.random.below(0x800),
            2 => u64::from(self.driver.bar) + self.random.below(WINDOW),
            3 => u64::MAX - self.random.below(64),
            4 => 1 << (32 + self.random.below(32)) | play,
            5 => 0,
            _ => play + self.random.below(REACH),
        };
        if self.is_harmless(at) { at } else { 0 }
    }

    fn wild_descriptor(&mut self) -> Descriptor {
        let at = if self.random.below(4) == 0 { self.driver.frame } else { self.wild_address() };
        let len = match self.random.below(4) {
            0 => self.random.below(0x1_0000),
            1 => 0,
            _ => self.random.below(1600),
        };
        let bits = self.random.next();
        Descriptor { low: at, high: bits & !0xffff | len }
    }

    /// Fills the beginning of the memory for rings with descriptors of any kind.
    fn scatter(&mut self) {
        for at in (self.driver.play..self.driver.play + 0x4000).step_by(16) {
            let descriptor = self.wild_descriptor();
            self.driver.put_descriptor(at, descriptor);
        }
    }

    /// Descriptors of any kind, which change while the card works on them: to the network, then by the loopback.
    fn descriptors(&mut self) {
        let play = self.driver.play;
        self.ask_nobody();
        for loops in [false, true] {
            if loops {
                self.driver.loop_back();
                self.driver.put_ring(RX_RING, play + 0x2000, (0x1000, 0, 200));
            }
            self.scatter();
            self.driver.put_ring(TX_RING, play, (0x1000, 0, 0));
            for round in 0..20_000u64 {
                let at = play + 16 * self.random.below(0x400);
                let descriptor = self.wild_descriptor();
                self.driver.put_descriptor(at, descriptor);
                self.tried += 1;
                if round % 16 == 0 {
                    let (tail, room) = (self.random.below(256) as u32, self.random.below(256) as u32);
                    self.driver.registers.set(TX_RING + TAIL, tail);
                    self.driver.registers.set(RX_RING + TAIL, room);
                }
            }
        }
    }

    /// Stores anything anywhere in the pages of both rings, aligned or not, unless it would lead the card to what the guest itself needs.
    fn store_in_rings(&mut self) {
        let bar = u64::from(self.driver.bar);
        let width = 1 << self.random.below(4);
        let page = self.pick([0x2000, 0x3000, 0x2000, 0x3000, 0x3000]);
        let offset = page
            + if self.random.below(8) == 0 {
                self.random.below(4093)
            } else {
                0x7f9 + self.random.below(0x38)
            };
        let value = self.random.wild();
        // What the two bases are then.
        let mut harmless = true;
        for base in [RX_RING, TX_RING] {
            let mut low = get(bar + base).to_le_bytes();
            for (at, byte) in (offset..).zip(value.to_le_bytes()).take(width as usize) {
                if let Some(place) = at.checked_sub(base).and_then(|place| low.get_mut(place as usize)) {
                    *place = byte;
                }
            }
            harmless &= self.is_harmless(u32::from_le_bytes(low).into());
        }
        if harmless {
            self.tried += 1;
            store(bar + offset, width, value);
        }
    }

    fn stores(&mut self) {
        let play = self.driver.play;
        self.ask_nobody();
        for round in 0..8 {
            if round % 2 != 0 {
                self.driver.loop_back();
            }
            self.scatter();
            self.driver.put_ring(RX_RING, play + 0x2000, (0x1000, 0, 200));
            self.driver.put_ring(TX_RING, play, (0x1000, 0, 255));
            for _ in 0..10_000 {
                self.store_in_rings();
            }
            self.driver.set_up();
        }
    }

    /// A packet that does not end, by rings that are as long as there are, and around.
    fn endless(&mut self) {
        let (at, play) = (self.driver.frame, self.driver.play);
        for kind in 0..4 {
            let descriptor = match kind {
                0 => Descriptor::legacy(at, 0xffff),
                1 => Descriptor::data(at, 0xffff, 3),
                2 => Descriptor::data(at, 0xffff, 0).with(SEGMENT),
                _ => Descriptor::default(),
            };
            for word in (play..play + REACH).step_by(16) {
                self.driver.put_descriptor(word, descriptor.open());
            }
            for (len, head, tail) in
                [(0xf_ff80, 0, 0xfff7), (0xf_ff80, 5, 0xffff), (0x80, 0, 9), (0x80, 3, 2)]
            {
                self.driver.put_ring(TX_RING, play, (len, head, tail));
                for _ in 0..20 {
                    self.tried += 1;
                    sleep(1_000_000);
                    // Again and again, so that it never comes to where it began.
                    let head = self.driver.registers.get(TX_RING + HEAD);
                    self.driver.registers.set(TX_RING + TAIL, head.wrapping_sub(1) & 0xffff);
                }
            }
            self.driver.set_up();
        }
    }

    /// Rings for frames of its own.
    fn keep_sending(&mut self, count: usize) {
        let frames = [Descriptor::legacy(self.driver.frame, LEN); 32];
        self.driver.ring(&frames[..count]);
        self.tried += 1;
    }

    /// Both directions on and off with frames under way.
    fn switches(&mut self) {
        let registers = self.driver.registers;
        self.ask_nobody();
        for round in 0..300 {
            self.keep_sending(32);
            pause(self.random.below(20_000));
            registers.set(TRANSMIT, 0);
            if round % 3 == 0 {
                registers.set(RECEIVE, 0);
                registers.set(TX_RING + HEAD, self.random.below(256) as u32);
            }
            registers.set(TRANSMIT, TRANSMIT_ON);
            registers.set(RECEIVE, RECEIVE_ALL);
        }
    }

    /// Bus mastering likewise: without it nothing is written to memory.
    fn master(&mut self) {
        self.ask_nobody();
        let frame = Descriptor::legacy(self.driver.frame, LEN);
        for _ in 0..300 {
            self.keep_sending(32);
            pause(self.random.below(20_000));
            self.driver.function.write(COMMAND, COMMAND_IO | COMMAND_MEMORY | COMMAND_SILENT);
            let last = self.driver.ring(&[frame; 2]);
            pause(self.random.below(200_000));
            if get(last + 12) & DONE != 0 {
                self.notice("written without bus mastering", last);
            }
            self.driver.function.enable();
        }
    }

    /// The card moves, also to where it cannot be.
    fn bars(&mut self) {
        self.ask_nobody();
        let (bar, function) = (self.driver.bar, self.driver.function);
        let places = [
            0,
            self.driver.play as u32,
            bar + 0x2_0000,
            bar + 0x1000,
            bar.wrapping_sub(0x2_0000),
            bar + 0x80_0000,
            0xc000_0000,
            0xe000_0000,
            0xfec0_0000,
            0xfee0_0000,
            0xfffe_0000,
            u32::MAX,
        ];
        for round in 0..300 {
            let place = places[round % places.len()];
            self.keep_sending(32);
            pause(self.random.below(20_000));
            function.write(0x10, place);
            let moved = u64::from(function.read(0x10) & !0xf);
            // Not where the guest's memory or its interrupt controller are.
            if (self.driver.end..0xfe00_0000).contains(&moved) {
                load(moved + TX_RING + HEAD, 4);
                store(moved + TX_RING + TAIL, 4, self.random.below(256));
            }
            let answers = self.driver.registers.get(RECEIVE) == RECEIVE_ALL;
            if answers && moved != u64::from(bar) {
                self.notice("answers where it is no more", moved);
            }
            store(u64::from(bar) + TX_RING + TAIL, 4, self.random.below(256));
            function.write(0x10, bar);
        }
    }

    /// It answers at no address, and again.
    fn decoding(&mut self) {
        self.ask_nobody();
        for _ in 0..300 {
            self.keep_sending(32);
            pause(self.random.below(20_000));
            self.driver.function.write(COMMAND, COMMAND_MASTER | COMMAND_SILENT);
            self.driver.registers.get(TX_RING + HEAD);
            if self.driver.registers.get(RECEIVE) == RECEIVE_ALL {
                self.notice("answers switched off", u64::from(self.driver.bar));
            }
            self.keep_sending(2);
            self.driver.registers.set(RECEIVE, 0);
            self.driver.function.enable();
        }
    }

    /// Any value in any register, at any width, and its interrupt switched on and off.
    fn registers(&mut self) {
        let (bar, play) = (u64::from(self.driver.bar), self.driver.play);
        self.ask_nobody();
        self.scatter();
        self.driver.put_ring(RX_RING, play + 0x2000, (0x1000, 0, 200));
        self.driver.put_ring(TX_RING, play, (0x1000, 0, 255));
        for _ in 0..6_000 {
            let (width, value) = (1 << self.random.below(4), self.random.wild());
            let offset = match self.random.below(4) {
                0 => self.random.below(WINDOW - 8),
                1 => 4 * self.random.below(0x1400 / 4),
                // The first registers, and causes of interrupts.
                2 => self.random.below(0x40),
                _ => 0xc0 + self.random.below(0x20),
            };
            self.tried += 1;
            match self.random.below(8) {
                0 => drop(load(bar + offset, width)),
                1 => self.store_in_rings(),
                2 => self.driver.function.write(COMMAND, COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER),
                3 => self.driver.function.enable(),
                _ if (0x1ff8..0x4000).contains(&offset) => self.store_in_rings(),
                _ => store(bar + offset, width, value),
            }
        }
    }
}

const _: () = assert!(PLAY >= 2 * REACH + FRAMES);
