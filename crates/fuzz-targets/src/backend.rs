//! The daemon of a driver domain: what other programs that serve disks answer it, and requests of guests.

use crate::Input;
use sluice_backend::command::{Command, Wish};
use sluice_backend::function::{Info, QueueSetup, Window};
use sluice_backend::packets::{Line, Packets, Reach};
use sluice_backend::relay::{Relay, Rings};
use sluice_backend::request::{MAX_SEGMENTS, Request};
use sluice_backend::rng::{self, MOST};
use sluice_backend::sys;
use sluice_backend::vhost_user::{self, Service};
use sluice_hypercall::backend::{CONFIG_SIZE, MAX_QUEUES, STATE_PEER};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vmm_sys_util::tempfile::TempFile;

/// Bytes of a guest's memory.
const SIZE: usize = 0x8000;

/// A window over a file, since a vhost-user back end gets it as one.
fn window() -> &'static Window {
    static WINDOW: OnceLock<Window> = OnceLock::new();
    WINDOW.get_or_init(|| {
        let file = TempFile::new().expect("a temporary file").into_file();
        file.set_len(SIZE as u64).expect("room for it");
        let range = (GuestAddress(0), SIZE, Some(FileOffset::new(file, 0)));
        Arc::new(GuestMemoryMmap::from_ranges_with_files([range]).expect("a mapping of it"))
    })
}

/// Requests of the vhost-user protocol, and what its messages say of themselves.
mod protocol {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const GET_CONFIG: u32 = 24;
    pub const HEADER: usize = 12;
    /// Version 1, and an answer.
    pub const ANSWER: u32 = 5;
}

fn message(request: u32, body: &[u8]) -> Vec<u8> {
    let header = [request, protocol::ANSWER, body.len() as u32].map(u32::to_le_bytes);
    [header.concat(), body.to_vec()].concat()
}

/// What a program answers a front end that sets so many queues up, with these features and this configuration.
fn answers(features: u64, queues: u16, config: &[u8]) -> Vec<u8> {
    let number = |request, number: u64| message(request, &number.to_le_bytes());
    // CONFIG, REPLY_ACK, MQ.
    let mut all = number(protocol::GET_FEATURES, features | 1 << 30);
    all.extend(number(protocol::GET_PROTOCOL_FEATURES, 1 << 9 | 1 << 3 | 1));
    all.extend(number(protocol::GET_QUEUE_NUM, queues.into()));
    let config = [&[0, config.len() as u32, 0].map(u32::to_le_bytes).concat(), config].concat();
    all.extend(message(protocol::GET_CONFIG, &config));
    // Features, memory, and of each queue: number of entries, index, addresses, three events, its beginning.
    let queue = [8, 10, protocol::SET_VRING_ADDR, 14, 13, 12, 18];
    let requests = [2, 5].into_iter().chain(queue.into_iter().cycle().take(7 * usize::from(queues)));
    all.extend(requests.flat_map(|request| number(request, 0)));
    all.extend(message(protocol::GET_CONFIG, &config));
    all
}

/// A vhost-user back end that answers whatever it likes, for a guest with any queues. Asserts that what its guest is offered on its word is
/// within bounds and nothing that the transport does not carry, and that it is told of no queue outside the guest's memory.
pub fn vhost_user(data: &[u8]) {
    /// ACCESS_PLATFORM, RING_PACKED, CONFIG_WCE, and the protocol's own bit.
    const WITHHELD: u64 = 1 << 33 | 1 << 34 | 1 << 11 | 1 << 30;
    let mut input = Input::new(data);
    let mut info = Info { driver_features: input.u64(), window: SIZE as u64, ..Info::default() };
    (info.status, info.state) = (if input.flag() { 0xf } else { 0xb }, STATE_PEER);
    let count = u16::from(input.u8() % 20);
    for (place, setup) in info.queues.iter_mut().enumerate() {
        let at = 0x400 * place as u64;
        *setup = QueueSetup {
            entries: 16,
            enabled: (place < count.into()).into(),
            descriptors: at,
            driver: at + 0x100,
            device: at + 0x200,
        };
        match input.u8() {
            0..=15 => setup.entries = input.u32(),
            16..=31 => setup.descriptors = input.u64(),
            32..=47 => setup.driver = input.u64(),
            48..=63 => setup.device = input.u64() >> (input.u8() % 64),
            64..=127 => setup.enabled = input.u8().into(),
            _ => {}
        }
        for ring in [at + 0x102, at + 0x202] {
            let index = u16::from(input.u8() % 4);
            window().write_obj(index, GuestAddress(ring)).expect("it is in the window");
        }
    }
    let service = if input.u8() < 64 { Service::files(&info) } else { Service::Disk };
    let features = input.u64();
    let mut config = [0; 60];
    config[34..36].copy_from_slice(&count.to_le_bytes());
    let mut said = if input.flag() { answers(features, count, &config) } else { Vec::new() };
    input.damage(&mut said);
    said.extend(input.rest());

    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.write_all(&said).expect("it is short");
    theirs.shutdown(Shutdown::Write).expect("it is open");
    let is_disk = service == Service::Disk;
    let offer = vhost_user::handshake(service, ours, window(), &info);
    if let Ok(offer) = offer {
        assert!((1..=MAX_QUEUES).contains(&offer.queue_count) && offer.config_len <= CONFIG_SIZE);
        assert_eq!(offer.features & WITHHELD, 0, "the guest is offered what the transport does not carry");
    }
    let mut told = Vec::new();
    // Who leaves with answers unread resets the connection, but what was said before is there.
    let _ = theirs.read_to_end(&mut told);
    check_told(&told, is_disk);
}

