//! A driver in the manner of lib8390: same registers in the same order, written as straight code;
//! each access is a point where it can be left for any time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sluice_vpio::RegisterAccess;

use super::World;

pub type Shared = Rc<RefCell<World>>;

/// What a driver and its test exchange.
#[derive(Default)]
pub struct Mailbox {
    pub to_send: VecDeque<Vec<u8>>,
    pub received: Vec<Vec<u8>>,
    /// Completed, well or badly.
    pub sent: u64,
    /// Of these, given up.
    pub aborted: u64,
    pub started: bool,
    pub stop: bool,
    pub errors: Vec<String>,
    /// One access may be made.
    grant: bool,
    /// The driver has nothing to do.
    pub idle: bool,
}

pub struct Port {
    pub world: Shared,
    pub mail: Rc<RefCell<Mailbox>>,
    pub index: usize,
}

struct Step<'a, F>(&'a Port, F);

impl<F: FnMut(&mut World) -> Option<u32> + Unpin> Future for Step<'_, F> {
    type Output = u32;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u32> {
        let port = self.0;
        if !std::mem::take(&mut port.mail.borrow_mut().grant) {
            return Poll::Pending;
        }
        port.mail.borrow_mut().idle = false;
        let done = (self.1)(&mut port.world.borrow_mut());
        done.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Port {
    pub async fn inb(&self, offset: u16) -> u8 {
        let index = self.index;
        Step(self, move |world: &mut World| world.io(index, RegisterAccess::Read { offset, width: 1 })).await
            as u8
    }
    pub async fn read(&self, offset: u16, width: u8) -> u32 {
        let index = self.index;
        Step(self, move |world: &mut World| world.io(index, RegisterAccess::Read { offset, width })).await
    }
    pub async fn write(&self, offset: u16, width: u8, value: u32) {
        let index = self.index;
        Step(self, move |world: &mut World| world.io(index, RegisterAccess::Write { offset, width, value }))
            .await;
    }
    pub async fn outb(&self, offset: u16, value: u8) {
        self.write(offset, 1, u32::from(value)).await;
    }
    pub async fn ins(&self, offset: u16, width: u8, into: &mut [u8]) {
        let index = self.index;
        let into = RefCell::new(into);
        Step(self, |world: &mut World| {
            world.io(index, RegisterAccess::ReadString { offset, width, into: &mut into.borrow_mut() })
        })
        .await;
    }
    pub async fn outs(&self, offset: u16, width: u8, from: &[u8]) {
        let index = self.index;
        Step(self, |world: &mut World| world.io(index, RegisterAccess::WriteString { offset, width, from }))
            .await;
    }
    /// One scheduling step without an access.
    pub async fn pause(&self) {
        self.mail.borrow_mut().idle = true;
        Step(self, |_: &mut World| Some(0)).await;
    }
    fn error(&self, text: String) {
        self.mail.borrow_mut().errors.push(text);
    }
}

const START_PAGE: u8 = 0x40;
const RX_START: u8 = 0x4c;
const STOP_PAGE: u8 = 0x80;

async fn probe(port: &Port) -> [u8; 6] {
    let reg0 = port.inb(0).await;
    assert_ne!(reg0, 0xff);
    port.outb(0, 0x61).await;
    let regd = port.inb(0x0d).await;
    port.outb(0x0d, 0xff).await;
    port.outb(0, 0x20).await;
    port.inb(0x0d).await;
    if port.inb(0x0d).await != 0 {
        port.outb(0, reg0).await;
        port.outb(0x0d, regd).await;
        panic!("not found");
    }
    let reset = port.inb(0x1f).await;
    port.outb(0x1f, reset).await;
    while port.inb(7).await & 0x80 == 0 {}
    port.outb(7, 0xff).await;
    for (at, value) in [
        (0, 0x21),
        (0x0e, 0x49),
        (0x0a, 0),
        (0x0b, 0),
        (0x0f, 0),
        (7, 0xff),
        (0x0c, 0x20),
        (0x0d, 2),
        (0x0a, 32),
        (0x0b, 0),
        (8, 0),
        (9, 0),
        (0, 0x0a),
    ] {
        port.outb(at, value).await;
    }
    let mut prom = [0u8; 32];
    for byte in &mut prom {
        *byte = port.read(0x10, 1).await as u8;
    }
    port.outb(0x0e, 0x49).await;
    std::array::from_fn(|i| prom[i])
}

async fn init(port: &Port, address: [u8; 6], start: bool) {
    for (at, value) in [
        (0, 0x21),
        (0x0e, 0x49),
        (0x0a, 0),
        (0x0b, 0),
        (0x0c, 0x20),
        (0x0d, 2),
        (4, START_PAGE),
        (1, RX_START),
        (3, STOP_PAGE - 1),
        (2, STOP_PAGE),
        (7, 0xff),
        (0x0f, 0),
        (0, 0x61),
    ] {
        port.outb(at, value).await;
    }
    for (index, byte) in address.into_iter().enumerate() {
        port.outb(1 + index as u16, byte).await;
        assert_eq!(port.inb(1 + index as u16).await, byte);
    }
    port.outb(7, RX_START).await;
    port.outb(0, 0x21).await;
    if start {
        port.outb(7, 0xff).await;
        port.outb(0x0f, 0x3f).await;
        port.outb(0, 0x22).await;
        port.outb(0x0d, 0).await;
        port.outb(0x0c, 0x04).await;
        port.outb(0, 0x61 & !1 | 2).await;
        for at in 8..16 {
            port.outb(at, 0xff).await;
        }
        port.outb(0, 0x22).await;
        port.outb(0x0c, 0x0c).await;
    }
}

struct Tx {
    tx1: usize,
    tx2: usize,
    busy: bool,
    last: i8,
}

async fn block_output(port: &Port, frame: &[u8], page: u8) {
    let count = frame.len().next_multiple_of(4);
    let mut bytes = frame.to_vec();
    bytes.resize(count, 0);
    port.outb(0, 0x22).await;
    port.outb(7, 0x40).await;
    for (at, value) in [(0x0a, count as u8), (0x0b, (count >> 8) as u8), (8, 0), (9, page), (0, 0x12)] {
        port.outb(at, value).await;
    }
    let whole = frame.len() & !3;
    port.outs(0x10, 4, &bytes[..whole]).await;
    if count > whole {
        port.outs(0x10, 2, &bytes[whole..]).await;
    }
    let mut polls = 0;
    while port.inb(7).await & 0x40 == 0 {
        polls += 1;
        if polls > 50 {
            port.error("timeout waiting for Tx RDC".into());
            break;
        }
    }
    port.outb(7, 0x40).await;
}

async fn trigger(port: &Port, len: usize, page: u8) {
    port.outb(0, 0x20).await;
    if port.inb(0).await & 4 != 0 {
        port.error("trigger_send() called with the transmitter busy".into());
        return;
    }
    port.outb(5, len as u8).await;
    port.outb(6, (len >> 8) as u8).await;
    port.outb(4, page).await;
    port.outb(0, 0x26).await;
}

async fn start_xmit(port: &Port, tx: &mut Tx, frame: &[u8]) {
    port.outb(0x0f, 0).await;
    let len = frame.len().max(60);
    let mut padded = frame.to_vec();
    padded.resize(len, 0);
    if tx.tx1 == 0 {
        tx.tx1 = len;
        block_output(port, &padded, START_PAGE).await;
        if !tx.busy {
            tx.busy = true;
            trigger(port, len, START_PAGE).await;
            tx.tx1 = usize::MAX;
            tx.last = -1;
        }
    } else if tx.tx2 == 0 {
        tx.tx2 = len;
        block_output(port, &padded, START_PAGE + 6).await;
        if !tx.busy {
            tx.busy = true;
            trigger(port, len, START_PAGE + 6).await;
            tx.tx2 = usize::MAX;
            tx.last = -2;
        }
    }
    port.outb(0x0f, 0x3f).await;
}

async fn tx_done(port: &Port, tx: &mut Tx) {
    let status = port.inb(4).await;
    port.outb(7, 2).await;
    if tx.tx1 == usize::MAX {
        tx.tx1 = 0;
        tx.busy = false;
        if tx.tx2 != 0 && tx.tx2 != usize::MAX {
            tx.busy = true;
            trigger(port, tx.tx2, START_PAGE + 6).await;
            tx.tx2 = usize::MAX;
        }
    } else if tx.tx2 == usize::MAX {
        tx.tx2 = 0;
        tx.busy = false;
        if tx.tx1 != 0 && tx.tx1 != usize::MAX {
            tx.busy = true;
            trigger(port, tx.tx1, START_PAGE).await;
            tx.tx1 = usize::MAX;
        }
    }
    port.mail.borrow_mut().sent += 1;
    match status {
        1 => {}
        // Given up: Linux counts an error and goes on.
        8 => port.mail.borrow_mut().aborted += 1,
        _ => port.error(format!("transmit status {status:#x}")),
    }
}

async fn block_input(port: &Port, at: u16, into: &mut [u8]) {
    port.outb(0, 0x22).await;
    let count = into.len() as u16;
    for (to, value) in
        [(0x0a, count as u8), (0x0b, (count >> 8) as u8), (8, at as u8), (9, (at >> 8) as u8), (0, 0x0a)]
    {
        port.outb(to, value).await;
    }
    let whole = into.len() & !3;
    let (long, mut rest) = into.split_at_mut(whole);
    port.ins(0x10, 4, long).await;
    if rest.len() & 2 != 0 {
        let (word, tail) = rest.split_at_mut(2);
        port.ins(0x10, 2, word).await;
        rest = tail;
    }
    if !rest.is_empty() {
        rest[0] = port.read(0x10, 1).await as u8;
    }
    port.outb(7, 0x40).await;
}

async fn receive(port: &Port, current_page: &mut u8) {
    let limit = port.world.borrow().receive_limit;
    for _ in 0..limit {
        port.outb(0, 0x60).await;
        let curr = port.inb(7).await;
        port.outb(0, 0x20).await;
        let mut this = port.inb(3).await.wrapping_add(1);
        if this >= STOP_PAGE {
            this = RX_START;
        }
        if this != *current_page {
            port.error(format!("mismatched read page pointers {this:#x} vs {:#x}", *current_page));
        }
        if this == curr {
            break;
        }
        let mut header = [0; 4];
        block_input(port, u16::from(this) << 8, &mut header).await;
        let length = usize::from(u16::from_le_bytes([header[2], header[3]])) - 4;
        let next = this as usize + 1 + ((length + 4) >> 8);
        let ring = usize::from(STOP_PAGE - RX_START);
        if ![next, next + 1, next.wrapping_sub(ring), (next + 1).wrapping_sub(ring)]
            .contains(&header[1].into())
        {
            port.error(format!("next frame inconsistency {header:x?} at {this:#x}"));
            *current_page = curr;
            port.outb(3, if curr == RX_START { STOP_PAGE - 1 } else { curr - 1 }).await;
            return;
        }
        if header[0] & 0x0f != 1 || !(60..=1518).contains(&length) {
            port.error(format!("bad header {header:x?}"));
        }
        let mut data = vec![0; length];
        block_input(port, (u16::from(this) << 8) + 4, &mut data).await;
        port.mail.borrow_mut().received.push(data);
        let mut next = header[1];
        if next >= STOP_PAGE {
            next = RX_START;
        }
        *current_page = next;
        port.outb(3, if next == RX_START { STOP_PAGE - 1 } else { next - 1 }).await;
    }
    port.outb(7, 0x05).await;
}

async fn interrupt(port: &Port, tx: &mut Tx, current_page: &mut u8) {
    port.outb(0, 0x22).await;
    for _ in 0..12 {
        let status = port.inb(7).await;
        if status & 0x3f == 0 {
            break;
        }
        if status & 0x05 != 0 {
            receive(port, current_page).await;
        }
        if status & 0x02 != 0 {
            tx_done(port, tx).await;
        } else if status & 0x08 != 0 {
            port.outb(7, 8).await;
            tx_done(port, tx).await;
        }
        port.outb(7, status & 0x30).await;
        port.outb(0, 0x22).await;
    }
}

/// Probes, opens, serves until told to stop, closes.
pub async fn run(port: Port) {
    let address = probe(&port).await;
    assert_eq!(address, super::mac(port.index));
    init(&port, address, false).await;
    init(&port, address, true).await;
    port.mail.borrow_mut().started = true;
    let mut tx = Tx { tx1: 0, tx2: 0, busy: false, last: 0 };
    let mut current_page = RX_START;
    loop {
        let line = port.world.borrow().lines[port.index];
        let next = if tx.tx1 == 0 || tx.tx2 == 0 { port.mail.borrow_mut().to_send.pop_front() } else { None };
        if let Some(frame) = next {
            start_xmit(&port, &mut tx, &frame).await;
        }
        if line {
            interrupt(&port, &mut tx, &mut current_page).await;
            port.world.borrow_mut().end_of_interrupt(port.index);
        } else if port.mail.borrow().stop && !tx.busy {
            break;
        } else {
            port.pause().await;
        }
    }
    init(&port, address, false).await;
    port.mail.borrow_mut().started = false;
    loop {
        port.pause().await;
    }
}

/// A driver with the state of its execution.
pub struct Driver {
    task: Pin<Box<dyn Future<Output = ()>>>,
    pub mail: Rc<RefCell<Mailbox>>,
}

impl Driver {
    pub fn new(world: &Shared, index: usize) -> Self {
        Self::with(world, index, |port| Box::pin(run(port)))
    }

    pub fn with(
        world: &Shared,
        index: usize,
        task: impl FnOnce(Port) -> Pin<Box<dyn Future<Output = ()>>>,
    ) -> Self {
        let mail = Rc::new(RefCell::new(Mailbox::default()));
        let port = Port { world: world.clone(), mail: mail.clone(), index };
        Self { task: task(port), mail }
    }

    /// Lets it make one access.
    pub fn step(&mut self) {
        self.mail.borrow_mut().grant = true;
        let mut context = Context::from_waker(Waker::noop());
        let _ = self.task.as_mut().poll(&mut context);
    }
}
