use super::*;
use proptest::prelude::*;
use sluice_backend::function::QueueSetup;
use sluice_backend::request::Broken;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use vm_memory::GuestAddress;

const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;
const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

/// Where a guest has its things.
const WINDOW: usize = 1 << 20;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x6000;
const HEADER: u64 = 0x8000;
const ANSWER: u64 = 0x9000;
const DATA: u64 = 0x1_0000;
const ENTRIES: u16 = 16;

/// Sectors of the test's disk.
const SECTORS: u64 = 256;

/// A file that ends with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A guest, a disk, and what serves it.
struct Bench {
    window: Window,
    service: Service,
    queue: Queue,
    file: Scratch,
    told: u32,
}

fn setup() -> QueueSetup {
    QueueSetup {
        entries: ENTRIES.into(),
        enabled: 1,
        descriptors: DESCRIPTORS,
        driver: AVAILABLE,
        device: USED,
    }
}

impl Bench {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sluice-backend-{}-{number}", std::process::id()));
        let content: Vec<u8> = (0..SECTORS * SECTOR).map(|byte| (byte / SECTOR) as u8).collect();
        std::fs::write(&path, content).unwrap();
        let window = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), WINDOW)]).unwrap());
        Self {
            service: service(&path),
            queue: take_up(&setup(), QUEUE_SIZE, false, &window).unwrap(),
            window,
            file: Scratch(path),
            told: 0,
        }
    }

    fn descriptor(&self, place: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.descriptor_in(DESCRIPTORS, place, address, len, flags, next);
    }

    fn descriptor_in(&self, table: u64, place: u16, address: u64, len: u32, flags: u16, next: u16) {
        let at = GuestAddress(table + u64::from(place) * 16);
        let words = [address, u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48];
        self.window.write_obj(words, at).unwrap();
    }

    /// Makes a chain available.
    fn offer(&self, head: u16) {
        let index: u16 = self.window.read_obj(GuestAddress(AVAILABLE + 2)).unwrap();
        self.window.write_obj(head, GuestAddress(AVAILABLE + 4 + u64::from(index % ENTRIES) * 2)).unwrap();
        self.window.write_obj(index.wrapping_add(1), GuestAddress(AVAILABLE + 2)).unwrap();
    }

    fn header(&self, kind: u32, sector: u64) {
        self.window.write_obj(kind, GuestAddress(HEADER)).unwrap();
        self.window.write_obj(sector, GuestAddress(HEADER + 8)).unwrap();
        self.window.write_obj(0xeeu8, GuestAddress(ANSWER)).unwrap();
    }

    /// A request with one piece of data; its flags say which way that goes.
    fn ask(&mut self, kind: u32, sector: u64, data: (u64, u32, u16)) -> (u8, u32) {
        self.header(kind, sector);
        self.descriptor(0, HEADER, 16, NEXT, 1);
        self.descriptor(1, data.0, data.1, NEXT | data.2, 2);
        self.descriptor(2, ANSWER, 1, WRITE, 0);
        self.offer(0);
        self.serve().unwrap();
        self.answer()
    }

    fn serve(&mut self) -> Result<bool> {
        let mut pace = Pace::new(Duration::ZERO);
        serve_queue(&mut self.queue, &self.window, &mut self.service, &mut pace, None, || {
            self.told += 1;
            Ok(())
        })
    }

    fn used(&self) -> u16 {
        self.window.read_obj(GuestAddress(USED + 2)).unwrap()
    }

    /// The status and the length of the last answer.
    fn answer(&self) -> (u8, u32) {
        let last = u64::from(self.used().wrapping_sub(1) % ENTRIES);
        let len = self.window.read_obj(GuestAddress(USED + 4 + last * 8 + 4)).unwrap();
        (self.window.read_obj(GuestAddress(ANSWER)).unwrap(), len)
    }

    fn read_data<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.window.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    fn on_disk(&self, sector: u64) -> Vec<u8> {
        let at = (sector * SECTOR) as usize;
        std::fs::read(&self.file.0).unwrap()[at..at + SECTOR as usize].to_vec()
    }

    fn broken(&mut self) -> Broken {
        *self.serve().unwrap_err().downcast_ref().unwrap()
    }
}

