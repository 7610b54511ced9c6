//! A controller of a network's signals that passes on what it likes: anything at the doorbell and in the words, a million signals that nobody waits for,
//! the function switched off and on with signals under way, and at last none at all.
//!
//! Between two guests of the network data go over meanwhile. While nothing is passed on they wait, and go on when this guest has ended.

use crate::console::println;
use crate::dma::memory::{get, put, put64};
use crate::machine::{outb, outl, outw, sleep};
use crate::pci::{self, COMMAND, COMMAND_IO, COMMAND_MASTER, COMMAND_MEMORY, COMMAND_SILENT, Function};
use crate::random::Random;
use sluice_hypercall::backend::VENDOR;
use sluice_hypercall::signals::{
    SIGNALS_BAR, SIGNALS_DEVICE, SIGNALS_DOORBELL_BAR, SIGNALS_DOORBELL_SENT, SIGNALS_GROUP_SHIFT,
    SIGNALS_GROUPS, SIGNALS_MSIX_PENDING, SIGNALS_MSIX_TABLE, SIGNALS_RECEIVED, SIGNALS_SENT,
};

/// Vector of the message: as of the timer that wakes the guest.
const VECTOR: u32 = 0x40;
const MSIX: u32 = 0x11;
const MSIX_ON: u32 = 1 << 31;
/// Each VIF of a group.
const ALL: u32 = 0xffff;
/// Words of the MSI-X table, and behind it, but for the vector: any of these would end this guest.
const AROUND: [u64; 5] = [0x0, 0x4, 0xc, 0x10, 0x3c];
/// Ticks of the time-stamp counter: while signals are kept, and until one has come.
const WHILE: u64 = 4_000_000_000;
const PATIENCE: u64 = 20_000_000_000;

/// How often it passes on what it has been told of: each time one signal at least.
const PASSES: u32 = 30;

struct Controller {
    function: Function,
    capability: u32,
    words: u64,
    doorbell: u16,
}

impl Controller {
    fn open() -> Option<Self> {
        let wanted = u32::from(SIGNALS_DEVICE) << 16 | u32::from(VENDOR);
        let function = pci::find(|function| function.read(0) == wanted)?;
        function.enable();
        let capability = function.capability(MSIX)?;
        let words = function.memory(SIGNALS_BAR.into());
        let controller =
            Self { function, capability, words, doorbell: function.ports(SIGNALS_DOORBELL_BAR.into()) };
        controller.program();
        Some(controller)
    }

    /// Takes signals, as a driver does.
    fn program(&self) {
        let table = self.words + u64::from(SIGNALS_MSIX_TABLE);
        for (word, at) in [0xfee0_0000, 0, VECTOR, 0].into_iter().zip((table..).step_by(4)) {
            put(at, word);
        }
        self.function.enable();
        self.function.write(self.capability, MSIX_ON);
    }

    /// Whether an engine has set a bit within the time that one may take.
    fn is_told(&self) -> bool {
        for _ in 0..100 {
            if [SIGNALS_RECEIVED, SIGNALS_SENT].iter().any(|word| get(self.words + u64::from(*word)) != 0) {
                return true;
            }
            sleep(PATIENCE / 100);
        }
        false
    }

    /// Empties the words.
    fn clear(&self) {
        [SIGNALS_RECEIVED, SIGNALS_SENT].iter().for_each(|word| put64(self.words + u64::from(*word), 0));
    }

    /// Passes everything on that there could be.
    fn pass_all(&self) {
        for group in 0..SIGNALS_GROUPS {
            for direction in [0, SIGNALS_DOORBELL_SENT] {
                outl(self.doorbell, direction | group << SIGNALS_GROUP_SHIFT | ALL);
            }
        }
    }

    /// Anything, anywhere.
    fn garbage(&self, random: &mut Random) {
        for _ in 0..20_000u32 {
            let (wild, within) = (random.wild(), random.below(0x1000) & !7);
            match random.below(8) {
                0 => outb(self.doorbell + (random.below(4) as u16), wild as u8),
                1 => outw(self.doorbell + (random.below(4) as u16), wild as u16),
                2 => put64(self.words + within, wild),
                3 => put64(self.words + u64::from(SIGNALS_RECEIVED), wild),
                4 => put(self.words + u64::from(SIGNALS_MSIX_PENDING) + (within & 0x1c), wild as u32),
                5 => {
                    let at = AROUND[random.below(AROUND.len() as u64) as usize];
                    put(self.words + u64::from(SIGNALS_MSIX_TABLE) + at, wild as u32);
                }
                _ => outl(self.doorbell, wild as u32),
            }
        }
        self.clear();
        self.program();
    }

    /// Does not master the bus, has no messages, has no words, and all again.
    fn switches(&self, random: &mut Random) {
        for _ in 0..2_000u32 {
            match random.below(4) {
                0 => self.function.write(COMMAND, COMMAND_IO | COMMAND_MEMORY | COMMAND_SILENT),
                1 => self.function.write(self.capability, 0),
                2 => self.function.write(COMMAND, COMMAND_IO | COMMAND_MASTER | COMMAND_SILENT),
                _ => self.program(),
            }
        }
        self.program();
    }
}

/// Runs the attack.
pub fn run(random: &mut Random) {
    let Some(controller) = Controller::open() else {
        println!("no signals to pass on");
        return;
    };
    println!("SLUICE-RESULT interrupted={}", if controller.is_told() { "yes" } else { "no" });
    controller.garbage(random);
    controller.switches(random);
    // Signals that are owed are passed on in between: data go over.
    for _ in 0..10_000u32 {
        controller.pass_all();
    }
    println!("SLUICE-RESULT controller.words=done");
    // Each time something is owed, whatever else the words said. Emptied first: what is owed from then on is told. What was owed before and is not
    // in the words any more would not be told again.
    let mut is_kept = false;
    for _ in 0..=PASSES {
        controller.clear();
        controller.pass_all();
        is_kept = controller.is_told();
    }
    sleep(WHILE);
    println!("SLUICE-RESULT controller.kept={}", if is_kept { "yes" } else { "no" });
}
