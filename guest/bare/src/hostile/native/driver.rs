//! A driver of the native face that does as it is told: descriptors and indices of any kind, pools of any pages, and what came back.
//!
//! Key type: [`Driver`]. The layout is `sluice_hypercall::vif`'s. Behind each page that it hands over is one that nobody may write, a fence.

use crate::dma::memory::{Own, get, put, put64};
use crate::entry::BootInfo;
use crate::hostile::face::driver::{
    ANSWER, FENCE, LEN, Look, MAY, Mac, PROMPT, bytes, load, look_at, put_request, store, wait,
};
use crate::machine::{outw, sleep};
use crate::pci::{self, Function};
use core::sync::atomic::{Ordering, fence};
use sluice_hypercall::backend::VENDOR;
use sluice_hypercall::vif::{
    VIF_BAR, VIF_BROKEN, VIF_COMMAND, VIF_COMMAND_POOL, VIF_COMMAND_START, VIF_COMMAND_STOP, VIF_DESCRIPTOR,
    VIF_DESCRIPTOR_MORE, VIF_DEVICE, VIF_DOORBELL_BAR, VIF_DOORBELL_WANTED, VIF_ENTRIES, VIF_MAC, VIF_MAGIC,
    VIF_MAGIC_VALUE, VIF_OFFERED, VIF_OFFERED_ENTRY, VIF_OFFERED_RING, VIF_POOL_COUNT, VIF_POOL_LIST,
    VIF_POOL_LIST_HIGH, VIF_RECEIVED, VIF_RECEIVED_RING, VIF_SEND_RING, VIF_SENT, VIF_TO_SEND,
};

pub const PAGE: u64 = 4096;
/// Pages of the pool: the first are for sending.
pub const PAGES: u16 = 64;
pub const SENDING: u16 = 32;
/// Pages beyond it that never are in a pool, and that are handed over once.
const SPARE: u64 = 16;
/// Pages of the list.
const LIST: u64 = 4;
/// Bytes that each frame has beside its own.
const SLACK: u64 = 2048;

/// A descriptor: number of a page, bytes, flags.
#[derive(Clone, Copy, Default)]
pub struct Descriptor {
    pub page: u16,
    pub len: u16,
    pub flags: u16,
    /// What is left to be done to the frame.
    pub header: Header,
}

/// The first ten bytes of a `struct virtio_net_hdr` (Virtio 1.2, 5.1.6).
#[derive(Clone, Copy, Default)]
pub struct Header {
    pub flags: u8,
    pub kind: u8,
    pub len: u16,
    pub segment: u16,
    pub start: u16,
    pub offset: u16,
}

impl Descriptor {
    /// A whole frame in a page.
    pub fn whole(page: u16, len: u16) -> Self {
        Self { page, len, ..Self::default() }
    }

    /// More of the frame follows.
    pub fn open(self) -> Self {
        Self { flags: VIF_DESCRIPTOR_MORE, ..self }
    }

    /// With this header.
    pub fn with(self, header: Header) -> Self {
        Self { header, ..self }
    }
}

/// The driver, and what it saw that it should not have seen.
pub struct Driver {
    pub function: Function,
    /// The base address that it was given.
    pub bar: u64,
    doorbell: u16,
    pub mac: Mac,
    /// Pages that may be handed over, each with a fence behind it.
    pages: u64,
    /// The list of them.
    pub list: u64,
    /// First address that is not the guest's.
    pub end: u64,
    pub to_send: u16,
    pub offered: u16,
    received: u16,
    answered: u16,
    /// Answers to frames that should not have gone out, frames of others, fences that were written.
    pub seen: u32,
}

impl Driver {
    /// The first such interface there is.
    pub fn open(boot: &BootInfo) -> Option<Self> {
        let wanted = u32::from(VIF_DEVICE) << 16 | u32::from(VENDOR);
        let function = pci::find(|function| function.read(0) == wanted)?;
        function.enable();
        let mut own = Own::new(boot);
        let pages = own.take((u64::from(PAGES) + SPARE) * 2 * PAGE);
        let list = own.take(LIST * PAGE);
        let bar = function.memory(VIF_BAR.into());
        let driver = Self {
            function,
            bar,
            doorbell: function.ports(VIF_DOORBELL_BAR.into()),
            mac: bytes(bar + u64::from(VIF_MAC)),
            pages,
            list,
            end: own.end(),
            to_send: 0,
            offered: 0,
            received: 0,
            answered: 0,
            seen: 0,
        };
        driver.fence_words().for_each(|at| put(at, FENCE));
        Some(driver)
    }

