//! The console's ring, or its call in a kernel that is the initial domain's.

use crate::interface::{call, hypercall, rest};
use crate::memory::Machine;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const OUT: u64 = 1024;
const OUT_BYTES: u32 = 2048;
const OUT_CONS: u64 = 3080;
const OUT_PROD: u64 = 3084;

/// Where the ring is.
static RING: AtomicU64 = AtomicU64::new(0);
static PORT: AtomicU32 = AtomicU32::new(0);

/// Finds the ring.
pub fn init(machine: &Machine) {
    if machine.is_initial {
        return;
    }
    RING.store(machine.address(machine.page_of(machine.console)), Ordering::Relaxed);
    PORT.store(machine.console_port, Ordering::Relaxed);
}

fn send() {
    let port = PORT.load(Ordering::Relaxed);
    hypercall(call::EVENT_CHANNEL_OP, [4, &raw const port as u64, 0, 0]);
}

/// Where `println!` writes to.
pub struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let ring = RING.load(Ordering::Relaxed);
        if ring == 0 {
            let mut rest_of = text.as_bytes();
            while !rest_of.is_empty() {
                // CONSOLEIO_write takes as much as there is room for.
                let taken =
                    hypercall(call::CONSOLE_IO, [0, rest_of.len() as u64, rest_of.as_ptr() as u64, 0]);
                rest_of = rest_of.get(taken.max(0) as usize..).unwrap_or_default();
                rest();
            }
            return Ok(());
        }
        let index = |at: u64| (ring + at) as *mut u32;
        for byte in text.bytes() {
            unsafe {
                let to = index(OUT_PROD).read_volatile();
                while to.wrapping_sub(index(OUT_CONS).read_volatile()) >= OUT_BYTES {
                    send();
                    rest();
                }
                ((ring + OUT + u64::from(to % OUT_BYTES)) as *mut u8).write_volatile(byte);
                index(OUT_PROD).write_volatile(to.wrapping_add(1));
            }
        }
        send();
        Ok(())
    }
}

/// Prints a line to the console.
macro_rules! println {
    ($($arg:tt)*) => {{
        use core::fmt::Write;
        let _ = write!(crate::console::Console, $($arg)*);
        let _ = crate::console::Console.write_str("\n");
    }};
}

pub(crate) use println;
