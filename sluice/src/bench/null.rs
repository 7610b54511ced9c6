//! What an exit costs that does nothing: guest/bare counts the instructions of the whole machine with the
//! time-stamp counter, under Sluice and under KVM.

use super::peer::{Guest, Peer};
use super::record::Record;
use super::{Clock, say, sluice};
use crate::kernels;
use crate::outcome::Finding;
use crate::printable::GuestText;
use anyhow::{Context, Result};

/// What is measured in both: the guest's name for it, ours, and about it.
const MEASURED: [(&str, &str, &str); 16] = [
    ("null.cpuid", "cpuid", "CPUID leaf 0x40000000; aim: under 400"),
    (
        "null.port_write",
        "port_write",
        "OUT to a port that is emulated (0x601); under KVM user space does; aim: under 600",
    ),
    ("null.port_write_pci", "port_write_pci", "OUT to 0xcf8; under KVM user space emulates it"),
    ("null.port_read_uart", "port_read_uart", "IN from 0x3fd; under KVM user space emulates it"),
    (
        "null.port_write_kernel",
        "port_write_kernel",
        "OUT to 0x21, a PC's old interrupt controller, which KVM's kernel emulates; Sluice has none, it is one more port that nobody has",
    ),
    ("null.port_write_refused", "port_write_refused", "OUT to 0x80, which nobody has"),
    ("null.vmmcall", "vmmcall", "an unknown hypercall"),
    ("null.msr_read", "msr_read", "RDMSR of the x2APIC's task priority"),
    ("null.msr_write", "msr_write", "WRMSR to it"),
    ("null.tsc_deadline", "tsc_deadline", "WRMSR that sets the timer"),
    ("null.self_ipi", "self_ipi", "WRMSR to self-IPI, and the interrupt taken"),
    (
        "null.mmio_read",
        "mmio_read",
        "a read of the I/O APIC's data register, by a move made before; aim: under 400",
    ),
    ("null.mmio_first", "mmio_first", "the first of these, once; aim: under 10,000"),
    (
        "null.mmio_decoded",
        "mmio_decoded",
        "a write to its select register by an instruction that is decoded each time",
    ),
    ("null.eoi_edge", "eoi_edge", "WRMSR that ends an edge-triggered interrupt"),
    (
        "null.eoi_level",
        "eoi_level",
        "WRMSR that ends a level-triggered interrupt whose line is low; aim: under 400",
    ),
];

/// Measures all.
pub fn measure(record: &mut Record) -> Result<()> {
    let (setup, outcome) = sluice("null-exit", Clock::Instructions, Vec::new())?;
    let findings = outcome.guests.into_iter().next().map(|guest| guest.findings).unwrap_or_default();
    add(record, "", &findings);

    let domain = setup.domains.first().context("bench/null-exit.toml has a domain")?;
    let peer = Peer {
        name: "null-exit-kvm".into(),
        clock: Clock::Instructions,
        network: false,
        qemu_args: Vec::new(),
    };
    let guest = Guest {
        kernel: &kernels::get("bare")?.image,
        initrd: None,
        cmdline: domain.cmdline.get_ref().clone(),
        memory: *domain.memory.get_ref(),
        arguments: "-machine q35".into(),
    };
    // What comes after needs a platform as Sluice's: on a PC, an interrupt of the old timer ends it.
    say(&format!("{} under KVM", peer.name));
    let findings = peer.run(&guest, "null.vmmcall", record)?;
    add(record, "kvm.", &findings);
    Ok(())
}

fn add(record: &mut Record, who: &str, findings: &[Finding]) {
    let all: Vec<&(GuestText, GuestText)> = findings.iter().flatten().collect();
    let value = |key: &str| all.iter().find(|pair| pair.0 == key)?.1.raw().parse::<f64>().ok();
    for (key, name, about) in MEASURED {
        if let Some(value) = value(key) {
            let note =
                format!("{about}; lowest of three averages of 1,000, with 3 or 4 instructions of the loop");
            record.row(format!("{who}null_exit.{name}"), value, "instructions", note);
        }
    }
}
