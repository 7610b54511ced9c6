extern crate std;

use crate::{Changes, Device, Issues, Kind, Signal, Status, features, pci};
use proptest::prelude::*;
use sluice_hypercall::backend as back;
use sluice_platform::pci::PciBus;
use std::vec::Vec;

const FLUSH: u64 = 1 << 9;
const EVENT_IDX: u64 = 1 << 29;
const COMMON: u32 = pci::COMMON;

/// Offers a disk of one queue with 128 entries and these features.
fn offer(device: &mut Device, features: u64) -> u32 {
    for (register, value) in [
        (back::DEVICE_FEATURES, features as u32),
        (back::DEVICE_FEATURES + 4, (features >> 32) as u32),
        (back::QUEUES, 1),
        (back::QUEUE_SIZE, 128),
        (back::CONFIG_LEN, 60),
    ] {
        assert_eq!(device.backend_write(register, 4, value), Changes::empty());
    }
    device.backend_write(back::CONTROL, 4, back::CONTROL_OFFER);
    device.backend_read(7, back::CONTROL, 4)
}

fn disk() -> Device {
    let mut device = Device::new(Kind::Block, "alice.disk0", "/dev/sda", &[]);
    device.attach_guest(Issues::All, [(0, 0xa_0000), (0x10_0000, 0x70_0000)].into_iter());
    device.attach_backend();
    device
}

fn status(device: &mut Device) -> u8 {
    device.read(COMMON + 0x14, 1).0 as u8
}

fn set_status(device: &mut Device, value: Status) -> Changes {
    device.write(COMMON + 0x14, 1, value.bits().into())
}

/// What Linux does (drivers/virtio/virtio_pci_modern.c), until the driver accepts `accepted`. Returns whether it was taken.
fn negotiate(device: &mut Device, accepted: u64) -> bool {
    device.write(COMMON + 0x14, 1, 0);
    assert_eq!(status(device), 0);
    set_status(device, Status::ACKNOWLEDGE);
    set_status(device, Status::ACKNOWLEDGE | Status::DRIVER);
    for half in 0..2 {
        device.write(COMMON + 0x08, 4, half);
        device.write(COMMON + 0x0c, 4, (accepted >> (32 * half)) as u32);
    }
    set_status(device, Status::ACKNOWLEDGE | Status::DRIVER | Status::FEATURES_OK);
    status(device) & Status::FEATURES_OK.bits() != 0
}

/// The rest of it: one queue, message 1.
fn start(device: &mut Device) {
    device.write(COMMON + 0x16, 2, 0);
    assert_eq!(device.read(COMMON + 0x18, 2).0, 128);
    assert_eq!(device.read(COMMON + 0x1c, 2).0, 0);
    for (register, value) in
        [(0x20, 0x1_0000), (0x24, 1), (0x28, 0x2_0000), (0x2c, 0), (0x30, 0x3_0000), (0x34, 0)]
    {
        device.write(COMMON + register, 4, value);
    }
    device.write(COMMON + 0x1a, 2, 1);
    assert_eq!(device.read(COMMON + 0x1a, 2).0, 1);
    device.write(COMMON + 0x1c, 2, 1);
    let all = Status::ACKNOWLEDGE | Status::DRIVER | Status::FEATURES_OK | Status::DRIVER_OK;
    assert_eq!(set_status(device, all), Changes::BACKEND);
}

fn started() -> Device {
    let mut device = disk();
    assert_eq!(offer(&mut device, FLUSH | EVENT_IDX), 0);
    assert!(negotiate(&mut device, features::VERSION_1 | FLUSH));
    start(&mut device);
    device
}

fn queue_register(device: &Device, register: u32) -> u32 {
    device.backend_read(7, back::QUEUE + register, 4)
}