/// All rings that a back end was told of lie in the window, but for those of a disk that the daemon has made: they lie behind it.
fn check_told(mut told: &[u8], is_disk: bool) {
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a message is whole"))
    };
    while let Some((header, rest)) = told.split_at_checked(protocol::HEADER) {
        let (request, len) = (word(header, 0) as u32, (word(header, 4) >> 32) as usize);
        let (body, rest) = rest.split_at(len);
        if request == protocol::SET_VRING_ADDR {
            let relayed = SIZE as u64..SIZE as u64 + 0x2000 * u64::from(MAX_QUEUES);
            let rings = if is_disk { relayed } else { 0..SIZE as u64 };
            assert!(word(body, 8) < SIZE as u64, "a back end is told of descriptors outside the window");
            assert!(
                rings.contains(&word(body, 16)) && rings.contains(&word(body, 24)),
                "and of rings elsewhere"
            );
        }
        told = rest;
    }
}

/// Where a queue of 256 entries is in a guest's memory, and where its data are.
const ENTRIES: u16 = 256;
const AVAILABLE: u64 = 0x1000;
const USED: u32 = 0x1400;
const DATA: u64 = 0x2000;

/// Of a descriptor: another follows; it is written by the device.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

fn put(window: &GuestMemoryMmap, bytes: &[u8], at: u64) {
    window.write_slice(bytes, GuestAddress(at)).expect("it is in the window");
}

