//! Writes newc cpio archives: the bundle, and the guests' root file systems.
//!
//! Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst.

/// Type bits of a regular file.
const FILE: u32 = 0o100_000;
/// Type bits of a directory.
const DIRECTORY: u32 = 0o040_000;
/// Type bits of a symbolic link.
const LINK: u32 = 0o120_000;
/// Type bits of a character device.
const CHARACTER: u32 = 0o020_000;

/// An archive under construction.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// A regular file.
    pub fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        self.member(name, FILE | permissions, content, (0, 0));
    }

    /// A directory.
    pub fn directory(&mut self, name: &str) {
        self.member(name, DIRECTORY | 0o755, &[], (0, 0));
    }

    /// A symbolic link.
    pub fn link(&mut self, name: &str, target: &str) {
        self.member(name, LINK | 0o777, target.as_bytes(), (0, 0));
    }

    /// A character device.
    pub fn character(&mut self, name: &str, permissions: u32, number: (u32, u32)) {
        self.member(name, CHARACTER | permissions, &[], number);
    }

    /// Ends the archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.member("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }

    fn member(&mut self, name: &str, mode: u32, content: &[u8], device: (u32, u32)) {
        self.inode += 1;
        let size = u32::try_from(content.len()).expect("members are under 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_aligned_and_the_trailer_ends_it() {
        let mut archive = Archive::new();
        archive.file("config", 0o644, b"12345");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[54..62], b"00000005", "the size is the seventh field");
        let content = (110 + 7_usize).next_multiple_of(4);
        assert_eq!(&bytes[content..content + 8], b"12345\0\0\0");
        assert_eq!(&bytes[content + 8..content + 14], b"070701");
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
