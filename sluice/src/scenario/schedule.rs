//! Which scenario starts next, and which may run side by side.
//!
//! A processor that TCG emulates is a thread, busy as long as a guest is. What may run at once is therefore bounded by
//! the sum of these threads, not by the number of machines: otherwise guests and hypervisor see their own time pass while
//! another machine has the host's processor, and whatever waits for a second fails now and then.

use super::durations::Duration;

/// What the schedule must know of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Seconds it took when it was recorded.
    pub seconds: f64,
    /// Processors of the host that it keeps busy.
    pub weight: f64,
}

/// Seconds that nothing takes.
const UNKNOWN: f64 = 1e6;

impl Cost {
    /// From what was recorded, and the processors of the machine, none of which is busier than one thread. One that was never
    /// recorded takes longer than all others; how long it may take says which of several such is the longest.
    pub fn new(recorded: Option<Duration>, cpus: u8, timeout: f64) -> Self {
        let most = f64::from(cpus.max(1));
        match recorded {
            // Some wait for a disk or a timer most of the time. A quarter is the least, since any boot is busy at first.
            Some(Duration { wall, cpu }) if wall > 0.0 => {
                Self { seconds: wall, weight: (cpu / wall).clamp(0.25, most) }
            }
            _ => Self { seconds: UNKNOWN + timeout, weight: most },
        }
    }
}

/// The queue: scenarios that wait, the longest first, and what is left of the host.
pub struct Schedule {
    /// Index and cost.
    waiting: Vec<(usize, Cost)>,
    capacity: f64,
    jobs: usize,
    running: usize,
    used: f64,
}

impl Schedule {
    /// At most `jobs` at a time, which together keep at most `capacity` processors busy.
    pub fn new(costs: impl IntoIterator<Item = Cost>, jobs: usize, capacity: f64) -> Self {
        let mut waiting: Vec<(usize, Cost)> = costs.into_iter().enumerate().collect();
        waiting.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
        Self { waiting, capacity, jobs: jobs.max(1), running: 0, used: 0.0 }
    }

    /// Takes the longest that fits beside those that run; one that fits nowhere runs alone.
    pub fn start(&mut self) -> Option<(usize, Cost)> {
        if self.running == self.jobs {
            return None;
        }
        // Weights are measured: half a tenth more than there is does not matter.
        let room = self.capacity - self.used + 0.05;
        let fits = |(_, cost): &(usize, Cost)| self.running == 0 || cost.weight <= room;
        let next = self.waiting.iter().position(fits)?;
        let (index, cost) = self.waiting.remove(next);
        self.running += 1;
        self.used += cost.weight;
        Some((index, cost))
    }

    /// One that was started is over.
    pub fn finish(&mut self, cost: Cost) {
        self.running -= 1;
        self.used -= cost.weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(seconds: f64, weight: f64) -> Cost {
        Cost { seconds, weight }
    }

    fn started(schedule: &mut Schedule) -> Vec<usize> {
        std::iter::from_fn(|| schedule.start()).map(|(index, _)| index).collect()
    }

    #[test]
    fn the_longest_and_the_unknown_start_first() {
        let unknown = |timeout| Cost::new(None, 1, timeout);
        let costs = [cost(5.0, 1.0), unknown(60.0), cost(50.0, 1.0), unknown(180.0)];
        assert_eq!(started(&mut Schedule::new(costs, 9, 9.0)), [3, 1, 2, 0]);
    }

    #[test]
    fn what_does_not_fit_waits_and_shorter_ones_go_first() {
        let mut schedule = Schedule::new([cost(9.0, 1.0), cost(8.0, 2.0), cost(7.0, 1.0)], 9, 2.0);
        assert_eq!(started(&mut schedule), [0, 2]);
        schedule.finish(cost(9.0, 1.0));
        assert!(started(&mut schedule).is_empty(), "one processor is not enough");
        schedule.finish(cost(7.0, 1.0));
        assert_eq!(started(&mut schedule), [1]);
    }

    #[test]
    fn what_is_larger_than_the_host_runs_alone() {
        let mut schedule = Schedule::new([cost(9.0, 4.0), cost(1.0, 1.0)], 9, 2.0);
        assert_eq!(started(&mut schedule), [0]);
        schedule.finish(cost(9.0, 4.0));
        assert_eq!(started(&mut schedule), [1]);
    }

    #[test]
    fn no_more_run_than_jobs() {
        let mut schedule = Schedule::new([cost(1.0, 0.25); 5], 2, 9.0);
        assert_eq!(started(&mut schedule).len(), 2);
    }

    #[test]
    fn a_recorded_scenario_weighs_what_it_kept_busy() {
        let weight = |wall, cpu, cpus| Cost::new(Some(Duration { wall, cpu }), cpus, 60.0).weight;
        assert_eq!(weight(10.0, 5.0, 2), 0.5);
        assert_eq!(weight(10.0, 0.0, 2), 0.25);
        assert_eq!(weight(10.0, 25.0, 2), 2.0);
        assert_eq!(Cost::new(None, 2, 60.0).weight, 2.0);
    }
}
