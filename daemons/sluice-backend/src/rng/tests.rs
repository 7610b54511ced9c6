use super::*;
use crate::function::QueueSetup;
use virtio_bindings::virtio_ring::{VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use vm_memory::GuestAddress;

const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;

const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const DATA: u64 = 0x4000;
const ENTRIES: u16 = 64;

/// A guest with these descriptors, of which those are heads of chains that it has made available.
fn guest(descriptors: &[(u64, u32, u16, u16)], heads: &[u16]) -> (GuestMemoryMmap, Queue) {
    let window = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1_0000)]).unwrap();
    for (place, (address, len, flags, next)) in (0..).zip(descriptors) {
        let words = [*address, u64::from(*len) | u64::from(*flags) << 32 | u64::from(*next) << 48];
        window.write_obj(words, GuestAddress(16 * place)).unwrap();
    }
    for (place, head) in (0..).zip(heads) {
        window.write_obj(*head, GuestAddress(AVAILABLE + 4 + 2 * place)).unwrap();
    }
    window.write_obj(heads.len() as u16, GuestAddress(AVAILABLE + 2)).unwrap();
    let setup =
        QueueSetup { entries: ENTRIES.into(), enabled: 1, descriptors: 0, driver: AVAILABLE, device: USED };
    let queue = take_up(&setup, QUEUE_SIZE, false, &window).unwrap();
    (window, queue)
}

fn used(window: &GuestMemoryMmap) -> (u16, [u32; 2]) {
    let first = window.read_obj(GuestAddress(USED + 4)).unwrap();
    (window.read_obj(GuestAddress(USED + 2)).unwrap(), first)
}

#[test]
fn virtio_5_4_6_a_buffer_is_filled_part_by_part() {
    let descriptors = [(DATA, 3, NEXT | WRITE, 1), (DATA + 0x100, 5, WRITE, 0)];
    let (window, mut queue) = guest(&descriptors, &[0]);
    let mut told = 0;
    let notify = || {
        told += 1;
        Ok(())
    };
    let mut source = &b"random!!more"[..];
    assert!(!serve_queue(&mut queue, &window, &mut source, notify).unwrap());
    let mut bytes = [0; 9];
    window.read_slice(&mut bytes[..4], GuestAddress(DATA)).unwrap();
    window.read_slice(&mut bytes[3..], GuestAddress(DATA + 0x100)).unwrap();
    assert_eq!((&bytes, told, source), (b"random!!\0", 1, &b"more"[..]));
    assert_eq!(used(&window), (1, [0, 8]));
}

#[test]
fn a_large_buffer_is_filled_up_to_a_bound() {
    let (window, mut queue) = guest(&[(DATA, 0x8000, WRITE, 0)], &[0]);
    serve_queue(&mut queue, &window, &mut std::io::repeat(7), || Ok(())).unwrap();
    assert_eq!(used(&window), (1, [0, MOST as u32]));
    let beyond: u8 = window.read_obj(GuestAddress(DATA + MOST as u64)).unwrap();
    assert_eq!(beyond, 0);
}

#[test]
fn what_is_no_buffer_breaks_the_queue() {
    for descriptor in [
        (DATA, 8, 0, 0),            // to be read
        (DATA, 0, WRITE, 0),        // no room
        (0xfff8, 16, WRITE, 0),     // leads out of the memory
        (DATA, 8, WRITE | NEXT, 0), // does not end
    ] {
        let (window, mut queue) = guest(&[descriptor], &[0]);
        let served = serve_queue(&mut queue, &window, &mut std::io::repeat(7), || Ok(()));
        assert!(served.unwrap_err().is::<Broken>(), "{descriptor:?}");
        assert_eq!(used(&window).0, 0);
        assert_eq!(window.read_obj::<u8>(GuestAddress(DATA)).unwrap(), 0);
    }
}

#[test]
fn a_buffer_behind_something_to_be_read_breaks_the_queue() {
    let (window, mut queue) = guest(&[(DATA, 8, NEXT, 1), (DATA + 0x100, 8, WRITE, 0)], &[0]);
    let served = serve_queue(&mut queue, &window, &mut std::io::repeat(7), || Ok(()));
    assert!(served.unwrap_err().is::<Broken>());
    assert_eq!(used(&window).0, 0);
}

#[test]
fn a_source_that_ends_is_no_answer() {
    let (window, mut queue) = guest(&[(DATA, 8, WRITE, 0)], &[0]);
    assert!(serve_queue(&mut queue, &window, &mut &b"few"[..], || Ok(())).is_err());
    assert_eq!(used(&window).0, 0);
}

/// A source that gives its guest a buffer more with each one that it fills.
struct Refilling<'w>(&'w GuestMemoryMmap);

impl Read for Refilling<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let index: u16 = self.0.read_obj(GuestAddress(AVAILABLE + 2)).unwrap();
        self.0.write_obj(index.wrapping_add(1), GuestAddress(AVAILABLE + 2)).unwrap();
        bytes.fill(7);
        Ok(bytes.len())
    }
}

#[test]
fn a_turn_ends_though_the_guest_goes_on_asking() {
    let (window, mut queue) = guest(&[(DATA, 8, WRITE, 0)], &[0]);
    let over = serve_queue(&mut queue, &window, &mut Refilling(&window), || Ok(())).unwrap();
    assert_eq!((over, used(&window).0), (true, QUEUE_SIZE));
}
