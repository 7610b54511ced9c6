//! A virtio device between a hostile guest and a hostile back end.

use crate::Input;
use sluice_hypercall::backend as back;
use sluice_virtio::{Device, Fault, Issues, Kind, Memory, Port, Signal, Status, pci};

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
                    let issues = input.choose(&[Issues::All, Issues::Pages, Issues::Nothing]);
                    device.attach_guest(issues, [(0, 1 << 20)].into_iter())
                } else {
                    device.detach_guest()
                };
            }
            14 if input.flag() => drop(device.issue_pages()),
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

/// The guest's memory begins here.
pub(crate) const START: u64 = 0x1000;

/// A guest's memory, all of it the driver's to fill.
pub(crate) struct Ram(core::cell::RefCell<Vec<u8>>);

impl Ram {
    /// So many bytes, which are zero.
    pub(crate) fn new(len: usize) -> Self {
        Self(core::cell::RefCell::new(vec![0; len]))
    }
}

impl Memory for Ram {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let at = usize::try_from(address.checked_sub(START).ok_or(Fault)?).map_err(|_| Fault)?;
        let end = at.checked_add(buffer.len()).ok_or(Fault)?;
        buffer.copy_from_slice(self.0.borrow().get(at..end).ok_or(Fault)?);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let at = usize::try_from(address.checked_sub(START).ok_or(Fault)?).map_err(|_| Fault)?;
        let end = at.checked_add(bytes.len()).ok_or(Fault)?;
        self.0.borrow_mut().get_mut(at..end).ok_or(Fault)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// The hypervisor's end of a stream, with a driver that may write anything into its queues. Asserts that what is kept of it has a bound, that no
/// more is taken than was given, and that a driver which broke the rules is not listened to before it resets the device.
pub fn port(data: &[u8]) {
    const MOST: usize = 128 * 1024;
    let mut input = Input::new(data);
    let ram = Ram::new(16 * 1024);
    let mut device = Device::of_port();
    let _ = device.attach_guest(Issues::Nothing, [].into_iter());
    let mut port = Port::new("stream");
    // Set up as a driver does; what it does from then on is its own affair.
    for (at, width, value) in [(0x08, 4, 1), (0x0c, 4, 1), (0x14, 1, 11)] {
        let _ = device.write(at, width, value);
    }
    for queue in 0..4 {
        let at = START as u32 + queue * 0x800;
        for (register, width, value) in [
            (0x16, 2, queue),
            (0x18, 2, 16),
            (0x20, 4, at),
            (0x28, 4, at + 0x200),
            (0x30, 4, at + 0x400),
            (0x1c, 2, 1),
        ] {
            let _ = device.write(register, width, value);
        }
    }
    let _ = device.write(0x14, 1, 15);
    while !input.is_empty() {
        match input.u8() % 8 {
            0 => {
                let (at, value) = (u32::from(input.u8() % 0x38), input.u32());
                let _ = device.write(at, input.choose(&[1, 2, 4]), value);
                if !device.is_live() {
                    port.reset();
                }
            }
            // A descriptor, an entry of the available ring, its index, anything.
            1..=3 => {
                let queue = u64::from(input.u8() % 4) * 0x800;
                let at = START
                    + queue
                    + input.choose(&[0, 16, 0x200, 0x202, 0x204, 0x206])
                    + u64::from(input.u8() % 16);
                let bytes: Vec<u8> = (0..input.u8() % 17).map(|_| input.u8()).collect();
                let _ = ram.write(at, &bytes);
            }
            4 | 5 => {
                let broken = device.status().contains(Status::NEEDS_RESET);
                match port.serve(&device, &ram) {
                    Ok(signals) => assert!(!broken || signals.queues().count() == 0),
                    Err(Fault) => {
                        assert!(!broken, "a driver that broke the rules is listened to");
                        let _ = device.break_down();
                    }
                }
            }
            6 => assert!(port.read(usize::MAX).len() <= MOST, "more is kept than there is room for"),
            _ => {
                let bytes = vec![7; usize::from(input.u16())];
                match port.write(&device, &ram, &bytes) {
                    Ok((taken, _)) => assert!(taken <= bytes.len()),
                    Err(Fault) => drop(device.break_down()),
                }
            }
        }
    }
}