    /// Where a page is; from [`PAGES`] on, one that is in no pool of the sane driver's.
    pub fn page(&self, number: u16) -> u64 {
        self.pages + u64::from(number) * 2 * PAGE
    }

    /// Addresses of what nobody is to write.
    fn fence_words(&self) -> impl Iterator<Item = u64> + use<> {
        let pages = (self.pages + PAGE..self.list).step_by(2 * PAGE as usize);
        pages.flat_map(|page| (page..page + PAGE).step_by(4))
    }

    /// Counts fences that were written.
    pub fn look_at_fences(&mut self) {
        for at in self.fence_words().filter(|at| get(*at) != FENCE) {
            crate::console::println!("fence: {at:#x} holds {:#x}", get(at));
            put(at, FENCE);
            self.seen += 1;
        }
    }

    /// Fills pages, and says later which of them were written.
    pub fn fill(&self, numbers: core::ops::Range<u16>) {
        for number in numbers {
            let page = self.page(number);
            (page..page + PAGE).step_by(4).for_each(|at| put(at, FENCE));
        }
    }

    /// Whether pages hold what they were filled with.
    pub fn are_filled(&self, mut numbers: core::ops::Range<u16>) -> bool {
        numbers.all(|number| {
            let page = self.page(number);
            (page..page + PAGE).step_by(4).all(|at| get(at) == FENCE)
        })
    }

    pub fn look(&self, offset: u32) -> u16 {
        load(self.bar + u64::from(offset), 2) as u16
    }

    pub fn show(&self, offset: u32, value: u16) {
        store(self.bar + u64::from(offset), 2, value.into());
    }

    pub fn register(&self, offset: u32) -> u32 {
        get(self.bar + u64::from(offset))
    }

    pub fn set_register(&self, offset: u32, value: u32) {
        put(self.bar + u64::from(offset), value);
    }

    /// Whether the structure is where the base address was.
    pub fn is_there(&self) -> bool {
        self.register(VIF_MAGIC) == VIF_MAGIC_VALUE
    }

    /// Whether a command is not refused.
    pub fn command(&self, command: u32) -> bool {
        self.set_register(VIF_COMMAND, command);
        self.register(VIF_COMMAND) == 0
    }

    /// Hands over so many pages of a list.
    pub fn hand_over(&self, list: u64, count: u32) -> bool {
        self.set_register(VIF_POOL_LIST, list as u32);
        self.set_register(VIF_POOL_LIST_HIGH, (list >> 32) as u32);
        self.set_register(VIF_POOL_COUNT, count);
        self.command(VIF_COMMAND_POOL)
    }

    /// Writes an entry of the list.
    pub fn put_in_list(&self, nth: u64, page: u64) {
        put64(self.list + 8 * nth, page);
    }

    /// Does to the interface what a driver does when it starts, whatever was done to it before, with so many pages. Returns whether that is done.
    pub fn set_up(&mut self, pages: u16) -> bool {
        self.function.write(0x10, self.bar as u32);
        self.function.enable();
        self.command(VIF_COMMAND_STOP);
        (0..PAGES).for_each(|number| self.put_in_list(number.into(), self.page(number)));
        let handed = self.hand_over(self.list, pages.into());
        handed && self.start()
    }

    /// Starts with the pool as it is, and offers nothing.
    pub fn start(&mut self) -> bool {
        (self.to_send, self.offered, self.received) = (0, 0, 0);
        self.command(VIF_COMMAND_START)
    }

    /// Offers the pages that are for receiving.
    pub fn offer_all(&mut self) {
        (SENDING..PAGES).for_each(|number| self.offer(number));
    }

