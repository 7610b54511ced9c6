//! An end of the management channel: the second serial port, for the host, or a control domain's stream.

use crate::devices::virtio;
use crate::uart::Uart;
use crate::x86::tsc;
use alloc::collections::VecDeque;
use sluice_abi::DomainId;
use sluice_abi::channel::{self, Decoder, Event, Request};

/// Bytes that wait for a control domain that does not read them; what does not fit is not sent.
const BACKLOG: usize = 1 << 20;
/// Bytes taken from a control domain, or given to it, at a time.
const PIECE: usize = 16 * 1024;
/// Bytes that [`Channel::receive`] takes from a control domain at most: who writes without end holds up nobody.
const MOST: usize = 64 * 1024;

/// Who is at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Whoever is at the end of the serial port.
    Host,
    /// A domain.
    Domain(DomainId),
}

/// Where bytes go.
enum Wire {
    Uart(Uart),
    Stream {
        of: DomainId,
        /// A program had it open when we looked last.
        open: bool,
        incoming: VecDeque<u8>,
        /// Something did not fit.
        lost: bool,
    },
}

/// An end of the channel.
pub struct Channel {
    wire: Wire,
    /// Bytes that the wire has not taken yet.
    outgoing: VecDeque<u8>,
    decoder: Decoder,
}

impl Channel {
    /// The serial port. What firmware may have written to it is no part of the first message.
    pub fn of_uart(uart: Uart) -> Self {
        let outgoing = VecDeque::from([channel::DELIMITER]);
        Self { wire: Wire::Uart(uart), outgoing, decoder: Decoder::default() }
    }

    /// The stream of a domain.
    pub fn of_domain(of: DomainId) -> Self {
        let wire = Wire::Stream { of, open: false, incoming: VecDeque::new(), lost: false };
        Self { wire, outgoing: VecDeque::new(), decoder: Decoder::default() }
    }

    /// Who is at its end.
    pub fn peer(&self) -> Peer {
        match self.wire {
            Wire::Uart(_) => Peer::Host,
            Wire::Stream { of, .. } => Peer::Domain(of),
        }
    }

    /// Looks whether a program has opened or closed the stream. Returns whether one has opened it, which has heard nothing yet.
    pub fn has_opened(&mut self) -> bool {
        let Wire::Stream { of, open, incoming, lost } = &mut self.wire else { return false };
        let now = virtio::channel::is_open(*of);
        let before = core::mem::replace(open, now);
        if before != now {
            incoming.clear();
            *lost = false;
            self.outgoing.clear();
            self.decoder = Decoder::default();
        }
        now && !before
    }

    /// Queues a message, if somebody is there.
    pub fn queue(&mut self, event: &Event) {
        if let Wire::Stream { open: false, .. } = self.wire {
            return;
        }
        let Ok(bytes) = channel::encode(event) else { return };
        if let Wire::Stream { of, lost, .. } = &mut self.wire
            && bytes.len() > BACKLOG.saturating_sub(self.outgoing.len())
        {
            if !core::mem::replace(lost, true) {
                log::warn!("domain {of}: it does not read the management channel: messages for it are lost");
            }
            return;
        }
        self.outgoing.extend(bytes);
    }

    /// Whether anything is queued.
    pub fn has_output(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether what is queued has gone, as far as anybody may have to wait for that: nobody does for a domain.
    pub fn has_room(&self) -> bool {
        self.outgoing.is_empty() || matches!(self.wire, Wire::Stream { .. })
    }

    /// Sends until nothing is left, the wire has no room, or it is time. Returns whether it sent anything.
    pub fn send(&mut self, until: u64) -> bool {
        let before = self.outgoing.len();
        match &mut self.wire {
            Wire::Uart(uart) => {
                while let Some(byte) = self.outgoing.front()
                    && uart.try_write(*byte)
                {
                    self.outgoing.pop_front();
                    if tsc::now() >= until {
                        break;
                    }
                }
            }
            Wire::Stream { of, .. } => {
                while !self.outgoing.is_empty() && tsc::now() < until {
                    let (piece, _) = self.outgoing.as_slices();
                    let taken = virtio::channel::write(*of, &piece[..piece.len().min(PIECE)]);
                    if taken == 0 {
                        break;
                    }
                    self.outgoing.drain(..taken);
                }
            }
        }
        self.outgoing.len() != before
    }

    /// Waits until the last byte is on the line.
    pub fn drain(&mut self) {
        if let Wire::Uart(uart) = &mut self.wire {
            uart.drain();
        }
    }

    /// The next request, if all of it is there. From a control domain it takes a bounded amount each time.
    pub fn receive(&mut self) -> Option<Request> {
        let mut left = MOST;
        loop {
            let request = match &mut self.wire {
                Wire::Uart(uart) => self.decoder.push(uart.try_read()?),
                Wire::Stream { of, incoming, .. } => {
                    if incoming.is_empty() {
                        left = left.checked_sub(PIECE)?;
                        incoming.extend(virtio::channel::read(*of, PIECE));
                    }
                    let (piece, _) = incoming.as_slices();
                    if piece.is_empty() {
                        return None;
                    }
                    let (taken, request) = self.decoder.take(piece);
                    incoming.drain(..taken);
                    request
                }
            };
            if request.is_some() {
                return request;
            }
        }
    }
}
