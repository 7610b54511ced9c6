//! Requests of any bytes, chains that lead nowhere or make no sense, rings where no memory is, indices that jump.

use super::super::virtio::{self, AVAILABLE, USED, store};
use super::super::{Score, Tally};
use super::driver::{ANSWER, ATTACH, DETACH, LONG_ANSWER, MAP, NEXT, Outcome, PROBE, Request, UNMAP, WRITE};
use super::{DOMAIN, FIRST, Guest, PAGE, resets};
use crate::console::println;
use crate::dma::targets;
use crate::random::Random;

/// Rounds between two resets.
const LIFE: u32 = 64;
const INDIRECT: u32 = 4;
const SIZE: u32 = virtio::SIZE as u32;

/// Something between right and wrong.
fn number(random: &mut Random, right: u32) -> u32 {
    match random.below(6) {
        0 => random.wild() as u32,
        1 => random.below(4) as u32,
        _ => right,
    }
}

impl Guest<'_> {
    /// Requests of every type, with anything in them, in pieces, with room for an answer or without.
    pub fn bytes(&mut self) {
        let mut score = Score::new("bytes");
        let mut carried_out = 0;
        for round in 0..6_000u32 {
            if round % LIFE == 0 {
                self.start();
            }
            let request = self.wild_request(round);
            self.iommu.put(&request);
            self.wild_chain(&request);
            self.iommu.offer(0);
            self.iommu.ring();
            let outcome = self.iommu.outcome();
            let done = outcome == Outcome::Status(0);
            carried_out += u32::from(done);
            let wrong = done && !self.may_be_done(&request);
            if wrong {
                println!("iommu: carried out: {:02x?}", &request.bytes[..request.len]);
            }
            score.add(wrong);
            self.mend(outcome);
        }
        println!("SLUICE-RESULT bytes_legal={}", if carried_out > 100 { "ok" } else { "bad" });
    }

    /// A request: half of them of any type, half of those that there are.
    fn wild_request(&mut self, round: u32) -> Request {
        let (io, area, end) = (self.io, self.area, self.own.end());
        let elsewhere = self.elsewhere();
        let [disk, other] = self.endpoints;
        let random = &mut *self.random;
        let kind = if round.is_multiple_of(2) { (round / 2) as u8 } else { 1 + random.below(5) as u8 };
        let mut request = Request { bytes: [0; Request::ROOM], len: random.below(80) as usize };
        for at in (0..Request::ROOM - 8).step_by(8) {
            request = request.long(at, random.wild());
        }
        request = request.with(0, &[kind]);
        if random.below(8) == 0 {
            return request;
        }
        // What it takes to be one, but for some of it.
        let right = if random.below(2) == 0 { disk } else { other };
        let endpoint = number(random, right);
        let domain = number(random, DOMAIN);
        let pages = 1 + random.below(8);
        let first = if random.below(8) == 0 { random.wild() } else { io + random.below(64) * PAGE };
        let last = if random.below(8) == 0 { random.wild() } else { first.wrapping_add(pages * PAGE - 1) };
        let gpa = match random.below(4) {
            0 => elsewhere,
            1 => end - random.below(8) * PAGE,
            _ => area,
        };
        let flags = number(random, 3);
        let whole = match kind {
            ATTACH => Request::attach(domain, endpoint).word(12, if flags == 3 { 0 } else { flags }),
            DETACH => Request::detach(domain, endpoint),
            MAP => Request::map(domain, first, last, gpa, flags),
            UNMAP => Request::unmap(domain, first, last),
            PROBE => Request::probe(endpoint),
            _ => request,
        };
        let len = if random.below(8) == 0 { random.below(80) as usize } else { whole.len };
        Request { len, ..whole }
    }

    /// The request in up to three pieces, and room for an answer in up to two, perhaps too little.
    fn wild_chain(&mut self, request: &Request) {
        let (from, to) = (self.iommu.request_at(), self.iommu.answer_at());
        let random = &mut *self.random;
        let len = request.len as u32;
        let [first, second] = [(); 2].map(|()| random.below(u64::from(len) + 1) as u32);
        let (low, high) = (first.min(second), first.max(second));
        let needed = if request.kind() == PROBE { LONG_ANSWER } else { ANSWER };
        let room = if random.below(8) == 0 { random.below(40) as u32 } else { needed };
        let part = random.below(u64::from(room) + 1) as u32;
        let rest = (to + u64::from(part), room - part, WRITE);
        self.iommu.chain(&[
            (from, low, 0),
            (from + u64::from(low), high - low, 0),
            (from + u64::from(high), len - high, 0),
            (to, part, WRITE),
            rest,
        ]);
    }

    /// Whether a request is one that is carried out; the address spaces are then as it says.
    fn may_be_done(&mut self, request: &Request) -> bool {
        let (len, number, endpoint) = (request.len, request.word_at(4), request.word_at(8));
        let place = self.endpoints.iter().position(|known| *known == endpoint);
        let owner = self.spaces.iter().position(|space| *space == Some(number));
        match request.kind() {
            ATTACH => {
                let Some(place) = place else { return false };
                self.spaces[place] = Some(number);
                len >= 16 && request.word_at(12) == 0 && owner.is_none_or(|owner| owner == place)
            }
            DETACH => {
                let Some(place) = place else { return false };
                let was = self.spaces[place].take();
                len >= 12 && was == Some(number)
            }
            MAP => {
                let [first, last, gpa] = [8, 16, 24].map(|at| request.long_at(at));
                len >= 36 && owner.is_some() && self.may_map(first, last, gpa, request.word_at(32))
            }
            UNMAP => {
                let [first, last] = [8, 16].map(|at| request.long_at(at));
                let whole = first.is_multiple_of(PAGE) && last.wrapping_add(1).is_multiple_of(PAGE);
                len >= 24 && owner.is_some() && whole && first <= last
            }
            PROBE => len >= 8 && self.endpoints.contains(&number),
            _ => false,
        }
    }

    /// A request that must be refused, in chains that no driver makes.
    pub fn chains(&mut self) {
        let mut score = Score::new("chains");
        let broken = self.counts.broken;
        for round in 0..1_200u64 {
            if round % u64::from(LIFE) == 0 {
                self.start();
            }
            let (from, to, end) = (self.iommu.request_at(), self.iommu.answer_at(), self.own.end());
            let elsewhere = self.elsewhere();
            let foreign = Request::map_pages(DOMAIN, self.io, 1, self.own.end() + (16 << 20));
            self.iommu.put(&foreign);
            let len = foreign.len as u32;
            let (request, answer) = ((from, len, 0), (to, ANSWER, WRITE));
            let iommu = &mut self.iommu;
            let (at, random) = (iommu.device.at, &mut *self.random);
            let mut head = 0;
            match round % 12 {
                // Circles: of what is read, of what is written, and of both.
                0 => iommu.device.descriptor(at, 0, from, len, NEXT, 0),
                1 => {
                    iommu.chain(&[request, answer]);
                    iommu.device.descriptor(at, 1, to, ANSWER, NEXT | WRITE, random.below(2) as u32);
                }
                2 => {
                    for index in 0..SIZE {
                        let flags = NEXT | (index % 2 * WRITE);
                        let place = if index % 2 == 0 { from } else { to };
                        iommu.device.descriptor(at, index.into(), place, 1, flags, (index + 1) % SIZE);
                    }
                }
                // Without room for the answer, or with too little.
                3 => iommu.chain(&[request]),
                4 => iommu.chain(&[request, (to, random.below(4) as u32, WRITE)]),
                // Where no memory is.
                5 => iommu.chain(&[(elsewhere, len, 0), answer]),
                6 => iommu.chain(&[request, (elsewhere, ANSWER, WRITE)]),
                7 => iommu.chain(&[(end - 8, len, 0), answer]),
                8 => iommu.chain(&[request, (end - 2, ANSWER, WRITE)]),
                // Descriptors that there are not.
                9 => {
                    let next = SIZE + random.below(1 << 15) as u32;
                    iommu.device.descriptor(at, 0, from, len, NEXT, next & 0xffff);
                }
                10 => head = SIZE as u16 + random.below(1 << 15) as u16,
                _ => match random.below(4) {
                    0 => iommu.chain(&[(at, 16 * len, INDIRECT)]),
                    1 => iommu.chain(&[(from, u32::MAX, 0), answer]),
                    2 => iommu.chain(&[request, (to, u32::MAX, WRITE)]),
                    _ => iommu.chain(&[answer, request]),
                },
            }
            iommu.offer(head);
            iommu.ring();
            let outcome = iommu.outcome();
            score.add(outcome == Outcome::Status(0));
            self.mend(outcome);
        }
        let told = self.counts.broken - broken;
        println!("SLUICE-RESULT chains_told={}", if told > 800 { "ok" } else { "bad" });
        // Descriptors that lead anywhere, and change while they are read.
        let mut tally = Tally::default();
        resets::start_kicking(self.iommu.device.doorbell);
        for _ in 0..24 {
            self.start();
            tally.attempt(|| self.iommu.device.attack(self.random));
        }
        resets::stop_kicking();
        self.start();
        score.add(self.is_any_issued(3));
    }

    /// Each part of the queue where no memory is, over its end, or where it cannot begin; queues of sizes that there are not.
    pub fn rings(&mut self) {
        let mut score = Score::new("rings");
        let at = self.iommu.device.at;
        let (own, machine, end) = (self.own, self.machine, self.own.end());
        let parts = [at, at + AVAILABLE, at + USED];
        let far = [end - 2, end - 4, end - 8, end - 16, u64::MAX, u64::MAX - 1, u64::MAX - 3, u64::MAX - 15];
        for place in targets::some(&own, machine).chain(far) {
            for part in 0..3 {
                let mut wild = parts;
                wild[part] = place;
                score.add(self.is_carried_out_by(wild, SIZE.into()));
            }
            if !own.contains(place & !15) {
                score.add(self.is_carried_out_by([place & !15; 3], SIZE.into()));
            }
        }
        for (part, offset) in [(0, 8), (1, 1), (2, 2)] {
            let mut crooked = parts;
            crooked[part] += offset;
            score.add(self.is_carried_out_by(crooked, SIZE.into()));
        }
        for size in [0, 3, 63, 257, 512, 0x8000, 0xffff] {
            score.add(self.is_carried_out_by(parts, size));
        }
    }

    /// Whether a request that must be refused is carried out by a queue that is there.
    fn is_carried_out_by(&mut self, parts: [u64; 3], size: u64) -> bool {
        let taken = self.iommu.start_at(parts, size);
        let index = parts[1].wrapping_add(2);
        if self.own.contains(index) {
            store(index, 2, 1);
        }
        if !taken {
            self.iommu.ring();
            self.start();
            return false;
        }
        let outcome = self.iommu.ask(&Request::map_pages(DOMAIN, self.io, 1, self.own.end()));
        // With the used ring elsewhere, what is given back is not seen here.
        if outcome == Outcome::Nothing && parts[2] != self.iommu.device.at + USED {
            self.start();
        } else {
            self.mend(outcome);
        }
        outcome == Outcome::Status(0)
    }

    /// Indices that jump over more than the queue has: the device must ask for a reset, and do nothing more before.
    pub fn jumps(&mut self) {
        let mut score = Score::new("jumps");
        for _ in 0..300u32 {
            self.start();
            let chains = SIZE as u16 + self.random.below(0xffff - 2 * u64::from(SIZE)) as u16;
            self.iommu.put(&Request::map_pages(DOMAIN, FIRST, 1, FIRST));
            self.iommu.jump(chains);
            score.add(!self.iommu.device.needs_reset());
            self.iommu.ring();
            score.add(self.is_issued(FIRST));
        }
    }
}
