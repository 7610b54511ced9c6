//! Grant spaces between two of these kernels: one gives pages ([`give`]), the other takes them ([`take`]), and both try what they may not.
//!
//! They talk by the first page that is granted: the giver writes a command and its number, the taker answers with the number. What is tried against
//! the rules is counted; what of it succeeded must be 0.

mod cost;
mod dma;
mod give;
mod table;
mod take;

use crate::console::println;
use crate::entry::BootInfo;
use crate::machine::{call, sleep, wait_for};
use crate::random::Random;
use sluice_hypercall::grant as hc;

/// Where the taker has its window: the first address that may have one.
const WINDOW: u64 = 448 << 30;
/// How long the other side is waited for, in ticks.
const PATIENCE: u64 = 60_000_000_000;
/// References of the space.
const SIZE: u64 = 2048;
/// What the giver's pages hold that nobody else must see.
const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;
/// What a taker writes where it may not.
const DAMAGE: u64 = 0xdada_dada_dada_dada;
/// The control page begins with this.
const MAGIC: u64 = 0x6772_616e_7473_2121;

/// Answers, as [`call`] gives them.
const NO_SUCH_CALL: i64 = -1000;
const NOT_PERMITTED: i64 = -1;
const ABSENT: i64 = -2;
const BUSY: i64 = -16;
const EXISTS: i64 = -17;
const BAD: i64 = -22;
const NO_PEER: i64 = -107;

/// What the giver asks the taker for.
mod command {
    pub const READ: u64 = 1;
    pub const WRITE: u64 = 2;
    pub const BEGIN_USE: u64 = 3;
    pub const END_USE: u64 = 4;
    pub const REPLAY: u64 = 5;
    pub const LIE: u64 = 6;
    /// To look at a page all the time, without an exit, until [`super::word::STOP`] is the command's number.
    pub const WATCH: u64 = 7;
    pub const MAP: u64 = 8;
    pub const UNMAP: u64 = 9;
    /// To copy between a page and a buffer of its own, as the value says.
    pub const COPY: u64 = 10;
    /// The same with memory that it does not have.
    pub const COPY_WILD: u64 = 11;
    /// To fill the buffer with the value, and to say what is there.
    pub const FILL: u64 = 12;
    pub const LOOK: u64 = 13;
    /// To try whatever it may not.
    pub const WILD: u64 = 14;
    /// To have a card read a page, and to say what came.
    pub const SEND: u64 = 15;
    /// To have it write the value there, once, or until [`super::word::STOP`] is the command's number.
    pub const RECEIVE: u64 = 16;
    pub const KEEP_WRITING: u64 = 17;
    /// To say of how many references it has the machine address.
    pub const ADDRESSES: u64 = 18;
}

/// Words of the control page.
mod word {
    pub const MAGIC: u64 = 0;
    pub const NUMBER: u64 = 8;
    pub const COMMAND: u64 = 16;
    pub const REFERENCE: u64 = 24;
    pub const VALUE: u64 = 32;
    pub const DONE: u64 = 64;
    pub const RESULT: u64 = 72;
    /// What was seen last of the page that is watched, and how often it was looked at.
    pub const SEEN: u64 = 128;
    pub const LOOKS: u64 = 136;
    pub const STOP: u64 = 192;
}

/// What the giver asked for.
struct Asked {
    what: u64,
    reference: u64,
    value: u64,
    number: u64,
}

/// Does what the giver asks for until that one has ended, and says whether it has: `answer` says what is answered, `after` goes on with what has been
/// answered already.
fn serve<T>(taker: &mut T, answer: impl Fn(&mut T, &Asked) -> u64, after: impl Fn(&mut T, &Asked)) -> bool {
    let mut done = 0;
    wait_for(4 * PATIENCE, || {
        sleep(300_000);
        if read(WINDOW + word::MAGIC) != MAGIC {
            return true;
        }
        let number = read(WINDOW + word::NUMBER);
        if number == done {
            return false;
        }
        let [what, reference, value] =
            [word::COMMAND, word::REFERENCE, word::VALUE].map(|word| read(WINDOW + word));
        let asked = Asked { what, reference: reference % SIZE, value, number };
        let result = answer(taker, &asked);
        write(WINDOW + word::RESULT, result);
        write(WINDOW + word::DONE, number);
        after(taker, &asked);
        done = number;
        false
    })
}

fn read(at: u64) -> u64 {
    unsafe { (at as *const u64).read_volatile() }
}

fn write(at: u64, value: u64) {
    unsafe { (at as *mut u64).write_volatile(value) };
}

fn issue(space: u64, reference: u64, page: u64, count: u64) -> i64 {
    call(hc::GRANT_ISSUE, [space, reference, page, count])
}

fn revoke(space: u64, reference: u64, count: u64, forced: bool) -> i64 {
    call(hc::GRANT_REVOKE, [space, reference, count, if forced { hc::GRANT_FORCED } else { 0 }])
}

fn query(space: u64, reference: u64) -> i64 {
    call(hc::GRANT_QUERY, [space, reference, 0, 0])
}

/// What must not succeed.
#[derive(Default)]
pub struct Attempts {
    pub tried: u64,
    pub succeeded: u64,
}

impl Attempts {
    pub fn count(&mut self, what: &str, succeeded: bool) {
        self.tried += 1;
        if succeeded {
            self.succeeded += 1;
            println!("attack: {what} succeeded");
        }
    }
}

/// Something between right and wrong.
fn number(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.wild(),
        1 => random.below(4),
        2 => random.below(SIZE + 2),
        _ => random.below(1 << 36) & !0xfff,
    }
}

/// Runs the side that has a card.
pub fn run_low(side: &str, boot: &BootInfo) {
    match side {
        "dma" => dma::take(boot),
        _ => println!("no such side: {side}"),
    }
}

/// Runs one side.
pub fn run(side: &str, boot: &BootInfo) {
    match side {
        "give" => give::run(boot),
        "lend" => table::lend(boot),
        "give-dma" => dma::give(boot),
        "ask-dma" => dma::ask(boot),
        "take" => take::run(boot),
        "steal" => take::steal(boot),
        "cost" => cost::run(boot),
        "idle" => cost::idle(boot),
        "permit" => cost::permit(boot),
        "uses" => cost::uses(boot),
        _ => println!("no such side: {side}"),
    }
}
