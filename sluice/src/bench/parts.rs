//! The parts of a benchmark: which are wanted, and how long it has been running.

use std::time::Instant;

/// What of a benchmark is to be measured.
pub struct Parts {
    started: Instant,
    /// Parts, and pieces of parts; all if none is named.
    only: Vec<String>,
}

impl Parts {
    /// It begins now.
    pub fn new(only: &[String]) -> Self {
        Self { started: Instant::now(), only: only.to_vec() }
    }

    /// Whether a part is wanted, or this piece of it (`PART.PIECE`).
    pub fn wants(&self, part: &str, piece: Option<&str>) -> bool {
        let named =
            |only: &String| only == part || piece.is_some_and(|piece| *only == format!("{part}.{piece}"));
        self.only.is_empty() || self.only.iter().any(named)
    }

    /// Seconds since it began.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Says what comes.
    pub fn say(&self, what: &str) {
        crate::output::note(format_args!("  [{:5.0} s] {what}", self.seconds()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_wanted_whole_or_by_pieces() {
        let wants = |only: &[&str], piece| {
            Parts::new(&only.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()).wants("sole", piece)
        };
        assert!(wants(&[], None) && wants(&[], Some("e1000")));
        assert!(wants(&["sole"], Some("e1000")) && wants(&["peers", "sole.e1000"], Some("e1000")));
        assert!(!wants(&["sole.e1000"], None) && !wants(&["sole.e1000"], Some("ne2000")));
    }
}
