//! Who sits at the machine: a page on its screen, and the keys that choose what is on it and type into a guest's console.

use super::keyboard::{Key, Keyboard};
use crate::x86::tsc;
use crate::{log, screen};
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_abi::report::Report;
use sluice_screen::{Lines, Page, Progress, Tail, View};

/// How often the page is drawn, and the keyboard asked even if it does not interrupt.
const PERIOD_NS: u64 = 500_000_000;

/// TSC at which the page is drawn next; `u64::MAX` without a screen.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);

/// What is kept of a guest's console.
pub type Kept = Tail<96, 160>;

/// The operator's place at the machine.
pub struct Operator {
    keyboard: Option<Keyboard>,
    view: View,
    before: Option<Report>,
}

/// TSC at which the first processor must look at the screen again.
pub fn next() -> u64 {
    NEXT.load(Ordering::Relaxed)
}

impl Operator {
    /// The operator, if the machine has a screen.
    pub fn sit_down() -> Option<Self> {
        if !screen::is_present() {
            return None;
        }
        NEXT.store(0, Ordering::Relaxed);
        let keyboard = Keyboard::init();
        if keyboard.is_none() {
            ::log::info!("no keyboard: the screen shows the log");
        }
        Some(Self { keyboard, view: View::Log, before: None })
    }

    /// Draws the page. `console` finds what is kept of a guest's console.
    pub fn show<'a>(
        &mut self,
        report: Report,
        progress: Progress,
        console: impl Fn(usize) -> Option<&'a Kept>,
    ) {
        let before = self.before.as_ref();
        let view = self.view;
        let nothing = Kept::new();
        screen::show(|canvas| {
            let mut draw =
                |text: &dyn Lines| Page { report: &report, before, progress, view, text }.draw(canvas);
            match view {
                View::Log => {
                    log::with_kept(false, |kept| draw(kept));
                }
                View::Console(index) => draw(console(index).unwrap_or(&nothing)),
            }
        });
        self.before = Some(report);
        NEXT.store(tsc::now().saturating_add(tsc::ticks_from_ns(PERIOD_NS)), Ordering::Relaxed);
    }

    /// The next key that is not for the screen itself, and the guest whose console is shown.
    pub fn key(&mut self) -> Option<(Key, Option<usize>)> {
        while let Some(key) = self.keyboard.as_mut().and_then(Keyboard::read) {
            match (key, self.view) {
                (Key::View(view), _) => {
                    self.view = view;
                    NEXT.store(0, Ordering::Relaxed);
                }
                (key, View::Console(index)) => return Some((key, Some(index))),
                (key, View::Log) => return Some((key, None)),
            }
        }
        None
    }
}