#[test]
fn a_driver_and_a_back_end_meet() {
    let mut device = started();
    assert_eq!(device.backend_read(7, back::MAGIC, 4), back::MAGIC_VALUE);
    assert_eq!(device.backend_read(7, back::SLOT, 4), 7);
    assert_eq!(device.backend_read(7, back::NAME + 6, 1), u32::from(b'd'));
    assert_eq!(device.backend_read(7, back::STATE, 4), back::STATE_OFFERED | back::STATE_PEER);
    assert_eq!(device.backend_read(7, back::STATUS, 4), 15);
    assert_eq!(device.backend_read(7, back::DRIVER_FEATURES, 4), FLUSH as u32);
    assert_eq!(device.backend_read(7, back::DRIVER_FEATURES + 4, 4), 1);
    let queue: Vec<u32> = (0..8).map(|word| queue_register(&device, word * 4)).collect();
    assert_eq!(queue, [128, 1, 0x1_0000, 1, 0x2_0000, 0, 0x3_0000, 0]);
    assert_eq!(device.backend_read(7, back::RANGES, 4), 2);
    assert_eq!(device.backend_read(7, back::RANGE + 16, 4), 0x10_0000);
    assert!(device.is_kick(0) && !device.is_kick(1));
    assert_eq!(device.used(0, true), Signal::Message(1));
    assert_eq!(device.used(1, true), Signal::None, "the driver does not use it");
}

#[test]
fn virtio_2_2_the_driver_gets_no_features_that_nobody_offers() {
    let mut device = disk();
    offer(&mut device, FLUSH | features::ACCESS_PLATFORM | 1 << 34);
    let shown: Vec<u32> = (0..3)
        .map(|half| {
            device.write(COMMON, 4, half);
            device.read(COMMON + 4, 4).0
        })
        .collect();
    assert_eq!(shown, [FLUSH as u32, 1, 0], "the transport's own features are not a back end's to offer");
    assert!(!negotiate(&mut device, features::VERSION_1 | FLUSH | EVENT_IDX));
    assert!(!negotiate(&mut device, FLUSH), "a driver from before the standard");
    assert!(negotiate(&mut device, features::VERSION_1 | FLUSH));
    device.write(COMMON + 0x08, 4, 0);
    device.write(COMMON + 0x0c, 4, EVENT_IDX as u32);
    assert_eq!(device.read(COMMON + 0x0c, 4).0, FLUSH as u32, "they are settled");
}

#[test]
fn a_guest_that_issues_no_memory_is_refused() {
    let mut device = Device::new(Kind::Block, "alice.disk0", "", &[]);
    device.attach_guest(Issues::Nothing, core::iter::empty());
    device.attach_backend();
    offer(&mut device, FLUSH);
    assert!(!negotiate(&mut device, features::VERSION_1));
    let changes = set_status(&mut device, Status::ACKNOWLEDGE | Status::DRIVER | Status::FEATURES_OK);
    assert_eq!(changes, Changes::REFUSED);
    set_status(&mut device, Status::all());
    assert!(!device.status().contains(Status::DRIVER_OK));
}

#[test]
fn virtio_6_1_a_guest_that_issues_pages_has_a_driver_that_knows_and_says_so_first() {
    const DRIVER: u64 = features::VERSION_1 | features::ACCESS_PLATFORM;
    let mut device = Device::new(Kind::Block, "alice.disk0", "", &[]);
    device.attach_guest(Issues::Pages, [(0, 0x1000)].into_iter());
    device.attach_backend();
    offer(&mut device, FLUSH);
    assert!(!negotiate(&mut device, DRIVER), "nothing is issued yet");
    assert!(device.issue_pages());
    assert!(!negotiate(&mut device, features::VERSION_1), "a driver that gives guest-physical addresses");
    assert!(negotiate(&mut device, DRIVER));
    assert_eq!(device.backend_read(7, back::DRIVER_FEATURES + 4, 4), 1, "no back end is bothered with it");
    offer(&mut device, FLUSH);
    assert_eq!(device.backend_read(7, back::CONTROL, 4), 0, "the next one can go on");
    // Another guest has not said so.
    device.detach_guest();
    device.attach_guest(Issues::Pages, [(0, 0x1000)].into_iter());
    assert!(!negotiate(&mut device, DRIVER));
    device.detach_guest();
    device.attach_guest(Issues::All, [(0, 0x1000)].into_iter());
    assert!(!device.issue_pages());
}

