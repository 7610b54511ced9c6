//! What a sound card plays for Debian's aplay, as QEMU writes it to a file: the same bytes, whether the program is in the domain that has the card
//! or in a guest.

use crate::bench::driver::{StopDriver, check};
use crate::bench::record::{Aim, Record};
use crate::bench::{Clock, quoted, run_watched, scratch};
use crate::{kernels, rootfs};
use anyhow::{Context, Result, ensure};

/// Bytes of the sound: a second of 48,000 frames of two channels of 16 bits.
const SOUND: usize = 192_000;
/// Bytes before the sound in a file of QEMU's.
const HEADER: usize = 44;
/// How the machine with the card is set up, and who plays, in this order.
const RUNS: [(Memory, &[(&str, &str)]); 2] = [
    (Memory::Shared, &[("native", "driver"), ("guest", "guest0")]),
    (Memory::Region, &[("isolated", "guest0")]),
];

/// Where the card's buffers are.
#[derive(Clone, Copy)]
enum Memory {
    /// In memory of the domain with the card.
    Shared,
    /// In the guest's region.
    Region,
}

/// The sound as guest/rootfs/init makes it: six digits in a row, and the end of the line.
fn sound() -> Vec<u8> {
    let lines = (100_000..200_000).flat_map(|number: u32| format!("{number}\n").into_bytes());
    lines.take(SOUND).collect()
}

/// Measures it.
pub fn measure(record: &mut Record) -> Result<()> {
    RUNS.into_iter().try_for_each(|(memory, places)| play(record, memory, places))
}

fn play(record: &mut Record, memory: Memory, places: &[(&str, &str)]) -> Result<()> {
    let file = scratch()?.join("devfile-heard.wav");
    let arguments = [
        "-audiodev",
        &format!("wav,id=wav,path={},out.frequency=48000", file.display()),
        "-device",
        "hda-output,audiodev=wav,mixer=off,bus=hda.0",
    ];
    let text = configuration(memory)?;
    let arguments = arguments.map(str::to_owned).to_vec();
    let (_, outcome) = run_watched("devfile-heard", &text, Clock::Mixed, arguments, &mut StopDriver::new(1))?;
    check(&outcome)?;
    record.kernels(&outcome.kernels);
    let written = std::fs::read(&file).with_context(|| format!("QEMU did not write {}", file.display()))?;
    let heard = heard(&written, &sound());
    for (index, (place, domain)) in places.iter().enumerate() {
        let note = "bytes of a second of sound that aplay plays which are in QEMU's WAV file, in a row";
        let bytes = heard.get(index).copied().unwrap_or(0) as f64;
        record.aimed(
            format!("devfile.aplay.{place}.bytes"),
            bytes,
            "bytes",
            Some(Aim::AtLeast(SOUND as f64)),
            note,
        );
        let guest = outcome.guests.iter().find(|guest| guest.name == *domain);
        let took = guest.and_then(|guest| {
            let pairs = guest.findings.iter().flatten();
            pairs.filter(|pair| pair.0 == "aplay_ms").find_map(|pair| pair.1.raw().parse::<f64>().ok())
        });
        let took = took.with_context(|| format!("{domain} did not say how long it played"))?;
        let note = "of the clock of the domain, from aplay's start to its end, for a second of sound and half a second of silence";
        record.row(format!("devfile.aplay.{place}.milliseconds"), took, "ms", note);
    }
    ensure!(heard.len() == places.len(), "the sound is in the file {} times", heard.len());
    Ok(())
}

/// Bytes in a row of each time that the sound is in a file: all of it, or nothing.
fn heard(file: &[u8], sound: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut rest = file.get(HEADER..).unwrap_or_default();
    while let Some(at) = rest.windows(sound.len()).position(|window| window == sound) {
        found.push(sound.len());
        rest = &rest[at + sound.len()..];
    }
    found
}

fn configuration(memory: Memory) -> Result<String> {
    let kernel = kernels::get("debian-6.1")?;
    let image = quoted(&crate::bench::kernel::unpacked(&kernel)?);
    let initrd = quoted(&rootfs::get("stock-device-files", &kernel)?);
    let file = |node: &str, region: &str| {
        format!("{{ mode = \"devfile\", by = \"driver\", source = \"/dev/snd/{node}\"{region} }}")
    };
    // What plays in memory that this domain does not see is put there by maps, and not by its driver.
    let (dma, options, plays, region) = match memory {
        Memory::Shared => ("", "plays=0:0 ", "", ""),
        Memory::Region => (
            ", dma = \"regions\"",
            "hda=yes snd_hda_intel.single_cmd=1 snd_hda_intel.position_fix=1",
            ",mapped=-M",
            ", identity = \"sound\", region = \"2MiB\"",
        ),
    };
    let files = [file("controlC0", ""), file("pcmC0D0p", region)].join(", ");
    Ok(format!(
        "[machine]\nmemory = \"1GiB\"\ncpus = 2\n\
         [device.sound]\npci = \"8086:2668\"\nqemu = \"intel-hda,id=hda\"\n\
         [domain.driver]\nkernel = {image}\ninitrd = {initrd}\nmemory = \"256MiB\"\ncpus = [0]\n\
         cmdline = \"console=ttyS0 quiet sluice.job=serve:{options}\"\n\
         devices = [{{ use = \"sound\", mode = \"passthrough\"{dma} }}]\n\
         [domain.guest0]\nkernel = {image}\ninitrd = {initrd}\nmemory = \"256MiB\"\ncpus = [1]\ngrants = \"pages\"\n\
         cmdline = \"console=ttyS0 quiet sluice.job=files:random=0,plays=0:0{plays}\"\ndevices = [{files}]\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sound_is_heard_where_all_of_it_is() {
        let sound = sound();
        assert_eq!((sound.len(), &sound[..8]), (SOUND, &b"100000\n1"[..]));
        let mut file = vec![0; HEADER + 1000];
        file.extend(&sound);
        file.extend([0; 500]);
        assert_eq!(heard(&file, &sound), [SOUND]);
        file.extend(&sound);
        assert_eq!(heard(&file, &sound), [SOUND, SOUND]);
        file.truncate(file.len() - 1);
        assert_eq!(heard(&file, &sound), [SOUND], "the last byte is missing");
    }
}
