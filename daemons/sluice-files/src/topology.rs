//! What a media device consists of, by include/uapi/linux/media.h: four arrays that one ioctl fills, as many of each as there is room for.

use crate::result;
use anyhow::{Context, Result, ensure};
use sluice_backend::sys::{Call, Plain};
use std::ffi::CStr;
use std::fs::File;
use vmm_sys_util::ioctl::{_IOC_READ, _IOC_WRITE, ioctl_expr};

/// Bytes of a `media_v2_entity`, `media_v2_interface`, `media_v2_pad` and `media_v2_link`.
const SIZES: [usize; 4] = [96, 112, 32, 40];
/// Where an entity has its name.
const NAME: usize = 4;

/// How many there are of one kind, and where they are.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Part {
    count: u32,
    reserved: u32,
    address: u64,
}

/// `struct media_v2_topology`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Topology {
    version: u64,
    parts: [Part; SIZES.len()],
}

// SAFETY: These are numbers. The addresses are of as much memory as the counts beside them say (see `show`).
unsafe impl Plain for Topology {}

// SAFETY: The driver reads and writes `struct media_v2_topology`, and fills the arrays that it leads to.
const TOPOLOGY: Call<Topology> = unsafe {
    let ways = _IOC_READ | _IOC_WRITE;
    Call::new(ioctl_expr(ways, b'|' as u32, 4, size_of::<Topology>() as u32) as libc::c_ulong)
};

/// Reports how many parts there are of each kind, and the first entity's name.
pub fn show(media: &File) -> Result<()> {
    let mut topology = TOPOLOGY.get(media).context("MEDIA_IOC_G_TOPOLOGY failed")?;
    let mut arrays: Vec<Vec<u8>> =
        topology.parts.iter().zip(SIZES).map(|(part, size)| vec![0; part.count as usize * size]).collect();
    for (part, array) in topology.parts.iter_mut().zip(&mut arrays) {
        part.address = array.as_mut_ptr() as u64;
    }
    TOPOLOGY.update(media, &mut topology).context("MEDIA_IOC_G_TOPOLOGY failed with arrays")?;
    ensure!(arrays.iter().all(|array| array.iter().any(|byte| *byte != 0)), "an array was not filled");
    let name = arrays[0].get(NAME..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
    let counts = topology.parts.map(|part| part.count.to_string()).join("-");
    result(&format!("topology={counts} topology_entity={}", name.unwrap_or_default().to_string_lossy()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_the_kernels() {
        assert_eq!(size_of::<Topology>(), 72);
    }
}