#[test]
fn virtio_2_4_a_reset_is_over_when_the_back_end_has_let_go() {
    let mut device = started();
    assert_eq!(device.write(COMMON + 0x14, 1, 0), Changes::BACKEND);
    assert_ne!(status(&mut device), 0);
    assert_eq!(queue_register(&device, back::QUEUE_ENABLED), 0);
    assert_eq!(device.used(0, true), Signal::None);
    assert!(!device.is_kick(0));
    set_status(&mut device, Status::ACKNOWLEDGE);
    device.write(COMMON + 0x1c, 2, 1);
    device.backend_write(back::CONTROL, 4, back::CONTROL_RESET_DONE);
    assert_eq!(device.backend_read(7, back::CONTROL, 4), 0);
    assert_eq!(status(&mut device), 0);
    device.backend_write(back::CONTROL, 4, back::CONTROL_RESET_DONE);
    assert_eq!(device.backend_read(7, back::CONTROL, 4), back::REFUSED_COMMAND, "nothing is to be reset");
    assert!(negotiate(&mut device, features::VERSION_1));
    start(&mut device);
}

#[test]
fn a_reset_does_not_wait_for_the_dead() {
    let mut device = started();
    device.detach_backend();
    assert_eq!(device.used(0, true), Signal::Message(1), "its queues are as they were");
    device.write(COMMON + 0x14, 1, 0);
    assert_eq!(status(&mut device), 0);
    let mut device = started();
    device.write(COMMON + 0x14, 1, 0);
    assert!(device.detach_backend().contains(Changes::BACKEND));
    assert_eq!(status(&mut device), 0);
}

#[test]
fn the_next_back_end_keeps_what_was_agreed() {
    let mut device = started();
    device.detach_backend();
    device.attach_backend();
    assert_eq!(device.backend_read(7, back::DEVICE_FEATURES, 4), 0, "nothing is left of the one before");
    assert_eq!(offer(&mut device, EVENT_IDX), back::REFUSED_FEATURES);
    device.backend_write(back::QUEUES, 4, 2);
    assert_eq!(offer(&mut device, FLUSH), 0);
    assert_eq!(queue_register(&device, back::QUEUE_ENABLED), 1);
    assert_eq!(queue_register(&device, back::QUEUE_DESC), 0x1_0000);
    device.backend_write(back::QUEUES, 4, 2);
    device.backend_write(back::CONTROL, 4, back::CONTROL_OFFER);
    assert_eq!(device.backend_read(7, back::CONTROL, 4), back::REFUSED_FEATURES, "another number of queues");
}

#[test]
fn the_next_guest_waits_until_the_queues_of_the_one_before_are_let_go() {
    let mut device = started();
    assert!(device.detach_guest().contains(Changes::BACKEND));
    assert_eq!(device.backend_read(7, back::STATE, 4), back::STATE_OFFERED | back::STATE_RESETTING);
    assert_eq!(device.backend_read(7, back::RANGES, 4), 0);
    device.attach_guest(Issues::All, [(0, 0x1000)].into_iter());
    device.write(COMMON + 0x14, 1, 0);
    assert_ne!(status(&mut device), 0);
    device.backend_write(back::CONTROL, 4, back::CONTROL_RESET_DONE);
    assert!(negotiate(&mut device, features::VERSION_1));
}

#[test]
fn offers_out_of_range_are_refused() {
    for (register, value) in [
        (back::QUEUES, 0),
        (back::QUEUES, back::MAX_QUEUES + 1),
        (back::QUEUE_SIZE, 0),
        (back::QUEUE_SIZE, 3),
        (back::QUEUE_SIZE, 2 * back::MAX_QUEUE_SIZE),
        (back::CONFIG_LEN, back::CONFIG_SIZE + 1),
    ] {
        let mut device = disk();
        assert!(!device.is_offered());
        offer(&mut device, 0);
        device.backend_write(register, 4, value);
        device.backend_write(back::CONTROL, 4, back::CONTROL_OFFER);
        assert_eq!(device.backend_read(7, back::CONTROL, 4), back::REFUSED_RANGE);
        assert_eq!(device.read(COMMON + 0x12, 2).0, 1, "the one before stands");
    }
}

#[test]
fn virtio_2_5_a_configuration_that_changes_is_told_of() {
    let mut device = started();
    assert_eq!(device.read(pci::CONFIG, 4).0, 0);
    device.backend_write(back::CONFIG, 4, 0x1234);
    assert_eq!(device.read(pci::CONFIG, 4).0, 0, "not yet");
    let generation = device.read(COMMON + 0x15, 1).0;
    assert_eq!(device.backend_write(back::CONTROL, 4, back::CONTROL_CONFIG_CHANGED), Changes::CONFIGURATION);
    assert_eq!(device.read(COMMON + 0x15, 1).0, generation + 1);
    assert_eq!(device.read(pci::CONFIG + 1, 2).0, 0x12);
    assert_eq!(device.read(pci::CONFIG + 58, 4).0, 0);
    assert_eq!(device.configuration_signal(true), Signal::None, "the driver asked for no message");
    device.write(COMMON + 0x10, 2, 0);
    assert_eq!(device.configuration_signal(true), Signal::Message(0));
    device.write(COMMON + 0x10, 2, pci::VECTORS.into());
    assert_eq!(device.read(COMMON + 0x10, 2).0, 0xffff, "there is no such message");
}