fn put_descriptor(window: &GuestMemoryMmap, place: u16, (address, len): (u64, u32), flags: u16, next: u16) {
    let parts = [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
    put(window, &parts.concat(), 16 * u64::from(place));
}

/// Anything for descriptors and the available ring.
fn wild(input: &mut Input<'_>, window: &GuestMemoryMmap) {
    let heads = input.u8() % 8;
    for descriptor in 0..u16::from(input.u8() % 64) {
        let address = if input.u8() < 16 { input.u64() } else { DATA + u64::from(input.u16() % 0x6000) };
        let len = if input.u8() < 16 { input.u32() } else { u32::from(input.u8()) };
        let flags = if input.u8() < 16 { input.u16() } else { u16::from(input.u8()) & (NEXT | WRITE) };
        let next = if input.flag() { descriptor + 1 } else { u16::from(input.u8() % 64) };
        put_descriptor(window, descriptor, (address, len), flags, next);
    }
    for place in 0..heads {
        let head = u16::from(input.u8() % 64);
        put(window, &head.to_le_bytes(), AVAILABLE + 4 + 2 * u64::from(place));
    }
    put(window, &u16::from(heads).to_le_bytes(), AVAILABLE + 2);
}

/// A chain as drivers make them. Returns bytes of its data and where its answer goes, if it is a request.
fn tidy(input: &mut Input<'_>, window: &GuestMemoryMmap) -> Option<(u64, u64)> {
    let (count, turn) = (u16::from(input.u8()).max(1), u16::from(input.u8()));
    let (mut output, mut filled, mut answer) = (0, 0, None);
    for place in 0..count {
        let (at, len) = (DATA + u64::from(input.u16() % 0x5f00), u64::from(input.u8()));
        let (next, write) = (place + 1 < count, place >= turn);
        let flags = if next { NEXT } else { 0 } | if write { WRITE } else { 0 };
        put_descriptor(window, place, (at, len as u32), flags, place + 1);
        *(if write { &mut filled } else { &mut output }) += len;
        answer = if write && len > 0 { Some(at + len - 1) } else { answer };
    }
    put(window, &1u16.to_le_bytes(), AVAILABLE + 2);
    let is_request = u32::from(count) <= MAX_SEGMENTS + 2 && output >= 16;
    answer.filter(|_| is_request).map(|answer| (output - 16 + filled - 1, answer))
}

/// The queue that `wild` and `tidy` fill.
fn queue(window: &GuestMemoryMmap) -> Queue {
    let mut queue = Queue::new(ENTRIES).expect("a power of two");
    queue.set_desc_table_address(Some(0), Some(0));
    queue.set_avail_ring_address(Some(AVAILABLE as u32), Some(0));
    queue.set_used_ring_address(Some(USED), Some(0));
    queue.set_ready(true);
    assert!(queue.is_valid(window));
    queue
}

/// A queue of a disk that its guest has filled, with anything or as drivers do. Asserts that a chain which is taken for a request has no more
/// parts than was agreed on, that reading it changes nothing, that the answer is a byte; and of a driver's chain that it is taken for a
/// request if it is one, with its data and its answer where they are.
pub fn request(data: &[u8]) {
    let mut input = Input::new(data);
    let window = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), SIZE)]).expect("memory of a guest");
    let meant = if input.flag() { Some(tidy(&mut input, &window)) } else { None };
    if meant.is_none() {
        wild(&mut input, &window);
    }
    put(&window, input.rest(), DATA);

    let mut queue = queue(&window);
    let content = || {
        let mut bytes = vec![0; SIZE];
        window.read_slice(&mut bytes, GuestAddress(0)).expect("it is the window");
        bytes
    };
    let before = content();
    let Ok(chains) = queue.iter(&window) else { return };
    for chain in chains {
        let parsed = Request::parse(chain, &window);
        assert_eq!(content(), before, "a request is read, not written");
        if let Some(meant) = meant {
            assert_eq!(parsed.as_ref().ok().map(Request::data_len), meant.map(|(bytes, _)| bytes));
        }
        let Ok(request) = parsed else { continue };
        assert!(request.output.len() + request.input.len() <= MAX_SEGMENTS as usize + 2);
        for status in [0, 0xff] {
            request.answer(status);
            let after = content();
            let changed: Vec<usize> = (0..SIZE).filter(|at| after[*at] != before[*at]).collect();
            assert!(changed.len() <= 1, "an answer is one byte");
            if let (Some(Some((_, answer))), Some(at)) = (meant, changed.first()) {
                assert_eq!(*at as u64, answer, "the answer is the last byte that the device may write");
            }
            changed.iter().for_each(|at| put(&window, &[before[*at]], *at as u64));
        }
    }
}

/// The control queue of a network card that its guest has filled, with anything or as drivers do. Asserts that the answer to a command is a
/// byte, and that no number of pairs is read where there is none.
pub fn command(data: &[u8]) {
    let mut input = Input::new(data);
    let window = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), SIZE)]).expect("memory of a guest");
    let short = input.u8() % 8;
    if input.flag() {
        // The class, the command and its data lie behind each other; the answer is elsewhere.
        put_descriptor(&window, 0, (DATA, short.into()), NEXT, 1);
        put_descriptor(&window, 1, (DATA + 0x100, 1), WRITE, 0);
        put(&window, &1u16.to_le_bytes(), AVAILABLE + 2);
        put(&window, &[4, 0, input.u8(), input.u8()], DATA);
    } else {
        wild(&mut input, &window);
        put(&window, input.rest(), DATA);
    }
    let mut content = vec![0; SIZE];
    let mut queue = queue(&window);
    let Ok(chains) = queue.iter(&window) else { return };
    for chain in chains {
        let has: u64 = chain
            .clone()
            .take(MAX_SEGMENTS as usize + 2)
            .filter(|part| !part.is_write_only())
            .map(|part| u64::from(part.len()))
            .sum();
        let Ok(command) = Command::parse(chain, &window) else { continue };
        assert!(has >= 2, "a command without a header");
        assert!(has >= 4 || command.wish == Wish::Unknown, "a number that nobody wrote");
        window.read_slice(&mut content, GuestAddress(0)).expect("it is the window");
        command.answer(0xff);
        let mut after = vec![0; SIZE];
        window.read_slice(&mut after, GuestAddress(0)).expect("it is the window");
        assert!(content.iter().zip(&after).filter(|(old, new)| old != new).count() <= 1);
    }
}

