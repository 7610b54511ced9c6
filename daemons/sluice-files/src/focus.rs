//! What a guest has of devices that it shares with others, of which one is in the foreground.

use crate::input::Shared;
use crate::result;
use crate::sound::Sound;
use anyhow::{Context, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Listens to an input device and plays sound, and tells of it when a line comes: under the name that this is. At the line "press" it presses keys
/// for as long as it may.
pub fn run(input: &Path, sound: Option<&Path>) -> Result<()> {
    let mut input = Shared::open(input)?;
    let played = Arc::new(AtomicU32::new(0));
    if let Some(path) = sound {
        let (mut sound, count) = (Sound::open(path)?, Arc::clone(&played));
        std::thread::spawn(move || {
            while sound.play_on().inspect_err(|error| eprintln!("{error:#}")).is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    result("focus=ready");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).context("no line came")? > 0 {
        let about = std::mem::take(&mut line);
        let about = about.trim();
        if about == "press" {
            result("pressing=ok");
            input.press_on()?;
            result("refused=ok");
            continue;
        }
        // What is on its way arrives.
        std::thread::sleep(Duration::from_millis(500));
        if sound.is_some() {
            result(&format!("played_{about}={}", played.swap(0, Ordering::Relaxed)));
        }
        input.tell(about)?;
        if about == "end" {
            break;
        }
    }
    Ok(())
}
