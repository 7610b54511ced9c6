//! Datagrams without an end, as fast as they can be sent: what a wire, or whoever serves it, does not take is waited for.

use anyhow::{Context, Result};
use std::net::{SocketAddr, UdpSocket};

/// Sends datagrams of so many bytes until it is ended.
pub fn send(to: SocketAddr, bytes: usize) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("no socket")?;
    socket.connect(to).with_context(|| format!("could not address {to}"))?;
    let datagram = vec![0x5a; bytes];
    println!("SLUICE-RESULT flooding={bytes}");
    loop {
        // A queue that is full loses datagrams, and says so.
        if let Err(error) = socket.send(&datagram)
            && error.raw_os_error() != Some(libc::ENOBUFS)
        {
            return Err(error).context("could not send");
        }
    }
}