fn service(path: &Path) -> Service {
    let accepted = bits(&[VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]);
    Service {
        disk: Disk::open(path).unwrap(),
        name: *b"guest.disk\0\0\0\0\0\0\0\0\0\0",
        accepted,
        failed: false,
    }
}

const OK: u8 = VIRTIO_BLK_S_OK as u8;
const FAILED: u8 = VIRTIO_BLK_S_IOERR as u8;
const UNKNOWN: u8 = VIRTIO_BLK_S_UNSUPP as u8;

#[test]
fn what_is_written_is_on_the_disk_and_can_be_read() {
    let mut bench = Bench::new();
    bench.window.write_slice(&[0x5a; 1024], GuestAddress(DATA)).unwrap();
    assert_eq!(bench.ask(VIRTIO_BLK_T_OUT, 7, (DATA, 1024, 0)), (OK, 1));
    assert_eq!(bench.on_disk(6), [6; 512]);
    assert_eq!([bench.on_disk(7), bench.on_disk(8)], [vec![0x5a; 512], vec![0x5a; 512]]);
    assert_eq!(bench.on_disk(9), [9; 512]);
    assert_eq!(bench.ask(VIRTIO_BLK_T_IN, 8, (DATA + 4096, 1024, WRITE)), (OK, 1025));
    assert_eq!(bench.read_data::<512>(DATA + 4096), [0x5a; 512]);
    assert_eq!(bench.read_data::<512>(DATA + 4608), [9; 512]);
    assert_eq!(bench.ask(VIRTIO_BLK_T_FLUSH, 0, (DATA, 0, 0)), (OK, 1));
    assert_eq!(bench.ask(VIRTIO_BLK_T_GET_ID, 0, (DATA, 20, WRITE)), (OK, 21));
    assert_eq!(&bench.read_data::<20>(DATA), b"guest.disk\0\0\0\0\0\0\0\0\0\0");
    assert_eq!((bench.used(), bench.told), (5 - 1, 4));
}

#[test]
fn data_may_be_anywhere_and_in_parts_of_any_length() {
    let mut bench = Bench::new();
    for (way, kind) in [(0, VIRTIO_BLK_T_OUT), (WRITE, VIRTIO_BLK_T_IN)] {
        let pattern: [u8; 1024] = std::array::from_fn(|byte| (byte % 251) as u8);
        if way == 0 {
            bench.window.write_slice(&pattern[..700], GuestAddress(DATA + 3)).unwrap();
            bench.window.write_slice(&pattern[700..], GuestAddress(DATA + 2001)).unwrap();
        } else {
            bench.window.write_slice(&[0; 4096], GuestAddress(DATA)).unwrap();
        }
        bench.header(kind, 100);
        // The header in two parts, too.
        bench.descriptor(4, HEADER, 5, NEXT, 5);
        bench.descriptor(5, HEADER + 5, 11, NEXT, 6);
        bench.descriptor(6, DATA + 3, 700, NEXT | way, 7);
        bench.descriptor(7, DATA + 2001, 324, NEXT | way, 8);
        bench.descriptor(8, ANSWER, 1, WRITE, 0);
        bench.offer(4);
        bench.serve().unwrap();
        assert_eq!(bench.answer().0, OK);
        assert_eq!([bench.on_disk(100), bench.on_disk(101)].concat(), pattern);
        assert_eq!(bench.read_data::<700>(DATA + 3), pattern[..700]);
        assert_eq!(bench.read_data::<324>(DATA + 2001), pattern[700..]);
    }
}

