use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vm_memory::FileOffset;

const PROTOCOL_FEATURES: u64 = 1 << 30;
const CONFIG: u64 = 1 << 9;
const REPLY_ACK: u64 = 1 << 3;
const MQ: u64 = 1;

/// A configuration with so many queues.
fn configuration(queues: u16) -> Vec<u8> {
    let mut bytes = vec![7; CONFIG_LEN];
    bytes[NUM_QUEUES..NUM_QUEUES + 2].copy_from_slice(&queues.to_le_bytes());
    bytes
}

/// Answers a front end as a program with these features does, until it leaves.
fn answer(mut stream: UnixStream, features: u64, protocol: u64) {
    let mut header = [0; 12];
    while stream.read_exact(&mut header).is_ok() {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let (request, flags) = (word(0), word(4));
        let mut body = vec![0; word(8) as usize];
        stream.read_exact(&mut body).unwrap();
        let reply = match request {
            1 => features.to_le_bytes().to_vec(),
            15 => protocol.to_le_bytes().to_vec(),
            17 => 4u64.to_le_bytes().to_vec(),
            24 => [&body[..12], &configuration(2)].concat(),
            _ if flags & 8 != 0 && protocol & REPLY_ACK != 0 => vec![0; 8],
            _ => continue,
        };
        let head = [request, 5, reply.len() as u32].map(u32::to_le_bytes).concat();
        stream.write_all(&[head, reply].concat()).unwrap();
    }
}

fn ask(features: u64, protocol: u64) -> Result<Peer> {
    ask_of(&Service::Disk, features, protocol)
}

fn ask_of(service: &Service, features: u64, protocol: u64) -> Result<Peer> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::spawn(move || answer(theirs, features, protocol));
    Peer::ask(Frontend::from_stream(ours, MAX_QUEUES.into()), service)
}

fn window() -> Window {
    Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap())
}

const SETUP: QueueSetup =
    QueueSetup { entries: 16, enabled: 1, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };

/// A guest with so many requests, of which so many are answered.
fn asked(requests: u16, answered: u16) -> Window {
    let window = window();
    window.store(requests.to_le(), GuestAddress(SETUP.driver + 2), Ordering::Release).unwrap();
    window.store(answered.to_le(), GuestAddress(SETUP.device + 2), Ordering::Release).unwrap();
    window
}

fn device(path: &Path, peer: Option<Peer>) -> VhostUser {
    VhostUser {
        path: path.into(),
        service: Service::Disk,
        peer,
        features: 0,
        queues: 1,
        config: configuration(1),
        taken_up: false,
        live: None,
    }
}

fn live(window: Window, queues: Vec<(usize, QueueSetup)>) -> Live {
    Live { errors: event().unwrap(), window, queues, relays: Vec::new(), _events: Vec::new() }
}

#[test]
fn a_disks_program_has_rings_of_the_daemons_and_is_asked_for_what_is_not_answered() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::spawn(move || answer(theirs, PROTOCOL_FEATURES, CONFIG));
    let file = vmm_sys_util::tempfile::TempFile::new().unwrap();
    file.as_file().set_len(0x10000).unwrap();
    let backing = FileOffset::new(file.as_file().try_clone().unwrap(), 0);
    let memory = GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), 0x10000, Some(backing))]);
    let window: Window = Arc::new(memory.unwrap());
    window.store(2u16, GuestAddress(SETUP.driver + 2), Ordering::Release).unwrap();
    window.store(1u16, GuestAddress(SETUP.device + 2), Ordering::Release).unwrap();
    window.write_obj([5u16, 6], GuestAddress(SETUP.driver + 4)).unwrap();
    let mut info = Info::default();
    info.queues[0] = SETUP;
    // The daemon and the program came to a guest that has used them before.
    let peer = Peer::ask(Frontend::from_stream(ours, MAX_QUEUES.into()), &Service::Disk).unwrap();
    let mut device = VhostUser { taken_up: true, ..device(Path::new("/none"), None) };
    let taken = device.take_queues(&window, &info).unwrap();
    let peer = device.peer.insert(peer);
    let events = |_| Ok((event().unwrap(), event().unwrap()));
    device.live = Some(set_up(peer, &Service::Disk, taken, &window, &info, events).unwrap());
    assert_eq!(device.live.as_ref().unwrap().relays[0].kicks.read().unwrap(), 1, "it is told of itself");
    device.work(2).unwrap();
    let relayed = &device.live.as_ref().unwrap().relays[0];
    let rings = relayed.relay.for_program();
    assert_eq!((rings.desc_table_addr, rings.avail_ring_addr), (SETUP.descriptors, 0x10000));
    assert_eq!(relayed.kicks_program.read().unwrap(), 1, "the program is told of what was not answered");
    assert!(relayed.kicks.read().is_err() && relayed.calls.read().is_ok());
    relayed.calls_of_program.write(1).unwrap();
    device.work(3).unwrap();
    assert!(device.live.unwrap().relays[0].calls_of_program.read().is_err(), "it has been heard");
}

#[test]
fn a_back_end_says_what_it_has() {
    let peer = ask(PROTOCOL_FEATURES | 1 << 9, CONFIG | REPLY_ACK | MQ).unwrap();
    assert_eq!((peer.features, peer.queues), (PROTOCOL_FEATURES | 1 << 9, 4));
    assert_eq!(peer.config, configuration(2));
    assert_eq!(ask(PROTOCOL_FEATURES, CONFIG).unwrap().queues, 1);
}

#[test]
fn a_back_end_without_a_configuration_is_refused() {
    let error = ask(0, 0).err().unwrap().to_string();
    assert!(error.contains("knows no protocol features"), "{error}");
    let error = ask(PROTOCOL_FEATURES, MQ).err().unwrap().to_string();
    assert!(error.contains("does not tell its configuration"), "{error}");
}

