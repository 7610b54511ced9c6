//! Pictures of a PC's screen, for the documents. Each machine boots the image that `sluice image` writes in a QEMU to which no
//! command listens; what stands on the screen is read from the picture, and must be what it is taken for.

use crate::claim::{Claim, Member, runtime_directory};
use crate::config::{self, Setup};
use crate::progress::Step;
use crate::qemu::{self, Boot};
use crate::qmp::{Act, Monitor, Picture};
use crate::workspace::{root, scratch};
use crate::{bundle, image, output};
use anyhow::{Context, Result, bail};
use regex_lite::Regex;
use sluice_abi::config::AtEnd;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// What the images have in them.
const CONFIGURATION: &str = "examples/pc.toml";

/// A machine that does not get so far in this time has another screen than it should.
const PATIENCE: Duration = Duration::from_secs(240);

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// A machine, and when its picture is taken.
struct Shot {
    name: &'static str,
    boot: Boot,
    cpu: &'static str,
    /// It has the card that the configuration names.
    has_card: bool,
    /// The hypervisor's own command line.
    options: &'static str,
    /// What stands on the screen then, as regular expressions that match lines.
    shows: &'static [&'static str],
    /// What stands on the only serial port, likewise. A machine of which nothing is expected there has none.
    says: &'static [&'static str],
}

/// A processor as the documents want it.
const SVM: &str = "EPYC,+svm,+npt";

/// As the configuration wants it, under a BIOS.
const PC: Shot =
    Shot { name: "", boot: Boot::Bios, cpu: SVM, has_card: true, options: "", shows: &[], says: &[] };

const SHOTS: [Shot; 6] = [
    Shot {
        name: "bios",
        shows: &["^1 alice +running", "^2 bob +running", "manage: domain bob: running"],
        ..PC
    },
    Shot {
        name: "uefi",
        boot: Boot::Uefi,
        shows: &["^1 alice +running", "^2 bob +running", "manage: domain bob: running"],
        ..PC
    },
    Shot {
        name: "success",
        shows: &[
            "all guests have ended",
            "^1 alice +powered-off",
            "^2 bob +powered-off",
            "^3 carol +powered-off",
        ],
        // Lines of guests that write at the same time are whole, and each is named.
        says: &[
            "^alice\\| SLUICE-RESULT done=ok$",
            "^bob\\| SLUICE-RESULT done=ok$",
            "^carol\\| SLUICE-RESULT done=ok$",
        ],
        ..PC
    },
    Shot {
        name: "no-svm",
        cpu: "EPYC,-svm",
        shows: &["^ Sluice cannot run guests here", "no AMD SVM"],
        ..PC
    },
    Shot {
        name: "missing-device",
        has_card: false,
        shows: &["no such PCI function in this machine", "^3 carol +powered-off"],
        ..PC
    },
    Shot {
        name: "panic",
        options: "selftest=panic",
        shows: &["^ Sluice has failed", "panicked at|selftest$"],
        ..PC
    },
];

/// Takes the pictures whose names are given, all if none is, and writes them into a folder as PNG.
pub fn take(names: &[String], directory: &Path) -> Result<()> {
    if let Some(name) = names.iter().find(|name| !SHOTS.iter().any(|shot| shot.name == **name)) {
        let known: Vec<&str> = SHOTS.iter().map(|shot| shot.name).collect();
        bail!("no picture is called '{name}'; there are: {}", known.join(", "));
    }
    std::fs::create_dir_all(directory)
        .with_context(|| format!("could not create {}", directory.display()))?;
    let setup = config::load(&root().join(CONFIGURATION))?;
    let bundle = bundle::build(&setup, "", AtEnd::Stay)?;
    let elf = image::hypervisor(&[])?;
    for shot in SHOTS.iter().filter(|shot| names.is_empty() || names.iter().any(|name| name == shot.name)) {
        let picture =
            shot.take(&setup, &elf, &bundle.bytes).with_context(|| format!("picture '{}'", shot.name))?;
        let file = directory.join(shot.name).with_extension("png");
        let png = png(&picture)?;
        std::fs::write(&file, &png).with_context(|| format!("could not write {}", file.display()))?;
        let Picture { width, height, .. } = picture;
        output::print(format_args!("{}: {width} x {height}, {} bytes\n", file.display(), png.len()))?;
    }
    Ok(())
}

