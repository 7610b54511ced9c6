//! Times at which something is due.

/// The first of several times, if there is one. What has none counts as never: a card is asked after every access, and a chain of iterators
/// takes five times as much.
pub fn earliest<const N: usize>(times: [Option<u64>; N]) -> Option<u64> {
    let first = times.map(|at| at.unwrap_or(u64::MAX)).into_iter().fold(u64::MAX, u64::min);
    (first != u64::MAX).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_those_that_there_are() {
        assert_eq!(earliest([]), None);
        assert_eq!(earliest([None, None]), None);
        assert_eq!(earliest([Some(7), None, Some(0)]), Some(0));
    }
}
