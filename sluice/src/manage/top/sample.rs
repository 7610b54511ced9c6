//! What has changed between two reports, as rates.

use crate::manage::total_exits;
use serde::Serialize;
use sluice_abi::report::{DeviceReport, DomainReport, DomainState, Report, ShareReport};

/// An instance between two looks.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Its name.
    pub instance: String,
    /// Since the hypervisor started.
    pub uptime_ns: u64,
    /// Between the looks.
    pub interval_ns: u64,
    /// Physical processors.
    pub cpus: u16,
    /// Bytes that nobody has.
    pub free_memory: u64,
    /// Its domains, in the order of the configuration.
    pub domains: Vec<DomainSample>,
    /// Its devices.
    pub devices: Vec<DeviceSample>,
}

/// A domain.
#[derive(Clone, Debug, Serialize)]
pub struct DomainSample {
    /// Its name.
    pub name: String,
    /// Its state now.
    #[serde(serialize_with = "as_word")]
    pub state: DomainState,
    /// Time that its processors ran; 100 is one processor.
    pub cpu_percent: f64,
    /// VM exits.
    pub exits_per_second: u64,
    /// Interrupts that were injected.
    pub interrupts_per_second: u64,
    /// The reason of most exits.
    pub most_exits: Option<String>,
    /// Requests that were refused, ever.
    pub refused: u64,
    /// Some were refused since the last look.
    pub is_refused_now: bool,
}

/// A device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceSample {
    /// Its name.
    pub name: String,
    /// Its model.
    pub model: String,
    /// The domain that has it now.
    pub holder: Option<String>,
    /// How often it changed hands.
    pub handoffs_per_second: u64,
    /// Its interrupts.
    pub interrupts_per_second: u64,
    /// Who shares it.
    pub shares: Vec<ShareSample>,
}

/// A domain's part in a device.
#[derive(Clone, Debug, Serialize)]
pub struct ShareSample {
    /// The domain.
    pub domain: String,
    /// How it is shared.
    pub mode: String,
    /// Hooked instructions.
    pub hooked_per_second: u64,
    /// Frames sent.
    pub tx_per_second: u64,
    /// Frames received.
    pub rx_per_second: u64,
    /// How often it had to wait.
    pub waits_per_second: u64,
    /// Part of the time in which it held the device; `None` where all have it at the same time.
    pub held_percent: Option<f64>,
}

fn as_word<S: serde::Serializer>(state: &DomainState, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.word())
}

impl Sample {
    /// What happened between two reports of an instance; without an earlier one, since the hypervisor started.
    pub fn between(instance: &str, before: Option<&Report>, now: &Report) -> Self {
        let nothing = Report::default();
        let before = before.unwrap_or(&nothing);
        let change = Change { ns: now.uptime_ns.saturating_sub(before.uptime_ns).max(1) };
        let domains = now.domains.iter().enumerate();
        let devices = now.devices.iter().enumerate();
        Self {
            instance: instance.to_owned(),
            uptime_ns: now.uptime_ns,
            interval_ns: change.ns,
            cpus: now.cpus,
            free_memory: now.free_memory,
            domains: domains.map(|(at, domain)| change.of_domain(before.domains.get(at), domain)).collect(),
            devices: devices.map(|(at, device)| change.of_device(before.devices.get(at), device)).collect(),
        }
    }
}

/// A span of time in which counters went on.
struct Change {
    ns: u64,
}

impl Change {
    fn per_second(&self, before: u64, now: u64) -> u64 {
        (now.saturating_sub(before) as f64 * 1e9 / self.ns as f64) as u64
    }

    fn percent(&self, before: u64, now: u64) -> f64 {
        let percent = now.saturating_sub(before) as f64 * 100.0 / self.ns as f64;
        (percent * 10.0).round() / 10.0
    }

    fn of_domain(&self, before: Option<&DomainReport>, now: &DomainReport) -> DomainSample {
        let nothing = DomainReport::default();
        let is_first = before.is_none();
        let before = before.unwrap_or(&nothing);
        let most = now.exits.iter().map(|count| {
            let old = before.exits.iter().find(|old| old.name == count.name).map_or(0, |old| old.value);
            (count.value.saturating_sub(old), &count.name)
        });
        let refused = |domain: &DomainReport| domain.refused.iter().map(|count| count.value).sum();
        DomainSample {
            name: now.name.clone(),
            state: now.state,
            cpu_percent: self.percent(before.run_ns, now.run_ns),
            exits_per_second: self.per_second(total_exits(before), total_exits(now)),
            interrupts_per_second: self.per_second(before.interrupts, now.interrupts),
            most_exits: most.max().filter(|(change, _)| *change > 0).map(|(_, name)| name.clone()),
            refused: refused(now),
            is_refused_now: !is_first && refused(now) > refused(before),
        }
    }

    fn of_device(&self, before: Option<&DeviceReport>, now: &DeviceReport) -> DeviceSample {
        let nothing = DeviceReport::default();
        let before = before.unwrap_or(&nothing);
        let shares = now.shares.iter().enumerate();
        // Its guests have it in turn, for times that are counted.
        let has_turns = now.shares.iter().any(|share| share.held_ns > 0);
        DeviceSample {
            name: now.name.clone(),
            model: now.model.clone(),
            holder: now.holder.clone(),
            handoffs_per_second: self.per_second(before.handoffs, now.handoffs),
            interrupts_per_second: self.per_second(before.interrupts, now.interrupts),
            shares: shares
                .map(|(at, share)| self.of_share(before.shares.get(at), share, has_turns))
                .collect(),
        }
    }

    fn of_share(&self, before: Option<&ShareReport>, now: &ShareReport, has_turns: bool) -> ShareSample {
        let nothing = ShareReport::default();
        let before = before.unwrap_or(&nothing);
        ShareSample {
            domain: now.domain.clone(),
            mode: now.mode.clone(),
            hooked_per_second: self.per_second(before.hooked_instructions, now.hooked_instructions),
            tx_per_second: self.per_second(before.tx_packets, now.tx_packets),
            rx_per_second: self.per_second(before.rx_packets, now.rx_packets),
            waits_per_second: self.per_second(before.waits, now.waits),
            held_percent: has_turns.then(|| self.percent(before.held_ns, now.held_ns)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_abi::report::Count;

    #[test]
    fn rates_are_changes_by_time() {
        let at = |seconds: u64, cpuid: u64, hlt: u64| Report {
            uptime_ns: seconds * 1_000_000_000,
            domains: vec![DomainReport {
                run_ns: seconds * 250_000_000,
                exits: [("cpuid", cpuid), ("hlt", hlt)]
                    .map(|(name, value)| Count { name: name.into(), value })
                    .into(),
                ..DomainReport::default()
            }],
            ..Report::default()
        };
        let sample = Sample::between("x", Some(&at(10, 1000, 50)), &at(12, 1010, 150));
        let domain = &sample.domains[0];
        assert_eq!((sample.interval_ns, domain.exits_per_second), (2_000_000_000, 55));
        assert_eq!((domain.cpu_percent, domain.most_exits.as_deref()), (25.0, Some("hlt")));
        let first = Sample::between("x", None, &at(10, 1000, 50));
        assert_eq!(first.domains[0].exits_per_second, 105, "since the start");
        let still = Sample::between("x", Some(&at(12, 1010, 150)), &at(12, 1010, 150));
        assert_eq!((still.domains[0].exits_per_second, &still.domains[0].most_exits), (0, &None));
    }
}