#[test]
fn a_file_system_has_the_tag_of_the_configuration_and_two_queues() {
    let mut info = Info::default();
    info.config[..3].copy_from_slice(b"fs0");
    let service = Service::files(&info);
    let peer = ask_of(&service, PROTOCOL_FEATURES | 1 << 29 | 1, MQ).unwrap();
    assert_eq!((peer.config.len(), &peer.config[..4]), (40, &b"fs0\0"[..]));
    // What the device type would have of features needs more of a configuration.
    assert_eq!(offered(&service, peer.features, &peer.config, peer.queues), (1 << 29, 2));
    let error = ask_of(&service, PROTOCOL_FEATURES, CONFIG).err().unwrap().to_string();
    assert!(error.contains("a file system has 2"), "{error}");
}

#[test]
fn what_the_transport_does_not_carry_is_offered_to_nobody() {
    let flush = 1 << 9 | RELAYED;
    let all = flush | WITHHELD | PROTOCOL_FEATURES | 1 << VIRTIO_BLK_F_MQ;
    assert_eq!(offered(&Service::Disk, all, &configuration(4), 8), (flush | 1 << VIRTIO_BLK_F_MQ, 4));
    // More queues than it serves, than there can be, or none.
    assert_eq!(offered(&Service::Disk, all, &configuration(9), 8), (flush, 1));
    assert_eq!(offered(&Service::Disk, all, &configuration(MAX_QUEUES as u16 + 1), 128), (flush, 1));
    assert_eq!(offered(&Service::Disk, all, &configuration(0), 8), (flush, 1));
    assert_eq!(offered(&Service::Disk, flush, &configuration(4), 8), (flush, 1));
}

#[test]
fn a_back_end_is_told_nothing_of_the_platform() {
    let flush = 1 << 9;
    let platform = 1 << VIRTIO_F_ACCESS_PLATFORM;
    let accepted =
        |service, guests| accepted(service, guests | platform | 1 << 5, flush | platform | RELAYED);
    assert_eq!(accepted(&Service::Disk, flush), flush | PROTOCOL_FEATURES);
    // Who relays a queue has indices of its own.
    assert_eq!(accepted(&Service::Disk, flush | RELAYED), flush | PROTOCOL_FEATURES);
    let files = Service::Files(Vec::new());
    assert_eq!(accepted(&files, flush | RELAYED), flush | RELAYED | PROTOCOL_FEATURES);
}

#[test]
fn a_queue_is_taken_up_only_if_all_its_requests_are_answered() {
    assert_eq!(beginning(&SETUP, true, &asked(9, 9)).unwrap(), 9);
    assert_eq!(beginning(&SETUP, false, &asked(9, 7)).unwrap(), 7);
    assert_eq!(beginning(&SETUP, true, &asked(9, 7)).unwrap_err().to_string(), LOST);
}

#[test]
fn a_queue_beyond_the_window_reaches_no_back_end() {
    let window = window();
    for setup in [
        QueueSetup { descriptors: 0xff10, ..SETUP },
        QueueSetup { driver: 0xfffe, ..SETUP },
        QueueSetup { device: 0xffff_ffff_ffff_fffc, ..SETUP },
        QueueSetup { descriptors: 0x1001, ..SETUP },
        QueueSetup { entries: 0, ..SETUP },
        QueueSetup { entries: 12, ..SETUP },
        QueueSetup { entries: 512, ..SETUP },
    ] {
        assert!(beginning(&setup, false, &window).is_err(), "{setup:?}");
    }
    assert!(beginning(&SETUP, false, &window).is_ok());
}

#[test]
fn a_lost_back_end_is_waited_for_unless_requests_to_files_were_under_way() {
    let files = Service::Files(Vec::new());
    for (service, answered, waits) in
        [(&files, 9, true), (&files, 8, false), (&Service::Disk, 9, true), (&Service::Disk, 8, true)]
    {
        let mut device = VhostUser { service: service.clone(), ..device(Path::new("/none"), None) };
        device.live = Some(live(asked(9, answered), vec![(0, SETUP)]));
        let error = device.work(0).unwrap_err();
        assert_eq!(error.is::<Gone>(), waits, "{error}");
    }
}

#[test]
fn the_window_is_told_by_the_guests_addresses() {
    let file = vmm_sys_util::tempfile::TempFile::new().unwrap();
    file.as_file().set_len(0x2000).unwrap();
    let backing = FileOffset::new(file.as_file().try_clone().unwrap(), 0);
    let memory = GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), 0x2000, Some(backing))]);
    let regions = regions(&Arc::new(memory.unwrap())).unwrap();
    assert_eq!((regions[0].userspace_addr, regions[0].memory_size, regions[0].mmap_offset), (0, 0x2000, 0));
}

#[test]
fn a_reset_waits_until_the_back_end_has_finished_its_requests() {
    let folder = std::env::temp_dir().join(format!("sluice-vhost-user-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let finished = Arc::new(AtomicBool::new(false));
    let program = std::thread::spawn({
        let finished = Arc::clone(&finished);
        move || {
            answer(listener.accept().unwrap().0, PROTOCOL_FEATURES, CONFIG);
            std::thread::sleep(Duration::from_millis(300));
            finished.store(true, Ordering::Release);
            answer(listener.accept().unwrap().0, PROTOCOL_FEATURES, CONFIG);
        }
    });
    let mut device = device(&path, Some(Peer::connect(&path, &Service::Disk).unwrap()));
    device.live = Some(live(window(), Vec::new()));
    device.stop();
    assert!(finished.load(Ordering::Acquire) && device.peer.is_some());
    drop(device);
    program.join().unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_dir(&folder).unwrap();
}
