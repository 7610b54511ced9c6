//! How a disk is called, and where its image is: `images/NAME/disk.raw`, or a file of the user's.

use crate::name::Name;
use crate::workspace::images;
use std::path::{Path, PathBuf};

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disk {
    /// One that `rootfs` makes.
    Named(Name),
    /// A file of the user's.
    File(PathBuf),
}

impl Disk {
    /// What a configuration calls `text`, whose paths begin at `base`. What is no name is a path.
    pub fn parse(text: &str, base: &Path) -> Self {
        text.parse().map_or_else(|_| Self::File(base.join(text)), Self::Named)
    }

    /// Its image.
    pub fn image(&self) -> PathBuf {
        match self {
            Self::Named(name) => folder(name).join("disk.raw"),
            Self::File(path) => path.clone(),
        }
    }

    /// The format of its image. The name says it: a guest writes what is in a raw image, and could write there that it is in another
    /// format, which names further files of the host.
    pub fn format(&self) -> &'static str {
        let image = self.image();
        let is_qcow2 = image.extension().is_some_and(|extension| extension == "qcow2");
        if is_qcow2 { "qcow2" } else { "raw" }
    }

    /// The file with the host key that its sshd has, where Sluice made it.
    pub fn known_hosts(&self) -> Option<PathBuf> {
        match self {
            Self::Named(name) => Some(folder(name).join("known_hosts")),
            Self::File(_) => None,
        }
    }
}

/// Where everything of a disk is.
fn folder(name: &Name) -> PathBuf {
    images().join(name)
}

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) => name.fmt(f),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_a_path_beside_the_configuration() {
        let base = Path::new("/etc/guests");
        assert_eq!(Disk::parse("web", base), Disk::Named("web".parse().unwrap()));
        assert_eq!(Disk::parse("web.raw", base), Disk::File("/etc/guests/web.raw".into()));
        assert_eq!(Disk::parse("/srv/web.raw", base), Disk::File("/srv/web.raw".into()));
    }

    #[test]
    fn the_format_is_what_the_name_says() {
        let format = |text| Disk::parse(text, Path::new("/srv")).format();
        assert_eq!((format("web"), format("a.img"), format("a.qcow2")), ("raw", "raw", "qcow2"));
    }
}