#[test]
fn virtio_4_1_4_5_the_line_falls_when_the_status_is_read() {
    let mut device = started();
    assert_eq!(device.used(0, false), Signal::Line);
    assert_eq!(device.configuration_signal(false), Signal::Line);
    assert!(device.line());
    assert_eq!(device.read(pci::ISR, 1), (3, Changes::LINE));
    assert!(!device.line());
}

#[test]
fn a_device_that_needs_a_reset_says_so() {
    let mut device = started();
    assert_eq!(device.backend_write(back::CONTROL, 4, back::CONTROL_NEEDS_RESET), Changes::CONFIGURATION);
    assert_eq!(status(&mut device), 15 | 64);
}

#[test]
fn who_is_in_the_foreground_may_be_passed_by_the_one_who_is_there() {
    let mut file = Device::new(Kind::DeviceFile, "guest.keys", "/dev/input/event0", &[]);
    file.attach_backend();
    let pass = |device: &mut Device| device.backend_write(back::CONTROL, 4, back::CONTROL_PASS_FOCUS);
    assert_eq!(pass(&mut file), Changes::FOCUS, "all are");
    assert_eq!(file.set_background(true), Changes::BACKEND);
    assert_eq!(file.set_background(true), Changes::empty(), "it is there already");
    assert_eq!(file.backend_read(7, back::STATE, 4), back::STATE_BACKGROUND);
    assert_eq!(pass(&mut file), Changes::empty());
    assert_eq!(file.backend_read(7, back::CONTROL, 4), back::REFUSED_COMMAND);
    assert_eq!(file.set_background(false), Changes::BACKEND);
    assert_eq!(pass(&mut file), Changes::FOCUS);
    assert_eq!(pass(&mut started()), Changes::empty(), "what is no device file has no person at it");
}

#[test]
fn virtio_4_1_4_a_driver_finds_all_structures() {
    let at = pci::Addresses { registers: 0xc000_0000, msix: 0xc000_4000, notify: 0x1000, maps: 1 << 38 };
    let of_all = [(1, 16, 0, 0, 0x38), (2, 20, 2, 0, 4), (3, 16, 0, 0x1000, 1), (4, 16, 0, 0x2000, 0x1000)];
    assert_eq!(structures(Kind::Net, &at), (0x1041_1af4, of_all.to_vec()));
    assert_eq!(structures(Kind::Files, &at), (0x105a_1af4, of_all.to_vec()));
    assert_eq!(structures(Kind::Entropy, &at), (0x1044_1af4, of_all.to_vec()));
    let (id, of_a_file) = structures(Kind::DeviceFile, &at);
    assert_eq!((id, &of_a_file[..4]), (0x107f_1af4, &of_all[..]));
    assert_eq!(of_a_file[4..], [(8, 24, 4, 0, 0x1000_0000)]);
}

/// What a capability tells of: kind, length, BAR, offset, bytes.
type Structure = (u32, u32, u32, u32, u32);

/// What a function is, and its structures.
fn structures(kind: Kind, at: &pci::Addresses) -> (u32, Vec<Structure>) {
    let mut bus = PciBus::new();
    bus.insert(3, pci::function(kind, 19, at, None).unwrap()).unwrap();
    let read = |offset: u32, width| bus.ecam_read(3 << 15 | offset, width);
    let (mut found, mut next) = (Vec::new(), read(0x34, 1));
    while next != 0 {
        let (id, cfg_type) = (read(next, 1), read(next + 3, 1));
        if id == 9 {
            found.push((
                cfg_type,
                read(next + 2, 1),
                read(next + 4, 1),
                read(next + 8, 4),
                read(next + 12, 4),
            ));
        }
        if (id, cfg_type) == (9, 8) {
            assert_eq!((read(next + 5, 1), read(next + 20, 4)), (0, 0), "region 0, below 4 GiB");
        }
        if (id, cfg_type) == (9, 2) {
            assert_eq!(read(next + 16, 4), 0, "all queues have one port");
        }
        next = read(next + 1, 1);
    }
    found.sort_unstable();
    (read(0, 4), found)
}

