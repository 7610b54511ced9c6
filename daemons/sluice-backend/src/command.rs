//! A command to a network card, as it stands in a chain of its control queue (Virtio 1.2, 5.1.6.5). Every value is the guest's.

use crate::request::{Broken, parts, take, take_answer};
use virtio_bindings::virtio_net::{VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET};
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestMemoryMmap, VolatileSlice};

/// What a guest wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// So many pairs of queues are to be used.
    Pairs(u16),
    /// Something that it was not offered, or that makes no sense.
    Unknown,
}

/// A command. Its memory stays the guest's; what it wants was read once.
pub struct Command<'w> {
    /// What the guest wants.
    pub wish: Wish,
    /// The byte of the answer.
    answer: VolatileSlice<'w>,
}

impl<'w> Command<'w> {
    /// The command in a chain.
    ///
    /// # Errors
    /// It is none: the device cannot answer it, and needs a reset.
    pub fn parse(
        chain: DescriptorChain<&'w GuestMemoryMmap>,
        window: &'w GuestMemoryMmap,
    ) -> Result<Self, Broken> {
        let (mut output, mut input) = parts(chain, window)?;
        let (mut header, mut pairs) = ([0; 2], [0; 2]);
        take(&mut output, &mut header).ok_or(Broken::Header)?;
        let answer = take_answer(&mut input)?;
        let [class, number] = header.map(u32::from);
        let wish = match (class, number) {
            (VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET) => take(&mut output, &mut pairs)
                .map_or(Wish::Unknown, |()| Wish::Pairs(u16::from_le_bytes(pairs))),
            _ => Wish::Unknown,
        };
        Ok(Self { wish, answer })
    }

    /// Writes the answer.
    pub fn answer(&self, status: u8) {
        // A byte that is there: it cannot fail.
        let _ = self.answer.write_obj(status, 0);
    }
}
