//! Devices that this daemon serves, by whose they are: an operation on one may take files of another, if both are the same guest's.
//!
//! A media device makes a request, which a camera takes; one camera imports what another has exported. Whose a device is says the hypervisor. Which of
//! the guest's it is, the guest says itself, by a number for each life of a device.

use super::{Live, lock};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// All that are served now, and perhaps some that were.
static DEVICES: Mutex<Vec<Weak<Live>>> = Mutex::new(Vec::new());

/// One more is served.
pub fn add(device: &Arc<Live>) {
    let mut devices = lock(&DEVICES);
    devices.retain(|device| device.strong_count() > 0);
    devices.push(Arc::downgrade(device));
}

/// The device that a guest calls so.
pub fn find(guest: &[u8], number: u32) -> Option<Arc<Live>> {
    let devices = lock(&DEVICES);
    let mut devices = devices.iter().filter_map(Weak::upgrade);
    devices.find(|device| is(&device.guest, device.number.load(Ordering::Relaxed), guest, number))
}

/// The devices behind the same node as this one, this one left out.
pub fn beside(device: &Live) -> Vec<Arc<Live>> {
    let devices = lock(&DEVICES);
    let others = devices.iter().filter_map(Weak::upgrade);
    others.filter(|other| !std::ptr::eq(&raw const **other, device) && other.path == device.path).collect()
}

/// Whether a device of this owner's, who calls it so, is the one that a guest means.
fn is(owner: &[u8], called: u32, guest: &[u8], number: u32) -> bool {
    number != 0 && owner == guest && called == number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_finds_devices_of_its_own_that_it_has_named() {
        assert!(is(b"alice", 3, b"alice", 3));
        assert!(!is(b"bob", 3, b"alice", 3), "another guest's");
        assert!(!is(b"alice", 3, b"alice", 4), "another device, or another life of it");
        assert!(!is(b"alice", 0, b"alice", 0), "it has not been named yet");
    }
}