#[test]
fn requests_that_make_no_sense_fail_alone() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(VIRTIO_BLK_T_OUT, SECTORS - 1, (DATA, 1024, 0)).0, FAILED, "beyond the end");
    assert_eq!(bench.ask(VIRTIO_BLK_T_IN, u64::MAX, (DATA, 512, WRITE)), (FAILED, 513), "far beyond the end");
    assert_eq!(bench.ask(VIRTIO_BLK_T_IN, 0, (DATA, 100, WRITE)).0, FAILED, "not in sectors");
    assert_eq!(bench.ask(VIRTIO_BLK_T_OUT, 0, (DATA, 512, WRITE)).0, FAILED, "the wrong way");
    assert_eq!(bench.ask(VIRTIO_BLK_T_IN, 0, (DATA, 512, 0)).0, FAILED, "the wrong way");
    assert_eq!(bench.ask(4711, 0, (DATA, 512, WRITE)).0, UNKNOWN);
    bench.service.disk.read_only = true;
    assert_eq!(bench.ask(VIRTIO_BLK_T_OUT, 0, (DATA, 512, 0)).0, FAILED, "a disk to be read only");
    assert_eq!(bench.ask(VIRTIO_BLK_T_IN, 3, (DATA, 512, WRITE)), (OK, 513), "the device goes on");
    assert_eq!(bench.on_disk(0), [0; 512]);
}

#[test]
fn parts_of_the_disk_are_discarded_and_zeroed() {
    let mut bench = Bench::new();
    let mut clear = |kind, sector: u64, count: u32, flags: u32, len| {
        bench.window.write_obj(sector, GuestAddress(DATA)).unwrap();
        bench.window.write_obj([count, flags], GuestAddress(DATA + 8)).unwrap();
        (bench.ask(kind, 0, (DATA, len, 0)).0, [9, 10, 17, 18].map(|sector| bench.on_disk(sector)[0]))
    };
    let zeroes = VIRTIO_BLK_T_WRITE_ZEROES;
    for flags in [0, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP] {
        assert_eq!(clear(zeroes, 10, 8, flags, 16), (OK, [9, 0, 0, 18]));
    }
    assert_eq!(clear(VIRTIO_BLK_T_DISCARD, 17, 1, 0, 16).0, OK);
    assert_eq!(clear(VIRTIO_BLK_T_DISCARD, 18, 1, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP, 16).0, UNKNOWN);
    assert_eq!(clear(zeroes, 18, 1, 2, 16).0, UNKNOWN);
    assert_eq!(clear(zeroes, SECTORS, 1, 0, 16).0, FAILED);
    assert_eq!(clear(zeroes, 18, u32::MAX, 0, 16).0, FAILED);
    assert_eq!(clear(zeroes, 18, 1, 0, 15).0, FAILED);
    assert_eq!(clear(zeroes, 18, 1, 0, 32).0, FAILED, "more parts than were agreed on");
    bench.service.accepted = 0;
    assert_eq!(bench.ask(zeroes, 0, (DATA, 16, 0)).0, UNKNOWN, "what was not agreed on");
}

#[test]
fn a_daemon_goes_on_where_the_last_one_stopped() {
    let mut bench = Bench::new();
    for sector in [1, 2] {
        bench.window.write_slice(&[0xa0 + sector as u8; 512], GuestAddress(DATA)).unwrap();
        assert_eq!(bench.ask(VIRTIO_BLK_T_OUT, sector, (DATA, 512, 0)).0, OK);
    }
    // The third is available and not answered when the daemon dies.
    bench.window.write_slice(&[0xa3; 512], GuestAddress(DATA)).unwrap();
    bench.header(VIRTIO_BLK_T_OUT, 3);
    bench.offer(0);
    bench.queue = take_up(&setup(), QUEUE_SIZE, false, &bench.window).unwrap();
    bench.serve().unwrap();
    assert_eq!((bench.used(), bench.answer().0), (3, OK));
    assert_eq!([1, 2, 3, 4].map(|sector| bench.on_disk(sector)[0]), [0xa1, 0xa2, 0xa3, 4]);
}

