//! A virtio device between a hostile guest and a hostile back end.

use crate::Input;
use sluice_hypercall::backend as back;
use sluice_virtio::{Device, Kind, Signal, Status, pci};

/// Both sides' registers, in any order, while guests and back ends come and go. Asserts that a driver never has features that nobody offers,
/// that queues which are live stay where they are until a reset, that only such are shown to the back end and signalled, and that a
/// device which nobody has says so.
pub fn device(data: &[u8]) {
    let mut input = Input::new(data);
    let mut device = Device::new(Kind::Net, "guest.net0", "br0", &[2; 6]);
    let mut guest = false;
    while !input.is_empty() {
        let (width, value) =
            (input.choose(&[1, 2, 4, 4]), if input.flag() { u32::from(input.u8()) } else { input.u32() });
        let before = live(&device).then(|| queues(&device));
        match input.u8() % 16 {
            0..=5 => {
                let at = u32::from(input.u8() % 0x40) + input.choose(&[0, 0, 0, 0, pci::ISR, pci::CONFIG]);
                let _ = device.write(at, width, value);
            }
            6 => drop(device.read(u32::from(input.u16()), width)),
            7..=10 => {
                let at =
                    input.choose(&[back::CONTROL, back::QUEUES, back::QUEUE_SIZE, back::DEVICE_FEATURES]);
                let at = if input.flag() { at } else { u32::from(input.u16()) };
                let _ = device.backend_write(at, width, value);
            }
            11 => {
                let _ = device.backend_read(input.u8(), u32::from(input.u16()), width);
            }
            12 => {
                let signal = device.used(input.u16(), true);
                assert!(
                    signal == Signal::None || before.is_some(),
                    "a queue that is not in use is signalled"
                );
            }
            13 => {
                guest = input.flag();
                let _ = if guest {
                    device.attach_guest([(0, 1 << 20)].into_iter())
                } else {
                    device.detach_guest()
                };
            }
            14 => device.attach_backend(),
            _ => drop(device.detach_backend()),
        }
        let status = device.status();
        assert!(!status.contains(Status::DRIVER_OK) || status.contains(Status::FEATURES_OK));
        let state = device.backend_read(0, back::STATE, 4);
        assert_eq!(state & back::STATE_PEER != 0, guest);
        if let (Some(before), true) = (before, live(&device)) {
            for (old, new) in before.iter().zip(queues(&device)) {
                assert!(old[1] == 0 || *old == new, "a live queue has moved");
            }
        }
        for queue in queues(&device) {
            assert!(
                queue[1] == 0
                    || live(&device) && queue[0].is_power_of_two() && queue[0] <= back::MAX_QUEUE_SIZE
            );
        }
    }
}

/// Whether the driver is at work.
fn live(device: &Device) -> bool {
    let resetting = device.backend_read(0, back::STATE, 4) & back::STATE_RESETTING != 0;
    device.status().contains(Status::DRIVER_OK) && !resetting
}

/// All queues, as the back end sees them.
fn queues(device: &Device) -> Vec<[u32; 8]> {
    let word = |queue: u32, word: u32| {
        device.backend_read(0, back::QUEUE + queue * back::QUEUE_STRIDE + word * 4, 4)
    };
    (0..back::MAX_QUEUES).map(|queue| core::array::from_fn(|at| word(queue, at as u32))).collect()
}
