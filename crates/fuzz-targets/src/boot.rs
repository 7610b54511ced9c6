//! What the hypervisor parses before or beside guests: kernels, the bundle, the configuration, the management channel.
//!
//! Kernels are a guest owner's files; the rest comes from the host command, which is trusted, but no byte of it
//! may bring the hypervisor down.

use crate::Input;
use sluice_abi::bundle::Bundle;
use sluice_abi::channel::{Decoder, Event, MAX_FRAME, Request, encode, frame};
use sluice_abi::config::Config;
use sluice_loader::{GuestWrite, Parameters, RamRange, load};
use sluice_memory::{Gpa, OutOfRange};

/// Bytes of RAM of the guest that kernels are loaded into.
const RAM: u64 = 32 << 20;

/// RAM that forgets what is written, but knows where it ends.
struct Ram {
    ranges: [RamRange; 2],
    written: u64,
}

impl GuestWrite for Ram {
    fn write(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), OutOfRange> {
        let start = gpa.as_u64();
        let end = start.checked_add(bytes.len() as u64).ok_or(OutOfRange)?;
        let fits =
            |range: &RamRange| range.start.as_u64() <= start && end <= range.start.as_u64() + range.len;
        self.ranges.iter().any(fits).then_some(()).ok_or(OutOfRange)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// A bzImage of one setup sector.
fn linux() -> Vec<u8> {
    let mut file = vec![0u8; 1536];
    file[0x1f1] = 1;
    file[0x201] = 0x66;
    file[0x202..0x206].copy_from_slice(b"HdrS");
    file[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
    file[0x22c..0x230].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    file[0x230..0x234].copy_from_slice(&0x20_0000u32.to_le_bytes());
    file[0x234] = 1;
    file[0x236] = 1;
    file[0x238..0x23c].copy_from_slice(&255u32.to_le_bytes());
    file[0x258..0x260].copy_from_slice(&0x100_0000u64.to_le_bytes());
    file[0x260..0x264].copy_from_slice(&0x10_0000u32.to_le_bytes());
    file
}

/// An ELF file with a segment to load and a PVH note.
fn elf() -> Vec<u8> {
    let mut file = vec![0u8; 512];
    file[..5].copy_from_slice(b"\x7fELF\x02");
    file[18] = 62;
    file[24..32].copy_from_slice(&0x10_0010u64.to_le_bytes());
    file[32..40].copy_from_slice(&64u64.to_le_bytes());
    file[54] = 56;
    file[56] = 2;
    // Program header 0: a note at 256. Program header 1: 128 bytes at 320, loaded at 1 MiB.
    file[64] = 4;
    file[72..80].copy_from_slice(&256u64.to_le_bytes());
    file[96..104].copy_from_slice(&20u64.to_le_bytes());
    file[120] = 1;
    file[128..136].copy_from_slice(&320u64.to_le_bytes());
    file[144..152].copy_from_slice(&0x10_0000u64.to_le_bytes());
    file[152..160].copy_from_slice(&128u64.to_le_bytes());
    file[160..168].copy_from_slice(&4096u64.to_le_bytes());
    file[256] = 4;
    file[260] = 4;
    file[264] = 18;
    file[268..272].copy_from_slice(b"Xen\0");
    file[272..276].copy_from_slice(&0x10_0000u32.to_le_bytes());
    file
}

/// Kernels. Asserts that a file is refused by [`sluice_loader::check`] if it cannot be loaded for what it is, that no
/// more is written than the file, the ramdisk and the tables are long, and that Linux is entered inside RAM.
pub fn loader(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8() % 4;
    let initrd = vec![7u8; usize::from(input.u16()) * 16];
    let cmdline = "x".repeat(usize::from(input.u8()) * 2);
    let mut file = match kind {
        0 => linux(),
        1 | 2 => elf(),
        _ => input.rest().to_vec(),
    };
    if kind == 2 {
        // Multiboot instead of PVH.
        file[56] = 1;
        file[64..120].copy_within(56.., 0);
        file[300..304].copy_from_slice(&0x1bad_b002u32.to_le_bytes());
        file[308..312].copy_from_slice(&0u32.wrapping_sub(0x1bad_b002).to_le_bytes());
    }
    input.damage(&mut file);
    let ranges = [
        RamRange { start: Gpa::new(0), len: 0xa_0000 },
        RamRange { start: Gpa::new(0x10_0000), len: RAM - 0x10_0000 },
    ];
    let mut memory = Ram { ranges, written: 0 };
    let parameters = Parameters {
        initrd: input.flag().then_some(&initrd),
        cmdline: &cmdline,
        ram: &ranges,
        rsdp: Some(Gpa::new(0xe_0000)),
    };
    let known = sluice_loader::check(&file);
    let loaded = load(&file, &parameters, &mut memory);
    assert!(known.is_ok() || loaded.is_err(), "loaded what is no kernel");
    // An ELF file may name the same bytes in many segments; its table is in the file, too.
    let most = (file.len() * (1 + file.len() / 32) + initrd.len() + cmdline.len() + 0x1_0000) as u64;
    assert!(memory.written <= most, "{} bytes written", memory.written);
    if let (Ok(sluice_loader::KernelKind::Linux), Ok(entry)) = (known, loaded) {
        assert!(entry.rip >= 0x10_0000 && entry.rip < RAM, "entered at {:#x}", entry.rip);
    }
}

fn member(bytes: &mut Vec<u8>, name: &str, content: &[u8]) {
    bytes.extend(b"070701");
    for field in 0..13 {
        let value = match field {
            6 => content.len(),
            11 => name.len() + 1,
            _ => 0,
        };
        bytes.extend(format!("{value:08x}").bytes());
    }
    bytes.extend(name.bytes());
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The bundle. Asserts that members lie in the archive one after the other, and so that there are finitely many.
pub fn bundle(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bytes = Vec::new();
    for _ in 0..input.u8() % 6 {
        let name = input.choose(&["config", "kernel", "", "TRAILER!!!", "a/b"]);
        let len = usize::from(input.u8());
        member(&mut bytes, name, input.bytes(len));
    }
    input.damage(&mut bytes);
    bytes.extend(input.rest());
    let mut end = bytes.as_ptr() as usize;
    let limit = end + bytes.len();
    for member in Bundle::new(&bytes).members() {
        let start = member.name.as_ptr() as usize;
        assert!(start > end, "a member before the last one's end");
        end = member.data.as_ptr() as usize + member.data.len();
        assert!(end <= limit);
    }
    let _ = Bundle::new(&bytes).get("config");
}

/// The configuration's encoding and check. Asserts that what is decoded encodes to something that decodes to the same.
pub fn config(data: &[u8]) {
    if let Ok(config) = postcard::from_bytes::<Config>(data) {
        let _ = config.check();
        let again = postcard::to_allocvec(&config).expect("memory");
        assert_eq!(postcard::from_bytes(&again), Ok(config));
    }
}

/// Both ends of the management channel, with noise on the line and in its frames. Asserts that noise never stops the next good frame from being read, and that
/// decoded messages survive encoding.
pub fn channel(data: &[u8]) {
    let mut requests = Decoder::default();
    let mut events = Decoder::default();
    // Noise, which no check lets through, and the same as what a frame holds.
    for byte in data.iter().chain(&frame(data.to_vec())) {
        if let Some(request) = requests.push::<Request>(*byte) {
            again(&request);
        }
        if let Some(event) = events.push::<Event>(*byte) {
            again(&event);
        }
    }
    let last = Request { seq: 77, command: sluice_abi::channel::Command::Report };
    let mut got = None;
    let frame = encode(&last).expect("memory");
    for byte in core::iter::once(0).chain(frame) {
        got = requests.push::<Request>(byte).or(got);
    }
    assert_eq!(got, Some(last), "noise swallowed a frame");
}

fn again<T>(message: &T)
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + core::fmt::Debug,
{
    let frame = encode(message).expect("memory");
    if frame.len() <= MAX_FRAME {
        let mut decoder = Decoder::default();
        let got = frame.into_iter().find_map(|byte| decoder.push::<T>(byte));
        assert_eq!(got.as_ref(), Some(message));
    }
}