/// A machine that ends with its picture.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Shot {
    fn take(&self, setup: &Setup, elf: &Path, bundle: &[u8]) -> Result<Picture> {
        let files = Claim::take(&scratch()?, &"screens".parse()?)?;
        // The path of a socket must be short.
        let sockets = Claim::take(&runtime_directory()?, &"screens".parse()?)?;
        let (iso, monitor) = (files.path(Member::Image), sockets.path(Member::Monitor));
        image::iso(elf, bundle, self.options, &iso)?;
        let step = Step::begin(format!("waiting for the screen '{}'", self.name));
        let serial = files.path(Member::Serial);
        let machine = Machine(qemu::start(&self.arguments(setup, &iso, &monitor, &serial)?)?);
        let mut monitor = Monitor::connect(&monitor)?;
        let read = |lines: &[&str]| lines.iter().map(|line| Regex::new(line)).collect::<Result<Vec<_>, _>>();
        let (shows, says) = (read(self.shows)?, read(self.says)?);
        // What does not begin a line may be broken between words.
        let has = |text: &str, wanted: &[Regex]| {
            let rows: Vec<&str> = text.lines().map(str::trim_end).collect();
            let whole = rows.join(" ");
            wanted.iter().all(|line| rows.iter().any(|row| line.is_match(row)) || line.is_match(&whole))
        };
        let began = Instant::now();
        let file = files.path(Member::Screen);
        loop {
            std::thread::sleep(PAUSE);
            monitor.act(&Act::Screen { file: file.clone(), card: None })?;
            let picture = Picture::parse(&std::fs::read(&file).context("QEMU wrote no picture")?)?;
            let text = picture.text();
            if has(&text, &shows) {
                let said = std::fs::read(&serial).unwrap_or_default();
                let said = String::from_utf8_lossy(&said);
                if !has(&said, &says) {
                    bail!("the serial port does not say what it should:\n{said}");
                }
                drop(machine);
                step.done();
                return Ok(picture);
            }
            if began.elapsed() > PATIENCE {
                bail!("it is not what it should be; the screen says:\n{text}");
            }
        }
    }

    fn arguments(&self, setup: &Setup, iso: &Path, monitor: &Path, serial: &Path) -> Result<Vec<String>> {
        let mut arguments: Vec<String> =
            ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", self.cpu].map(str::to_owned).into();
        let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
        add("-m", format!("{}M", setup.machine.memory.get_ref() >> 20));
        qemu::boot_from(iso, self.boot, &mut add)?;
        if self.has_card {
            add("-netdev", "user,id=net".to_owned());
            add("-device", "rtl8139,netdev=net".to_owned());
        }
        if !self.says.is_empty() {
            add("-serial", format!("file:{}", qemu::text(serial)?));
        }
        add("-vga", "std".to_owned());
        add("-display", "none".to_owned());
        add("-qmp", format!("unix:{},server=on,wait=off", qemu::text(monitor)?));
        arguments.extend(["-nodefaults", "-no-user-config"].map(str::to_owned));
        Ok(arguments)
    }
}

/// A picture of few colours as PNG with a palette.
fn png(picture: &Picture) -> Result<Vec<u8>> {
    let mut palette: Vec<[u8; 3]> =
        picture.pixels.chunks_exact(3).map(|rgb| [rgb[0], rgb[1], rgb[2]]).collect();
    palette.sort_unstable();
    palette.dedup();
    let (depth, bits) = match palette.len() {
        0..=16 => (png::BitDepth::Four, 4),
        17..=256 => (png::BitDepth::Eight, 8),
        _ => bail!("a screen of text has no more than 256 colours"),
    };
    let index = |rgb: &[u8]| palette.iter().position(|colour| colour == rgb).unwrap_or(0) as u8;
    let mut indices = Vec::new();
    for row in picture.pixels.chunks_exact(picture.width as usize * 3) {
        let row: Vec<u8> = row.chunks_exact(3).map(index).collect();
        // Each row begins with a byte of its own, its first pixel in the higher bits (PNG, 7.2).
        let packed = row.chunks(8 / bits).map(|pixels| match pixels {
            [pixel] if bits == 8 => *pixel,
            [pixel] => *pixel << 4,
            pixels => pixels[0] << 4 | pixels[1],
        });
        indices.extend(packed);
    }
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, picture.width, picture.height);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(depth);
    encoder.set_palette(palette.concat());
    encoder.set_compression(png::Compression::High);
    encoder.write_header()?.write_image_data(&indices)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The colours of a PNG, row by row.
    fn read(file: &[u8]) -> Vec<u8> {
        let mut decoder = png::Decoder::new(std::io::Cursor::new(file));
        decoder.set_transformations(png::Transformations::EXPAND);
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        pixels
    }

    #[test]
    fn a_png_is_the_picture() {
        for colours in [2, 16, 17, 256] {
            // An odd width: the last byte of a row is half empty.
            let pixels: Vec<u8> = (0..257u32 * 3).flat_map(|at| [(at % colours) as u8, 7, 0]).collect();
            let picture = Picture { width: 257, height: 3, pixels };
            assert_eq!(read(&png(&picture).unwrap()), picture.pixels, "{colours}");
        }
        let many: Vec<u8> = (0..300u32).flat_map(|at| [at as u8, (at >> 8) as u8, 0]).collect();
        assert!(png(&Picture { width: 300, height: 1, pixels: many }).is_err());
    }

    #[test]
    fn what_a_screen_must_show_can_be_read() {
        for shot in &SHOTS {
            assert!(!shot.shows.is_empty(), "{}", shot.name);
            shot.shows.iter().chain(shot.says).for_each(|line| assert!(Regex::new(line).is_ok(), "{line}"));
            let page = root().join("docs/real-pc.md");
            let picture = format!("screens/{}.png", shot.name);
            assert!(
                std::fs::read_to_string(page).unwrap().contains(&picture),
                "{picture} is not in docs/real-pc.md"
            );
        }
    }
}