#[test]
fn a_queue_that_leads_out_of_the_window_is_not_taken() {
    let bench = Bench::new();
    let end = WINDOW as u64;
    for wrong in [
        QueueSetup { enabled: 0, ..setup() },
        QueueSetup { entries: 0, ..setup() },
        QueueSetup { entries: 3, ..setup() },
        QueueSetup { entries: 1 << 16, ..setup() },
        QueueSetup { descriptors: end, ..setup() },
        QueueSetup { descriptors: 8, ..setup() },
        QueueSetup { driver: end - 2, ..setup() },
        QueueSetup { device: u64::MAX - 3, ..setup() },
    ] {
        assert!(take_up(&wrong, QUEUE_SIZE, false, &bench.window).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_chain_that_breaks_the_rules_stops_the_device() {
    type Chain = [(u64, u32, u16, u16)];
    let head = (HEADER, 16, NEXT, 1);
    let cases: [(&Chain, Broken); 9] = [
        (&[(HEADER, 16, NEXT, 0)], Broken::Chain),
        (&[head, (DATA, 512, NEXT, ENTRIES)], Broken::Chain),
        (&[head, (DATA, 512, NEXT | WRITE, 0)], Broken::Order),
        (&[head, (ANSWER, 1, NEXT | WRITE, 2), (DATA, 512, 0, 0)], Broken::Order),
        (&[(HEADER, 15, NEXT, 1), (ANSWER, 1, WRITE, 0)], Broken::Header),
        (&[(ANSWER, 1, WRITE, 0)], Broken::Header),
        (&[(HEADER, 512, 0, 0)], Broken::Answer),
        (&[head, (ANSWER, 0, WRITE, 0)], Broken::Answer),
        (&[head, (WINDOW as u64 - 511, 512, WRITE, 0)], Broken::Address),
    ];
    for (chain, reason) in cases {
        let mut bench = Bench::new();
        for (place, (address, len, flags, next)) in (0..).zip(chain) {
            bench.descriptor(place, *address, *len, *flags, *next);
        }
        bench.offer(0);
        assert_eq!(bench.broken(), reason, "{chain:x?}");
        assert_eq!((bench.used(), bench.told), (0, 0));
    }
}

#[test]
fn an_indirect_table_is_as_long_as_was_agreed_on() {
    let table = DATA;
    for (parts, broken) in [(MAX_SEGMENTS as u16, false), (MAX_SEGMENTS as u16 + 1, true)] {
        let mut bench = Bench::new();
        bench.header(VIRTIO_BLK_T_IN, 0);
        bench.descriptor_in(table, 0, HEADER, 16, NEXT, 1);
        for part in 1..=parts {
            let address = DATA + 0x1_0000 + u64::from(part) * 512;
            bench.descriptor_in(table, part, address, 512, NEXT | WRITE, part + 1);
        }
        bench.descriptor_in(table, parts + 1, ANSWER, 1, WRITE, 0);
        bench.descriptor(0, table, (u32::from(parts) + 2) * 16, INDIRECT, 0);
        bench.offer(0);
        if broken {
            assert_eq!(bench.broken(), Broken::Chain);
        } else {
            bench.serve().unwrap();
            assert_eq!(bench.answer(), (OK, u32::from(parts) * 512 + 1));
        }
    }
}

#[test]
fn a_guest_that_never_stops_asking_does_not_keep_the_device_from_a_reset() {
    let mut bench = Bench::new();
    bench.header(VIRTIO_BLK_T_IN, 0);
    bench.descriptor(0, HEADER, 16, NEXT, 1);
    bench.descriptor(1, ANSWER, 1, WRITE, 0);
    bench.offer(0);
    let window = Arc::clone(&bench.window);
    let mut pace = Pace::new(Duration::ZERO);
    let more = serve_queue(&mut bench.queue, &window, &mut bench.service, &mut pace, None, || {
        let index: u16 = window.read_obj(GuestAddress(AVAILABLE + 2)).unwrap();
        window.write_obj(index.wrapping_add(1), GuestAddress(AVAILABLE + 2)).unwrap();
        Ok(())
    });
    assert!(more.unwrap());
    assert_eq!(u32::from(bench.used()), TURN);
}

#[test]
fn many_requests_are_told_of_at_once() {
    let mut bench = Bench::new();
    bench.header(VIRTIO_BLK_T_FLUSH, 0);
    bench.descriptor(0, HEADER, 16, NEXT, 1);
    bench.descriptor(1, ANSWER, 1, WRITE, 0);
    for _ in 0..ENTRIES {
        bench.offer(0);
    }
    let begin = Instant::now();
    bench.serve().unwrap();
    assert_eq!(bench.used(), ENTRIES);
    assert!(bench.told == 1 || begin.elapsed() > UNSAID_TIME, "{} times", bench.told);
}

#[test]
fn requests_that_are_done_at_once_are_answered_each_for_itself() {
    for at_once in [true, false] {
        let mut bench = Bench::new();
        bench.service.accepted = bits(&[VIRTIO_BLK_F_FLUSH]);
        if !at_once {
            bench.service.disk.one_by_one();
        }
        bench.window.write_slice(&[0xaa; 1024], GuestAddress(DATA)).unwrap();
        bench.window.write_slice(&[0xbb; 512], GuestAddress(DATA + 0x1000)).unwrap();
        let beyond = SECTORS - 1;
        let requests: [(u32, u64, u64, u32, u16); 5] = [
            (VIRTIO_BLK_T_OUT, 8, DATA, 1024, 0),
            (VIRTIO_BLK_T_OUT, 20, DATA + 0x1000, 512, 0),
            (VIRTIO_BLK_T_IN, beyond, DATA + 0x2000, 1024, WRITE),
            (VIRTIO_BLK_T_IN, 40, DATA + 0x3000, 512, WRITE),
            (VIRTIO_BLK_T_IN, 41, DATA + 0x4000, 512, WRITE),
        ];
        for (number, (kind, sector, data, len, flags)) in (0u16..).zip(requests) {
            let (header, answer) = (HEADER + u64::from(number) * 16, ANSWER + u64::from(number));
            bench.window.write_obj(kind, GuestAddress(header)).unwrap();
            bench.window.write_obj(sector, GuestAddress(header + 8)).unwrap();
            bench.window.write_obj(0xeeu8, GuestAddress(answer)).unwrap();
            bench.descriptor(number * 3, header, 16, NEXT, number * 3 + 1);
            bench.descriptor(number * 3 + 1, data, len, NEXT | flags, number * 3 + 2);
            bench.descriptor(number * 3 + 2, answer, 1, WRITE, 0);
            bench.offer(number * 3);
        }
        bench.serve().unwrap();
        let answers: [u8; 5] = bench.read_data(ANSWER);
        let failed = VIRTIO_BLK_S_IOERR as u8;
        assert_eq!((bench.used(), answers), (5, [OK, OK, failed, OK, OK]));
        // In their order, with the bytes that each wrote to the guest.
        let used: [[u32; 2]; 5] = std::array::from_fn(|place| {
            bench.window.read_obj(GuestAddress(USED + 4 + place as u64 * 8)).unwrap()
        });
        assert_eq!(used, [[0, 1], [3, 1], [6, 1025], [9, 513], [12, 513]]);
        assert_eq!(
            (bench.on_disk(8), bench.on_disk(9), bench.on_disk(20)),
            (vec![0xaa; 512], vec![0xaa; 512], vec![0xbb; 512])
        );
        assert_eq!(bench.read_data::<2>(DATA + 0x3000), [40, 40]);
        assert_eq!(bench.read_data::<2>(DATA + 0x4000), [41, 41]);
    }
}

#[test]
fn what_came_before_a_broken_chain_is_answered() {
    let mut bench = Bench::new();
    bench.header(VIRTIO_BLK_T_IN, 5);
    bench.descriptor(0, HEADER, 16, NEXT, 1);
    bench.descriptor(1, DATA, 512, NEXT | WRITE, 2);
    bench.descriptor(2, ANSWER, 1, WRITE, 0);
    bench.descriptor(3, HEADER, 16, 0, 0);
    bench.offer(0);
    bench.offer(3);
    assert_eq!(bench.broken(), Broken::Answer);
    assert_eq!((bench.used(), bench.answer().0), (1, OK));
}

#[test]
fn a_disk_that_grows_can_be_used_to_its_new_end() {
    let mut bench = Bench::new();
    assert!(!bench.service.disk.measure().unwrap());
    assert_eq!(bench.ask(VIRTIO_BLK_T_OUT, SECTORS, (DATA, 512, 0)).0, FAILED);
    let file = std::fs::OpenOptions::new().write(true).open(&bench.file.0).unwrap();
    file.set_len((SECTORS + 8) * SECTOR + 511).unwrap();
    assert!(bench.service.disk.measure().unwrap());
    assert_eq!(configuration(&bench.service.disk)[..8], (SECTORS + 8).to_le_bytes());
    assert_eq!(bench.ask(VIRTIO_BLK_T_OUT, SECTORS, (DATA, 512, 0)).0, OK);
    assert_eq!(bench.ask(VIRTIO_BLK_T_OUT, SECTORS + 8, (DATA, 512, 0)).0, FAILED);
}

#[test]
fn a_disk_is_served_to_one_guest_only() {
    let bench = Bench::new();
    let error = Disk::open(&bench.file.0).err().unwrap();
    assert!(error.to_string().contains("is in use"), "{error:#}");
}

#[test]
fn a_queue_is_looked_at_only_while_that_pays() {
    let mut pace = Pace::new(Duration::from_secs(60));
    let mut looks = 0;
    let third = |looks: &mut u32| {
        *looks += 1;
        Ok(*looks == 3)
    };
    assert!(pace.look(|| third(&mut looks)).unwrap());
    pace.now = Duration::from_micros(1);
    assert!(!pace.look(|| Ok(false)).unwrap());
    assert!(!pace.look(|| unreachable!("it did not pay")).unwrap());
    pace.was_told();
    assert!(!pace.look(|| unreachable!("nobody was asked to tell")).unwrap());
    pace.asks();
    pace.was_told();
    assert!(pace.look(|| Ok(true)).unwrap(), "a notification came at once");
    pace = Pace { now: Duration::ZERO, ..Pace::new(Duration::from_millis(1)) };
    pace.asks();
    std::thread::sleep(Duration::from_millis(3));
    pace.was_told();
    assert!(!pace.look(|| unreachable!("it came late")).unwrap());
}

/// A descriptor that is often nearly right.
fn descriptors() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let address = prop_oneof![
        Just(HEADER),
        Just(ANSWER),
        Just(DESCRIPTORS),
        Just(USED),
        0..WINDOW as u64 + 4096,
        any::<u64>()
    ];
    let len = prop_oneof![Just(16u32), Just(1), Just(512), 0..8192u32, any::<u32>()];
    let flags = prop_oneof![Just(NEXT), Just(NEXT | WRITE), Just(WRITE), Just(INDIRECT), any::<u16>()];
    (address, len, flags, prop_oneof![0..ENTRIES, any::<u16>()])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever a guest writes, the daemon answers or stops, and what it did not answer it did not count.
    #[test]
    fn no_guest_makes_the_daemon_fail(
        table in prop::collection::vec(descriptors(), ENTRIES as usize),
        heads in prop::collection::vec(prop_oneof![0..ENTRIES, any::<u16>()], ENTRIES as usize),
        index in prop_oneof![0..=ENTRIES, any::<u16>()],
        kind in prop_oneof![0..14u32, any::<u32>()],
        sector in prop_oneof![0..SECTORS + 2, any::<u64>()],
        event_idx in any::<bool>(),
    ) {
        let mut bench = Bench::new();
        bench.header(kind, sector);
        for (place, (address, len, flags, next)) in (0..).zip(table) {
            bench.descriptor(place, address, len, flags, next);
        }
        for (place, head) in (0u64..).zip(heads) {
            bench.window.write_obj(head, GuestAddress(AVAILABLE + 4 + place * 2)).unwrap();
        }
        bench.window.write_obj(index, GuestAddress(AVAILABLE + 2)).unwrap();
        bench.queue.set_event_idx(event_idx);
        let end = bench.serve();
        prop_assert!(u32::from(bench.queue.next_used()) <= TURN);
        if let Ok(more) = end {
            let next = bench.queue.next_avail();
            prop_assert_eq!(bench.queue.next_used(), next);
            prop_assert!(more || bench.queue.avail_idx(&*bench.window, Ordering::Acquire).unwrap().0 == next);
        }
    }
}
