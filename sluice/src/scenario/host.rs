//! Whether the host's processors ran what they were to run beside the scenarios. A host that is a virtual machine itself may be kept
//! from running for seconds, as a whole or one of its processors; what waits for that one fails, and the failure should say so.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often each processor is looked at.
const PERIOD: Duration = Duration::from_millis(100);

/// Shorter ones are no news: others have the processor in turn.
const LONG: Duration = Duration::from_secs(1);

/// A time in which a processor did not run a thread that had nothing to wait for.
#[derive(Clone, Copy, Debug)]
struct Standstill {
    processor: usize,
    from: Instant,
    took: Duration,
}

/// The standstills of all processors since it was begun.
#[derive(Clone, Default)]
pub struct Watch {
    noted: Arc<Mutex<Vec<Standstill>>>,
}

impl Watch {
    /// Starts a thread on each processor that this one may use. They end with the program.
    pub fn begin() -> Self {
        let watch = Self::default();
        let usable = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        for processor in (0..CpuSet::MAX_CPU).filter(|processor| usable.is_set(*processor)) {
            let watch = watch.clone();
            std::thread::spawn(move || watch.look(processor));
        }
        watch
    }

    fn look(&self, processor: usize) {
        let mut own = CpuSet::new();
        own.set(processor);
        if sched_setaffinity(None, &own).is_err() {
            return;
        }
        loop {
            let from = Instant::now();
            std::thread::sleep(PERIOD);
            self.note(processor, from, from.elapsed());
        }
    }

    /// One look: it began at `from`, and took this long.
    fn note(&self, processor: usize, from: Instant, took: Duration) {
        if took >= PERIOD + LONG {
            self.noted.lock().unwrap_or_else(PoisonError::into_inner).push(Standstill {
                processor,
                from,
                took: took - PERIOD,
            });
        }
    }

    /// What there was since `start`, a line each.
    pub fn since(&self, start: Instant) -> Vec<String> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let later = noted.iter().filter(|still| still.from + PERIOD + still.took > start);
        later
            .map(|Standstill { processor, from, took }| {
                let at = from.saturating_duration_since(start).as_secs_f64();
                let took = took.as_secs_f64();
                format!(
                    "the host's processor {processor} stood still for {took:.1} s, {at:.1} s after the start"
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_told_of_whoever_ran_then() {
        let watch = Watch::default();
        let start = Instant::now();
        watch.note(1, start + Duration::from_secs(44), PERIOD + Duration::from_secs(12));
        watch.note(0, start + Duration::from_secs(50), Duration::from_millis(900));
        assert_eq!(
            watch.since(start),
            ["the host's processor 1 stood still for 12.0 s, 44.0 s after the start"]
        );
        assert_eq!(watch.since(start + Duration::from_secs(50)).len(), 1, "it was in the middle of that");
        assert!(watch.since(start + Duration::from_secs(57)).is_empty());
    }

    #[test]
    fn each_processor_is_looked_at() {
        let watch = Watch::begin();
        let usable = sched_getaffinity(None).unwrap().count() as usize;
        let deadline = Instant::now() + Duration::from_secs(20);
        // Each thread has its copy.
        while Arc::strong_count(&watch.noted) != 1 + usable && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&watch.noted), 1 + usable);
        std::thread::sleep(3 * PERIOD);
        assert_eq!(Arc::strong_count(&watch.noted), 1 + usable, "they go on, each on its own");
    }
}
