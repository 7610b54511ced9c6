//! How an 82574L tells by messages (MSI-X): of received frames, and for each queue to send from, of room.
//!
//! A cause that is told is acknowledged and masked by the card itself, so that nothing is told twice before it is asked for again. Other causes
//! (link, overruns) have no message: nothing is done about them.
//! Source: 82574 datasheet (317694), 7.4 (interrupts), 10.2.2.4 (CTRL_EXT), 10.2.4 (ICR, IMS, EIAC, IAM, IVAR), 10.2.7 (MPC).

use super::reg;
use crate::RawDevice;

const CTRL_EXT: u16 = 0x0018;
const EIAC: u16 = 0x00dc;
const IAM: u16 = 0x00e0;
const IVAR: u16 = 0x00e4;
const MPC: u16 = 0x4010;
const RFCTL: u16 = 0x5008;

/// CTRL_EXT: what is masked by itself is so when its message is sent, not when ICR is read; opening a cause clears its pending bit.
const MASK_WHEN_SENT: u32 = 1 << 24;
const MASK_WHEN_READ: u32 = 1 << 27;
const CLEAR_PENDING: u32 = 1 << 31;
/// RFCTL: no cause of its own for acknowledgements of TCP. Linux's driver switches it off, since it is raised without a message.
const NO_ACKS: u32 = 1 << 12;

/// Cause: something was received by the first queue, which alone is in use.
const RECEIVED: u32 = 1 << 20;
/// IVAR, four bits for each cause: which message, and that there is one.
const VALID: u32 = 1 << 3;

/// The cause that tells of room in a queue.
pub(super) const fn room(queue: u8) -> u32 {
    1 << (22 + queue)
}

/// Message 0 is for what is received, 1 + *n* for room in queue *n*; none is sent before it is asked for.
pub(super) fn set_up(raw: &mut dyn RawDevice, queues: u8) {
    let (mut causes, mut places) = (RECEIVED, VALID);
    for queue in 0..queues {
        causes |= room(queue);
        places |= (VALID | u32::from(1 + queue)) << (8 + 4 * queue);
    }
    raw.write(IVAR, 4, places);
    raw.write(EIAC, 4, causes);
    raw.write(IAM, 4, causes);
    let control = raw.read(CTRL_EXT, 4) & !MASK_WHEN_READ;
    raw.write(CTRL_EXT, 4, control | MASK_WHEN_SENT | CLEAR_PENDING);
    let filter = raw.read(RFCTL, 4);
    raw.write(RFCTL, 4, filter | NO_ACKS);
}

/// Has the card tell of what it receives from now on: what came before this returns is in the ring, and the rest is told. Returns how many
/// frames it has lost since the last call; `None`: there is no card.
pub(super) fn ask(raw: &mut dyn RawDevice) -> Option<u32> {
    // ICR is not read: that could take away what others wait for.
    raw.write(reg::ICR, 4, RECEIVED);
    raw.write(reg::IMS, 4, RECEIVED);
    // It comes back when the writes have reached the card.
    Some(raw.read(MPC, 4)).filter(|missed| *missed != u32::MAX)
}