    pub fn offer(&mut self, number: u16) {
        let at = VIF_OFFERED_RING + VIF_OFFERED_ENTRY * u32::from(self.offered % VIF_ENTRIES);
        self.show(at, number);
        self.offered = self.offered.wrapping_add(1);
        self.show(VIF_OFFERED, self.offered);
    }

    /// Writes a frame into a page: a request that QEMU's gateway answers to who sent it.
    pub fn ask(&self, number: u16, to: Mac, from: Mac, mark: u16) {
        let at = self.page(number);
        (at..at + SLACK).step_by(8).for_each(|at| put64(at, 0));
        put_request(at, to, from, mark);
    }

    /// Puts a descriptor where one is to be.
    pub fn put_descriptor(&self, index: u16, descriptor: Descriptor) {
        let at = self.bar + u64::from(VIF_SEND_RING + VIF_DESCRIPTOR * u32::from(index % VIF_ENTRIES));
        let Descriptor { page, len, flags, header } = descriptor;
        let Header { flags: asks, kind, len: headers, segment, start, offset } = header;
        let word =
            |parts: [u16; 4]| parts.into_iter().rev().fold(0, |word, part| word << 16 | u64::from(part));
        let asks = u16::from(asks) | u16::from(kind) << 8;
        store(at, 8, word([page, len, flags, asks]));
        store(at + 8, 8, word([headers, segment, start, offset]));
    }

    /// Puts these where the engine finds them next, and tells of them.
    pub fn ring(&mut self, descriptors: &[Descriptor]) {
        for descriptor in descriptors {
            self.put_descriptor(self.to_send, *descriptor);
            self.to_send = self.to_send.wrapping_add(1);
        }
        self.tell();
    }

    /// Shows how much is to be sent.
    pub fn tell(&self) {
        self.show(VIF_TO_SEND, self.to_send);
        // The engine says that it does not look, and then looks once more.
        fence(Ordering::SeqCst);
        if self.look(VIF_DOORBELL_WANTED) != 0 {
            self.knock();
        }
    }

    /// Rings the doorbell.
    pub fn knock(&self) {
        outw(self.doorbell, 0);
    }

    pub fn is_broken(&self) -> bool {
        self.look(VIF_BROKEN) != 0
    }

    /// Whether the engine says within some time that rules were broken.
    pub fn breaks(&self) -> bool {
        wait(PROMPT, || self.is_broken())
    }

    /// Whether all is sent.
    pub fn is_sent(&self) -> bool {
        self.look(VIF_SENT) == self.to_send
    }

    /// Has these sent. Returns whether that is done, and no rule was broken.
    pub fn send(&mut self, descriptors: &[Descriptor]) -> bool {
        self.ring(descriptors);
        wait(PROMPT, || self.is_sent() || self.is_broken());
        self.take();
        self.is_sent() && !self.is_broken()
    }

    /// Looks at what has come.
    pub fn take(&mut self) {
        while self.look(VIF_RECEIVED) != self.received && !self.is_broken() {
            let at = VIF_RECEIVED_RING + VIF_DESCRIPTOR * u32::from(self.received % VIF_ENTRIES);
            let number = self.look(at);
            self.received = self.received.wrapping_add(1);
            if number >= PAGES {
                crate::console::println!("seen: page {number} is filled");
                self.seen += 1;
                continue;
            }
            let Look { is_wrong, answered } = look_at(self.page(number), self.mac);
            self.answered = answered.unwrap_or(self.answered);
            self.seen += u32::from(is_wrong);
            self.offer(number);
        }
    }

    /// Sends a frame of its own until it is answered. Returns whether each was sent in time, and whether one was answered.
    pub fn is_answered(&mut self, number: u16) -> (bool, bool) {
        let mark = MAY | number;
        let mut all_sent = true;
        for _ in 0..40 {
            self.ask(0, [0xff; 6], self.mac, mark);
            all_sent &= self.send(&[Descriptor::whole(0, LEN as u16)]);
            let answered = wait(ANSWER, || {
                self.take();
                self.answered == mark
            });
            if answered {
                return (all_sent, true);
            }
        }
        (all_sent, false)
    }

    /// What was sent is answered by then.
    pub fn settle(&mut self) {
        sleep(50_000_000);
        self.take();
    }
}
