//! What programs look for in sysfs of a device, beside its node: the attributes of an input device, by which udev and libinput know what it is.
//!
//! The text has a line for each, `id/vendor=534c`; those of the device's uevent come as `uevent/NAME="..."`. The front end shows those that it knows
//! (guest/linux/sluice-devfile/input.c).

use sluice_backend::sys::PAGE;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Attributes of an input device (the kernel's drivers/input/input.c).
const INPUT: [&str; 18] = [
    "name",
    "phys",
    "uniq",
    "properties",
    "modalias",
    "id/bustype",
    "id/vendor",
    "id/product",
    "id/version",
    "capabilities/ev",
    "capabilities/key",
    "capabilities/rel",
    "capabilities/abs",
    "capabilities/msc",
    "capabilities/led",
    "capabilities/snd",
    "capabilities/ff",
    "capabilities/sw",
];

/// The description of the device behind a node, at most a page; nothing where it has none.
pub fn of(node: &Path) -> Vec<u8> {
    let number = fs::metadata(node).map_or(0, |found| found.rdev());
    let device = format!("/sys/dev/char/{}:{}/device", libc::major(number), libc::minor(number));
    describe(Path::new(&device))
}

fn describe(device: &Path) -> Vec<u8> {
    let mut text = String::new();
    let mut add = |name: &str, value: &str| {
        let value = value.trim_end_matches('\n');
        let plain = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if plain && text.len() + name.len() + value.len() + 2 <= PAGE {
            text += &format!("{name}={value}\n");
        }
    };
    for name in INPUT {
        if let Ok(value) = fs::read_to_string(device.join(name)) {
            add(name, &value);
        }
    }
    for line in fs::read_to_string(device.join("uevent")).unwrap_or_default().lines() {
        if let Some((name, value)) = line.split_once('=') {
            add(&format!("uevent/{name}"), value);
        }
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_plain_and_no_more_than_a_page() {
        let device = std::env::temp_dir().join(format!("sluice-description-{}", std::process::id()));
        fs::create_dir_all(device.join("id")).unwrap();
        for (name, value) in [
            ("name", "a keyboard\n"),
            ("phys", "new\nline\n"),
            ("uniq", "t\u{e4}st\n"),
            ("id/vendor", "534c\n"),
            ("uevent", "EV=3\nNAME=\"a keyboard\"\n"),
            ("properties", &"1".repeat(PAGE)),
        ] {
            fs::write(device.join(name), value).unwrap();
        }
        let text = String::from_utf8(describe(&device)).unwrap();
        fs::remove_dir_all(&device).unwrap();
        assert_eq!(text, "name=a keyboard\nid/vendor=534c\nuevent/EV=3\nuevent/NAME=\"a keyboard\"\n");
        assert!(describe(Path::new("/nowhere")).is_empty());
    }
}