/// The queue of a source of random numbers that its guest has filled with anything. Asserts that no more is put into a buffer than is allowed, that
/// nothing is written but what its descriptors say may be, and that what is said to be written is.
pub fn random(data: &[u8]) {
    let mut input = Input::new(data);
    let window = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), SIZE)]).expect("memory of a guest");
    wild(&mut input, &window);
    let content = || {
        let mut bytes = vec![0; SIZE];
        window.read_slice(&mut bytes, GuestAddress(0)).expect("it is the window");
        bytes
    };
    let mut queue = queue(&window);
    let Ok(chains) = queue.iter(&window) else { return };
    for chain in chains {
        let mut may = vec![false; SIZE];
        for part in chain.clone().take(MAX_SEGMENTS as usize + 2).filter(|part| part.is_write_only()) {
            let from = usize::try_from(part.addr().0).unwrap_or(SIZE).min(SIZE);
            may[from..from.saturating_add(part.len() as usize).min(SIZE)].fill(true);
        }
        let before = content();
        let Ok(room) = rng::room(chain, &window) else { continue };
        assert_eq!(content(), before, "a buffer is looked at, not written");
        let written = rng::fill(&room, &mut std::io::repeat(0xa5)).expect("the source is endless") as usize;
        assert!((1..=MOST).contains(&written));
        let after = content();
        let mut filled = 0;
        for at in 0..SIZE {
            assert!(may[at] || before[at] == after[at], "a byte that the device may not write");
            filled += usize::from(may[at] && after[at] == 0xa5);
        }
        // Parts of a buffer may lie in each other.
        assert!(filled > 0 && (filled >= written || room.len() > 1));
    }
}

/// A relayed queue whose guest and whose program put anything into their rings. Asserts that the program is asked for what the guest asked for, that the guest
/// is answered in the order in which it asked and nothing else, and that neither has more under way than there are entries.
pub fn relay(data: &[u8]) {
    let mut input = Input::new(data);
    let window = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), SIZE)]).expect("memory of a guest");
    let rings = Rings::new(1, &window).expect("memory for rings");
    let queue = queue(&window);
    let mut relay = Relay::new(queue, &rings, 0).expect("a queue of the right size");
    let program = relay.for_program();
    let (available, used) = (program.avail_ring_addr, program.used_ring_addr);
    let index = |memory: &GuestMemoryMmap, ring: u64| -> u16 {
        memory.read_obj(GuestAddress(ring + 2)).expect("it is in the rings")
    };
    // What is under way, in the order in which the guest asked, and which of it the program has answered.
    let mut asked: Vec<(u16, Option<u32>)> = Vec::new();
    let (mut passed, mut answered) = (0u16, 0u16);
    for _ in 0..32 {
        if input.flag() {
            for _ in 0..input.u8() % 4 {
                let place = index(&window, AVAILABLE);
                let head = if input.u8() < 8 { input.u16() } else { u16::from(input.u8()) };
                put(&window, &head.to_le_bytes(), AVAILABLE + 4 + 2 * u64::from(place % ENTRIES));
                put(&window, &place.wrapping_add(1).to_le_bytes(), AVAILABLE + 2);
            }
            if input.u8() < 4 {
                put(&window, &input.u16().to_le_bytes(), AVAILABLE + 2);
            }
            if relay.pass_on(&window).is_err() {
                return;
            }
            let now = index(&rings.0, available);
            while passed != now {
                let entry = |memory: &GuestMemoryMmap, ring: u64| -> u16 {
                    memory
                        .read_obj(GuestAddress(ring + 4 + 2 * u64::from(passed % ENTRIES)))
                        .expect("it is in the rings")
                };
                let head = entry(&rings.0, available);
                assert_eq!(
                    head,
                    entry(&window, AVAILABLE),
                    "the program is asked for what the guest asked for"
                );
                assert!(head < ENTRIES && asked.iter().all(|(other, _)| *other != head), "once at a time");
                asked.push((head, None));
                passed = passed.wrapping_add(1);
            }
            assert!(asked.len() <= usize::from(ENTRIES));
        } else {
            let mut place = index(&rings.0, used);
            for _ in 0..input.u8() % 4 {
                let waits: Vec<usize> = (0..asked.len()).filter(|at| asked[*at].1.is_none()).collect();
                let is_right = !waits.is_empty() && input.u8() >= 8;
                let (head, len) = match is_right {
                    true => (u32::from(asked[waits[usize::from(input.u8()) % waits.len()]].0), input.u32()),
                    false => (input.u32(), input.u32()),
                };
                if let Some(one) =
                    asked.iter_mut().find(|(other, len)| u32::from(*other) == head && len.is_none())
                {
                    one.1 = Some(len);
                }
                let entry = [head, len].map(u32::to_le_bytes).concat();
                put(&rings.0, &entry, used + 4 + 8 * u64::from(place % ENTRIES));
                place = place.wrapping_add(1);
            }
            put(&rings.0, &place.to_le_bytes(), used + 2);
            let result = relay.take_back(&window);
            let now = index(&window, u64::from(USED));
            while answered != now {
                let at = GuestAddress(u64::from(USED) + 4 + 8 * u64::from(answered % ENTRIES));
                let [head, len]: [u32; 2] = window.read_obj(at).expect("it is in the window");
                let (first, answer) = asked.remove(0);
                assert_eq!((head, Some(len)), (first.into(), answer), "answers are in the order of requests");
                answered = answered.wrapping_add(1);
            }
            if result.is_err() {
                return;
            }
        }
    }
}