/// What either side can do.
#[derive(Clone, Debug)]
enum Step {
    Read(u32, u8),
    Write(u32, u8, u32),
    BackRead(u32, u8),
    BackWrite(u32, u8, u32),
    Used(u16, bool),
    GuestGoes,
    GuestComes(Issues),
    Issues,
    BackGoes,
    BackComes,
}

fn step() -> impl Strategy<Value = Step> {
    let width = || prop::sample::select(&[1u8, 2, 4][..]);
    let front = || prop_oneof![8 => 0u32..0x40, 1 => 0x1000u32..0x1004, 1 => 0x2000u32..0x2110];
    let register = || prop_oneof![4 => 0u32..0x40, 1 => 0u32..0x2000];
    let value = || prop_oneof![4 => 0u32..20, 1 => Just(128u32), 1 => any::<u32>()];
    prop_oneof![
        2 => (front(), width()).prop_map(|(at, width)| Step::Read(at, width)),
        8 => (front(), width(), value()).prop_map(|(at, width, value)| Step::Write(at, width, value)),
        2 => (register(), width()).prop_map(|(at, width)| Step::BackRead(at, width)),
        8 => (register(), width(), value()).prop_map(|(at, width, value)| Step::BackWrite(at, width, value)),
        1 => (any::<u16>(), any::<bool>()).prop_map(|(queue, messages)| Step::Used(queue, messages)),
        1 => Just(Step::GuestGoes),
        1 => prop::sample::select(&[Issues::Nothing, Issues::All, Issues::Pages][..]).prop_map(Step::GuestComes),
        1 => Just(Step::Issues),
        1 => Just(Step::BackGoes),
        1 => Just(Step::BackComes),
    ]
}

proptest! {
    #[test]
    fn whatever_either_side_does_the_rules_hold(steps in prop::collection::vec(step(), 1..200)) {
        let mut device = started();
        for step in steps {
            let before = device.clone();
            match step.clone() {
                Step::Read(at, width) => { device.read(at, width); }
                Step::Write(at, width, value) => { device.write(at, width, value); }
                Step::BackRead(at, width) => { device.backend_read(1, at, width); }
                Step::BackWrite(at, width, value) => { device.backend_write(at, width, value); }
                Step::Used(queue, messages) => { device.used(queue, messages); }
                Step::GuestGoes => { device.detach_guest(); }
                Step::GuestComes(issues) => {
                    device.detach_guest();
                    device.attach_guest(issues, [(0, 0x1000)].into_iter());
                }
                Step::Issues => { device.issue_pages(); }
                Step::BackGoes => { device.detach_backend(); }
                Step::BackComes => device.attach_backend(),
            }
            let status = device.status();
            if status.contains(Status::DRIVER_OK) {
                prop_assert!(status.contains(Status::FEATURES_OK));
            }
            // A back end may still be at work for a guest that has gone.
            if status.contains(Status::FEATURES_OK) && !device.resetting {
                prop_assert_eq!(device.accepted & !device.offered_features(), 0, "{:?}", step);
                let required = device.required_features();
                prop_assert_eq!(device.accepted & required, required);
            }
            // What is live stays where it is, whoever writes what, until it is reset.
            let live = |device: &Device| device.status().contains(Status::DRIVER_OK) && !device.resetting;
            if live(&before) && live(&device) {
                prop_assert!(status.contains(before.status()));
                for (old, new) in before.queues.iter().zip(&device.queues).filter(|(old, _)| old.enabled) {
                    prop_assert_eq!((old.size, old.desc, old.driver, old.device), (new.size, new.desc, new.driver, new.device));
                    prop_assert!(new.enabled);
                }
            }
            for queue in device.queues.iter().filter(|queue| queue.enabled) {
                prop_assert!(queue.is_aligned() && queue.size.is_power_of_two());
            }
            prop_assert!(device.backend_read(1, back::QUEUE + back::QUEUE_ENABLED, 4) == 0 || live(&device));
        }
    }
}
