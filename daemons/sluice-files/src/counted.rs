//! Marks around what is done a few times and then many times, for who counts instructions from outside.

use crate::result;
use anyhow::Result;
use sluice_processes::mark;

/// How often something is done between the first two marks, and between the last two.
#[derive(Clone, Copy, Debug)]
pub struct TwoCounts {
    /// Between the first two.
    pub few: u32,
    /// Between the last two.
    pub many: u32,
}

/// Does something so often, with marks before, between and after.
pub fn counted(name: &str, counts: TwoCounts, mut act: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let TwoCounts { few, many } = counts;
    mark();
    act(few)?;
    mark();
    act(many)?;
    mark();
    result(&format!("at={name} few={few} many={many}"));
    Ok(())
}