/// A pair of queues of a network card whose guest has put anything into them, and a wire with packets of any length. Asserts that what the guest may not have written stays as it was, and
/// that what leaves is as long as a packet can be.
pub fn packets(data: &[u8]) {
    let mut input = Input::new(data);
    let window: Window =
        Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), SIZE)]).expect("memory of a guest"));
    wild(&mut input, &window);
    let setup = QueueSetup {
        entries: ENTRIES.into(),
        enabled: 1,
        descriptors: 0,
        driver: AVAILABLE,
        device: USED.into(),
    };
    let event = || EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).expect("a descriptor");
    let line =
        |setup: &QueueSetup| Line::new(setup, ENTRIES, data.len() & 1 != 0, &window, [event(), event()]);
    // The other one is empty, unless somebody writes there.
    let other = QueueSetup { driver: 0x7000, device: 0x7400, ..setup };
    let (Ok(filled), Ok(empty)) = (line(&setup), line(&other)) else { return };
    let receives = input.flag();
    let lines = if receives { [filled, empty] } else { [empty, filled] };
    let (tap, wire) = sys::socket_pair().expect("a pair of sockets");
    wire.set_nonblocking(true).expect("it is open");
    for _ in 0..input.u8() % 4 {
        let len = 12 + usize::from(input.u16() % 3000);
        wire.send(&vec![0xa5; len]).expect("there is room");
    }
    let by = (Reach::Window, Packets::room().expect("there is memory"));
    let tap = std::fs::File::from(std::os::fd::OwnedFd::from(tap));
    let mut packets =
        Packets::new(Arc::clone(&window), tap, lines, by, input.flag()).expect("descriptors are left");
    let mut may = vec![false; SIZE];
    for descriptor in 0..ENTRIES {
        let [address, rest]: [u64; 2] =
            window.read_obj(GuestAddress(16 * u64::from(descriptor))).expect("it is in the window");
        if rest >> 32 & u64::from(WRITE) != 0 {
            let from = usize::try_from(address).unwrap_or(SIZE).min(SIZE);
            may[from..from.saturating_add(rest as u32 as usize).min(SIZE)].fill(true);
        }
    }
    // Used rings, and what is said of notifications in them.
    may[USED as usize..DATA as usize].fill(true);
    may[0x7400..0x7c10].fill(true);
    let mut before = vec![0; SIZE];
    window.read_slice(&mut before, GuestAddress(0)).expect("it is the window");
    for _ in 0..4 {
        if packets.work().is_err() {
            break;
        }
    }
    let mut after = vec![0; SIZE];
    window.read_slice(&mut after, GuestAddress(0)).expect("it is the window");
    // A buffer may lie on the descriptors, which say then whatever a packet says.
    let is_plain = (0..DATA as usize).all(|at| !may[at] || at >= USED as usize);
    for at in 0..SIZE {
        assert!(may[at] || !is_plain || before[at] == after[at], "a byte that the device may not write");
    }
    let mut left = vec![0; 0x2_0000];
    while let Ok(len) = wire.recv(&mut left) {
        assert!((12..=12 + 22 + 65_535).contains(&len), "what leaves is no packet");
    }
}
