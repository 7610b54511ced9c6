//! What programs look for in sysfs of a device, beside its node: the attributes of an input device, by which udev and libinput know what it is, the
//! names of a camera and of a sound card.
//!
//! The text has a line for each, `id/vendor=534c`; those of an input device's uevent come as `uevent/NAME="..."`. The front end shows those that it
//! knows (guest/linux/sluice-devfile*).

use sluice_backend::sys::PAGE;
use std::fs;
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

/// Classes whose devices are described: where the attributes are from the node's own directory, which they are, and whether the uevent there is
/// one of them. Those of cameras are in the kernel's drivers/media/v4l2-core/v4l2-dev.c, those of sound cards in sound/core/init.c.
const CLASSES: [(&str, &str, &[&str], bool); 3] = [
    ("input", "device", &INPUT, true),
    ("video4linux", ".", &["name"], false),
    ("sound", "device", &["id"], false),
];

/// The description of the device behind a node, at most a page; nothing where it has none.
pub fn of(node: &Path) -> Vec<u8> {
    describe(&super::in_sysfs(node))
}

fn describe(node: &Path) -> Vec<u8> {
    let class = fs::read_link(node.join("subsystem")).unwrap_or_default();
    let known = CLASSES.iter().find(|(name, ..)| class.file_name().is_some_and(|class| class == *name));
    let Some((_, place, attributes, has_uevent)) = known else { return Vec::new() };
    let device = node.join(place);
    let mut text = String::new();
    let mut add = |name: &str, value: &str| {
        let value = value.trim_end_matches('\n');
        let plain = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if plain && text.len() + name.len() + value.len() + 2 <= PAGE {
            text += &format!("{name}={value}\n");
        }
    };
    for name in *attributes {
        if let Ok(value) = fs::read_to_string(device.join(name)) {
            add(name, &value);
        }
    }
    let uevent = has_uevent.then(|| fs::read_to_string(device.join("uevent")).ok()).flatten();
    for line in uevent.unwrap_or_default().lines() {
        if let Some((name, value)) = line.split_once('=') {
            add(&format!("uevent/{name}"), value);
        }
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory of sysfs.
    fn node(class: &str, attributes: &[(&str, &str)]) -> std::path::PathBuf {
        let node = std::env::temp_dir().join(format!("sluice-description-{class}-{}", std::process::id()));
        fs::create_dir_all(&node).unwrap();
        symlink(format!("../../class/{class}"), node.join("subsystem")).unwrap();
        for (name, value) in attributes {
            let path = node.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        node
    }

    fn described(node: &Path) -> String {
        let text = String::from_utf8(describe(node)).unwrap();
        fs::remove_dir_all(node).unwrap();
        text
    }

    #[test]
    fn what_is_said_is_plain_and_no_more_than_a_page() {
        let input = node(
            "input",
            &[
                ("device/name", "a keyboard\n"),
                ("device/phys", "new\nline\n"),
                ("device/uniq", "t\u{e4}st\n"),
                ("device/id/vendor", "534c\n"),
                ("device/uevent", "EV=3\nNAME=\"a keyboard\"\n"),
                ("device/properties", &"1".repeat(PAGE)),
            ],
        );
        assert_eq!(
            described(&input),
            "name=a keyboard\nid/vendor=534c\nuevent/EV=3\nuevent/NAME=\"a keyboard\"\n"
        );
        assert!(describe(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn a_device_is_described_as_its_class_is() {
        let camera =
            node("video4linux", &[("name", "a camera\n"), ("device/name", "what it is plugged into\n")]);
        assert_eq!(described(&camera), "name=a camera\n");
        let sound = node("sound", &[("device/id", "Loopback\n"), ("device/uevent", "A=1\n")]);
        assert_eq!(described(&sound), "id=Loopback\n");
        assert_eq!(described(&node("misc", &[("name", "a watchdog\n")])), "");
    }
}
