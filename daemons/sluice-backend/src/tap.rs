//! A tap on a bridge of this domain: the other end of a guest's network card.

use anyhow::{Context, Result};
use sluice_backend::sys::{self, Call, Order, Plain};
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;

/// `struct ifreq`: the name of an interface and what is said of it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Interface {
    name: [u8; libc::IFNAMSIZ],
    first: u32,
    others: [u32; 5],
}

const _: () = assert!(size_of::<Interface>() == size_of::<libc::ifreq>());

// SAFETY: These are numbers, and the requests below use no pointer of the structure.
unsafe impl Plain for Interface {}

// SAFETY: These read, and some write, a `struct ifreq`.
const SET_INTERFACE: Call<Interface> = unsafe { Call::new(libc::TUNSETIFF as sys::Request) };
// SAFETY: As above.
const GET_INDEX: Call<Interface> = unsafe { Call::new(libc::SIOCGIFINDEX as sys::Request) };
// SAFETY: As above.
const GET_FLAGS: Call<Interface> = unsafe { Call::new(libc::SIOCGIFFLAGS as sys::Request) };
// SAFETY: As above.
const SET_FLAGS: Call<Interface> = unsafe { Call::new(libc::SIOCSIFFLAGS as sys::Request) };
// SAFETY: As above (SIOCBRADDIF).
const ADD_TO_BRIDGE: Call<Interface> = unsafe { Call::new(0x89a2) };
// SAFETY: It reads an int.
const SET_HEADER: Call<i32> = unsafe { Call::new(libc::TUNSETVNETHDRSZ as sys::Request) };
// SAFETY: Its argument is a number.
const SET_OFFLOAD: Order = unsafe { Order::new(libc::TUNSETOFFLOAD as sys::Request) };

/// Bytes before each packet (`struct virtio_net_hdr_v1`).
const HEADER: i32 = 12;

// SAFETY: It reads a `struct ifreq`.
const SET_QUEUE: Call<Interface> = unsafe { Call::new(libc::TUNSETQUEUE as sys::Request) };

/// A tap, with a file for each of its queues. It is gone when it is dropped.
pub struct Tap {
    files: Vec<File>,
    /// So many of them get packets.
    used: usize,
    /// Its name, and a socket for questions about it.
    name: Interface,
    network: OwnedFd,
}

impl Interface {
    fn named(name: &str) -> Option<Self> {
        let mut interface = Self::default();
        // The name ends with a zero.
        (name.len() < interface.name.len())
            .then(|| interface.name[..name.len()].copy_from_slice(name.as_bytes()))?;
        Some(interface)
    }
}

impl Tap {
    /// Makes a tap on this bridge, with so many queues, of which the first is used.
    pub fn new(bridge: &str, queues: usize) -> Result<Self> {
        let mut interface = Interface::named("sluice%d").context("a name is too long")?;
        let several = if queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several) as u32;
        let mut files = Vec::new();
        for _ in 0..queues {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/net/tun")
                .context("there is no /dev/net/tun: the driver domain's kernel needs the module tun")?;
            // The first gets a name, by which the others join it.
            interface.first = flags;
            SET_INTERFACE.update(&file, &mut interface).context("could not make a tap")?;
            SET_HEADER.set(&file, &HEADER).context("the tap takes no headers of 12 bytes")?;
            files.push(file);
        }

        let network = sys::network().context("could not ask for a socket")?;
        let tap = Interface { name: interface.name, ..Interface::default() };
        let mut index = tap;
        GET_INDEX.update(&network, &mut index).context("could not find the tap")?;
        let mut to =
            Interface::named(bridge).with_context(|| format!("'{bridge}' is no name of a bridge"))?;
        to.first = index.first;
        ADD_TO_BRIDGE
            .set(&network, &to)
            .with_context(|| format!("could not add a tap to '{bridge}'; source must name a bridge"))?;
        let mut flags = tap;
        GET_FLAGS.update(&network, &mut flags).context("could not find the tap")?;
        flags.first |= libc::IFF_UP as u32;
        SET_FLAGS.set(&network, &flags).context("could not start the tap")?;
        let mut made = Self { used: files.len(), files, name: tap, network };
        made.set_used(1)?;
        Ok(made)
    }

    /// Has the first `count` queues get packets, at least one.
    pub fn set_used(&mut self, count: usize) -> Result<()> {
        let count = count.clamp(1, self.files.len());
        while self.used != count {
            let (place, flag) = match self.used < count {
                true => (self.used, libc::IFF_ATTACH_QUEUE),
                false => (self.used - 1, libc::IFF_DETACH_QUEUE),
            };
            let asked = Interface { first: flag as u32, ..Interface::default() };
            SET_QUEUE.set(&self.files[place], &asked).context("could not change the queues of the tap")?;
            self.used = if self.used < count { self.used + 1 } else { self.used - 1 };
        }
        Ok(())
    }

    /// What the guest takes without checksums, or longer than a packet on the wire (`TUN_F_` bits).
    pub fn set_offload(&self, bits: u32) -> Result<()> {
        SET_OFFLOAD.give_number(&self.files[0], bits.into()).context("the tap refuses offloads")
    }

    /// Whether the interface is up: who administers this domain may take it down, as one pulls a cable.
    pub fn is_up(&self) -> Result<bool> {
        let mut flags = self.name;
        GET_FLAGS.update(&self.network, &mut flags).context("could not find the tap")?;
        Ok(flags.first & libc::IFF_UP as u32 != 0)
    }

    /// The open files, one for each queue: at least one.
    pub fn files(&self) -> &[File] {
        &self.files
    }
}
