//! `metrics`: counters in the text format of Prometheus (exposition format 0.0.4).

use crate::control::{Client, running};
use crate::output;
use anyhow::Result;
use sluice_abi::report::{DeviceReport, DomainReport, Report, ShareReport};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Prints the counters of all instances that answer.
pub fn metrics() -> Result<()> {
    let mut page = Page::default();
    for instance in running()? {
        let report = Client::connect(&instance).and_then(|mut client| client.report());
        page.instance(&instance.name, report.ok().as_ref());
    }
    output::print(page.render())
}

/// A metric: its kind, what it is, and its samples as labels and values.
type Family = (&'static str, &'static str, Vec<(String, f64)>);

/// Metrics by name: those of one name must follow each other.
#[derive(Default)]
struct Page(BTreeMap<&'static str, Family>);

impl Page {
    fn add(
        &mut self,
        name: &'static str,
        kind: &'static str,
        help: &'static str,
        labels: &[(&str, &str)],
        value: f64,
    ) {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let (.., samples) = self.0.entry(name).or_insert((kind, help, Vec::new()));
        samples.push((labels.join(","), value));
    }

    fn instance(&mut self, instance: &str, report: Option<&Report>) {
        let labels = [("instance", instance)];
        let up = f64::from(u8::from(report.is_some()));
        self.add("sluice_up", "gauge", "Whether the instance answers.", &labels, up);
        let Some(report) = report else { return };
        let uptime = report.uptime_ns as f64 / 1e9;
        self.add("sluice_uptime_seconds", "gauge", "Time since the hypervisor started.", &labels, uptime);
        self.add(
            "sluice_processors",
            "gauge",
            "Physical processors online.",
            &labels,
            f64::from(report.cpus),
        );
        let free = report.free_memory as f64;
        self.add("sluice_free_memory_bytes", "gauge", "Memory that nobody has.", &labels, free);
        report.domains.iter().for_each(|domain| self.domain(instance, domain));
        report.devices.iter().for_each(|device| self.device(instance, device));
    }

    fn domain(&mut self, instance: &str, domain: &DomainReport) {
        let labels = [("instance", instance), ("domain", domain.name.as_str())];
        let with = |key, value| [labels[0], labels[1], (key, value)];
        let state = with("state", domain.state.word());
        self.add("sluice_domain_state", "gauge", "1 for the state that the domain is in.", &state, 1.0);
        let ran = domain.run_ns as f64 / 1e9;
        self.add("sluice_domain_run_seconds_total", "counter", "Time its processors ran.", &labels, ran);
        for count in &domain.exits {
            let labels = with("reason", &count.name);
            self.add(
                "sluice_domain_exits_total",
                "counter",
                "Exits, by reason.",
                &labels,
                count.value as f64,
            );
        }
        for count in &domain.refused {
            let labels = with("kind", &count.name);
            let help = "Accesses refused, by kind.";
            self.add("sluice_domain_refused_total", "counter", help, &labels, count.value as f64);
        }
        for count in &domain.paravirtual {
            if count.name == "given_back" {
                let help = "Pages that a paravirtual guest has given back.";
                self.add("sluice_domain_given_back_pages", "gauge", help, &labels, count.value as f64);
                continue;
            }
            let labels = with("what", &count.name);
            let help = "What a paravirtual guest asked for: hypercalls, operations on page tables, and more.";
            self.add("sluice_domain_paravirtual_total", "counter", help, &labels, count.value as f64);
        }
        let interrupts = domain.interrupts as f64;
        self.add("sluice_domain_interrupts_total", "counter", "Interrupts injected.", &labels, interrupts);
        let restarts = f64::from(domain.restarts);
        self.add(
            "sluice_domain_restarts_total",
            "counter",
            "How often it was started again.",
            &labels,
            restarts,
        );
    }

    fn device(&mut self, instance: &str, device: &DeviceReport) {
        let labels = [("instance", instance), ("device", device.name.as_str())];
        let handoffs = device.handoffs as f64;
        self.add("sluice_device_handoffs_total", "counter", "How often it changed hands.", &labels, handoffs);
        let interrupts = device.interrupts as f64;
        self.add("sluice_device_interrupts_total", "counter", "Interrupts it raised.", &labels, interrupts);
        for share in &device.shares {
            self.share(&[labels[0], labels[1], ("domain", share.domain.as_str())], share);
        }
    }

    fn share(&mut self, labels: &[(&str, &str)], share: &ShareReport) {
        let counters: [(&'static str, &'static str, f64); 6] = [
            (
                "sluice_share_hooked_instructions_total",
                "Accesses that exited.",
                share.hooked_instructions as f64,
            ),
            (
                "sluice_share_transmitted_packets_total",
                "Frames seen on their way out.",
                share.tx_packets as f64,
            ),
            ("sluice_share_received_packets_total", "Frames delivered.", share.rx_packets as f64),
            ("sluice_share_refused_total", "Accesses refused.", share.refused as f64),
            ("sluice_share_wait_seconds_total", "Time it waited for the device.", share.wait_ns as f64 / 1e9),
            ("sluice_share_held_seconds_total", "Time it held the device.", share.held_ns as f64 / 1e9),
        ];
        for (name, help, value) in counters {
            self.add(name, "counter", help, labels, value);
        }
    }

    fn render(&self) -> String {
        let mut text = String::new();
        for (name, (kind, help, samples)) in &self.0 {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        }
        text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_abi::report::Count;

    #[test]
    fn metrics_of_one_name_follow_each_other() {
        let domain = |name: &str| DomainReport {
            name: name.into(),
            exits: vec![Count { name: "cpu\"id".into(), value: 42 }],
            paravirtual: ["updates", "given_back"].map(|name| Count { name: name.into(), value: 7 }).into(),
            run_ns: 1_500_000_000,
            ..DomainReport::default()
        };
        let report = Report { domains: vec![domain("alice"), domain("bob")], ..Report::default() };
        let mut page = Page::default();
        page.instance("one", Some(&report));
        page.instance("two", None);
        let text = page.render();
        assert!(text.contains(
            "# TYPE sluice_up gauge\nsluice_up{instance=\"one\"} 1\nsluice_up{instance=\"two\"} 0\n"
        ));
        assert!(text.contains(
            "sluice_domain_exits_total{instance=\"one\",domain=\"alice\",reason=\"cpu\\\"id\"} 42\n\
             sluice_domain_exits_total{instance=\"one\",domain=\"bob\",reason=\"cpu\\\"id\"} 42\n"
        ));
        assert!(text.contains("sluice_domain_run_seconds_total{instance=\"one\",domain=\"bob\"} 1.5\n"));
        assert!(text.contains("# TYPE sluice_domain_given_back_pages gauge\n"));
        assert!(text.contains("sluice_domain_given_back_pages{instance=\"one\",domain=\"bob\"} 7\n"));
        assert!(!text.contains("what=\"given_back\""));
        let names: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let unique: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), unique.len());
    }

    #[test]
    fn the_document_asks_for_what_there_is() {
        let page = std::fs::read_to_string(crate::workspace::root().join("docs/monitoring.md")).unwrap();
        let code = include_str!("metrics.rs");
        let names = regex_lite::Regex::new("sluice_[a-z_]+[a-z]").unwrap();
        let asked: Vec<&str> = names.find_iter(&page).map(|found| found.as_str()).collect();
        assert!(asked.len() > 4);
        for name in asked {
            assert!(code.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
