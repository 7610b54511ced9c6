use super::*;

/// Where the control queue and its data are in the window.
const QUEUE: QueueSetup =
    QueueSetup { entries: 16, enabled: 1, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
const DATA: u64 = 0x4000;

fn window() -> Window {
    Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap())
}

fn put(window: &Window, bytes: &[u8], at: u64) {
    window.write_slice(bytes, GuestAddress(at)).unwrap();
}

fn control(window: &Window) -> Control {
    let event = || EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).unwrap();
    let queue = take_up(&QUEUE, QUEUE_SIZE, false, window).unwrap();
    Control { queue, window: Window::clone(window), kicks: event(), calls: event(), table: None }
}

/// Puts a command into the queue, after so many others.
fn ask(window: &Window, before: u16, command: &[u8]) {
    let at = DATA + 16 * u64::from(before);
    put(window, command, at);
    put(window, &[0x55], at + 15);
    let first = 2 * before % 16;
    for (descriptor, (address, len, flags, next)) in
        (first..).zip([(at, command.len() as u32, 1u16, first + 1), (at + 15, 1, 2, 0)])
    {
        let place = QUEUE.descriptors + 16 * u64::from(descriptor);
        let parts =
            [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        put(window, &parts.concat(), place);
    }
    put(window, &first.to_le_bytes(), QUEUE.driver + 4 + 2 * u64::from(before % 16));
    put(window, &(before + 1).to_le_bytes(), QUEUE.driver + 2);
}

/// What became of that command.
fn answer(window: &Window, before: u16) -> u8 {
    window.read_obj(GuestAddress(DATA + 16 * u64::from(before) + 15)).unwrap()
}

#[test]
fn a_guest_says_how_many_pairs_it_uses() {
    let window = window();
    let mut control = control(&window);
    let mut asked = Vec::new();
    let commands: [(&[u8], u32); 7] = [
        (&[4, 0, 2, 0], VIRTIO_NET_OK),
        (&[4, 0, 4, 0], VIRTIO_NET_OK),
        // More than there are, and none.
        (&[4, 0, 5, 0], VIRTIO_NET_ERR),
        (&[4, 0, 0, 0], VIRTIO_NET_ERR),
        // Commands that were not offered, and one that is too short.
        (&[4, 1, 2, 0], VIRTIO_NET_ERR),
        (&[0, 0, 1], VIRTIO_NET_ERR),
        (&[4, 0, 2], VIRTIO_NET_ERR),
    ];
    for (before, (command, status)) in (0..).zip(commands) {
        ask(&window, before, command);
        let set = |pairs: u16| {
            asked.push(pairs);
            Ok(())
        };
        assert!(!control.serve(4, set).unwrap());
        assert_eq!(u32::from(answer(&window, before)), status, "{command:?}");
        assert_eq!(control.calls.read().unwrap(), 1, "the guest is told");
        assert_eq!(index(QUEUE.device, &window).unwrap(), before + 1);
    }
    assert_eq!(asked, [2, 4]);
}

#[test]
fn a_command_without_a_header_or_an_answer_stops_the_card() {
    for (command, flags) in [(&[4u8][..], 2u16), (&[4, 0, 2, 0], 0)] {
        let window = window();
        let mut control = control(&window);
        ask(&window, 0, command);
        put(&window, &flags.to_le_bytes(), QUEUE.descriptors + 16 + 12);
        assert!(control.serve(4, |_| Ok(())).is_err(), "{command:?}");
    }
}

#[test]
fn a_guest_that_never_stops_asking_does_not_keep_the_card_from_a_reset() {
    let window = window();
    let mut control = control(&window);
    ask(&window, 0, &[4, 0, 1, 0]);
    let mut served = 0;
    let over = control.serve(4, |_| {
        served += 1;
        put(&window, &(1 + served as u16).to_le_bytes(), QUEUE.driver + 2);
        Ok(())
    });
    assert!(over.unwrap() && served == TURN);
}

#[test]
fn a_daemon_that_comes_up_goes_on_with_the_pairs_that_have_been_used() {
    let window = window();
    let queue = |at: u64| QueueSetup { descriptors: at, driver: at, device: at + 0x200, ..QUEUE };
    let receive: Vec<QueueSetup> = (0..4).map(|place| queue(0x8000 + 0x400 * place)).collect();
    assert_eq!(used_pairs(&receive, 1, &window).unwrap(), 1);
    put(&window, &256u16.to_le_bytes(), receive[0].driver + 2);
    put(&window, &256u16.to_le_bytes(), receive[2].driver + 2);
    assert_eq!(used_pairs(&receive, 1, &window).unwrap(), 3);
    // A driver that has said nothing uses the first.
    assert_eq!(used_pairs(&receive, 0, &window).unwrap(), 1);
    // One whose index has come round.
    put(&window, &0u16.to_le_bytes(), receive[2].driver + 2);
    put(&window, &0xfff0u16.to_le_bytes(), receive[2].device + 2);
    assert_eq!(used_pairs(&receive, 7, &window).unwrap(), 3);
    assert!(used_pairs(&[queue(u64::MAX - 0x200)], 1, &window).is_err());
}

#[test]
fn the_control_queue_is_behind_the_pairs_that_a_driver_knows() {
    let (mq, control) = (bits(&[VIRTIO_NET_F_MQ]), bits(&[VIRTIO_NET_F_CTRL_VQ]));
    assert_eq!(layout(mq | control, 4), (4, Some(8)));
    assert_eq!(layout(control, 4), (1, Some(2)));
    assert_eq!(layout(mq, 4), (4, None));
    assert_eq!(layout(0, 4), (1, None));
}

#[test]
fn virtio_5_1_4_a_card_without_its_cable_says_so() {
    let mac = [2, 0, 0, 0, 0, 7];
    assert_eq!(configuration(mac, true, 1), [2, 0, 0, 0, 0, 7, 1, 0]);
    assert_eq!(configuration(mac, false, 4), [2, 0, 0, 0, 0, 7, 0, 0, 4, 0]);
}
