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
    devices.find(|device| is(device, guest, number))
}

fn is(device: &Live, guest: &[u8], number: u32) -> bool {
    number != 0 && device.guest == guest && device.number.load(Ordering::Relaxed) == number
}
