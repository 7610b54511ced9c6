//! What a domain that serves devices finds of what its guests keep to themselves, and can change of it. A guest that lends all its memory has no
//! secrets; one that issues pages is asked for them here by every reference that there is.

use crate::{let_go, map};
use anyhow::{Context, Result};
use std::path::PathBuf;
use vm_memory::{Bytes, VolatileMemory};

/// What guests write all over memory that is nobody else's business (guest/rootfs/init, `secret`).
const SECRET: &[u8] = b"nobody-else-reads-this\n";
/// What is written over the beginning of a page that has some of it.
const ALTERED: &[u8] = b"but somebody did";
const PAGE: usize = 4096;
/// The BAR of the window (`sluice_hypercall::backend`).
const WINDOW: u8 = 2;

/// Looks through all windows, and overwrites what it finds.
pub fn look(functions: &[PathBuf]) -> Result<()> {
    let (mut pages, mut secrets, mut altered) = (0u64, 0u64, 0u64);
    for function in functions {
        let_go(function)?;
        let region = map(function, WINDOW).context("window")?;
        let window = region.as_volatile_slice();
        let mut page = [0; PAGE];
        for at in (0..window.len()).step_by(PAGE) {
            window.read_slice(&mut page, at)?;
            pages += 1;
            if page.windows(SECRET.len()).any(|part| part == SECRET) {
                secrets += 1;
                window.write_slice(ALTERED, at)?;
                let mut now = [0; ALTERED.len()];
                window.read_slice(&mut now, at)?;
                altered += u64::from(now == ALTERED);
            }
        }
    }
    println!("SLUICE-RESULT looked_at={pages} secrets={secrets} altered={altered}");
    Ok(())
}
