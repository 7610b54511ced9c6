//! The tables as ACPICA's compiler reads them: it disassembles each, and compiles the DSDT again to the
//! same bytes. Passes with a note where `iasl` (Debian: acpica-tools) is not installed.

use sluice_memory::Gpa;
use sluice_platform::acpi::{self, Description, Iommu, IrqRoute};
use std::path::Path;
use std::process::{Command, Output};

fn iasl(folder: &Path, arguments: &[&str]) -> Option<Output> {
    Command::new("iasl").current_dir(folder).args(arguments).output().ok()
}

#[test]
fn iasl_reads_the_tables_back() {
    let routes: Vec<_> = (1..8)
        .flat_map(|slot| (0..4).map(move |pin| IrqRoute { slot, pin, gsi: 16 + (slot + pin) % 8 }))
        .collect();
    let description = Description {
        vcpus: 4,
        routes: &routes,
        sockets: &[8, 9, 31],
        io_window: 0xC000..0x1_0000,
        mmio_window: 0xC000_0000..0xE000_0000,
        high_window: 0x40_0000_0000..0x80_0000_0000,
        ecam: 0xE000_0000,
        iommu: Some(Iommu { slot: 3, endpoints: &[4, 8] }),
    };
    let folder = std::env::temp_dir().join(format!("sluice-iasl-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (_, bytes) in &acpi::build(&description, Gpa::new(0xE_0000)).blocks[1..] {
        let name = String::from_utf8_lossy(&bytes[..4]).to_lowercase();
        std::fs::write(folder.join(format!("{name}.dat")), bytes).unwrap();
        let Some(output) = iasl(&folder, &["-d", &format!("{name}.dat")]) else {
            eprintln!("skipped: iasl is not installed");
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains("Invalid"), "{name}: {said}");
        if name == "dsdt" {
            // Names stay as long as they are written.
            let output = iasl(&folder, &["-on", "-p", "again", "dsdt.dsl"]).unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("0 Errors, 0 Warnings"), "{said}");
            let again = std::fs::read(folder.join("again.aml")).unwrap();
            // The compiler signs the header; the rest is the code.
            assert!(again[36..] == bytes[36..], "other code: {}", folder.display());
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
