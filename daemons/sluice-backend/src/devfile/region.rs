//! What a program cannot have whose buffers are in a region: transfers by the driver, which does not see what it would copy.
//!
//! Source: the kernel's include/uapi/sound/asound.h.

/// Where `struct snd_pcm_hw_params` has a bit for each way to the buffer (`SNDRV_PCM_ACCESS_*`).
pub const PCM_ACCESS: u64 = 4;
/// Those by which the program maps it. By the others the driver copies.
pub const PCM_MAPPED: u32 = 0b111;

/// Whether an ioctl's argument is a `struct snd_pcm_hw_params`, of either width: HW_REFINE or HW_PARAMS.
pub const fn chooses_access(number: u32) -> bool {
    matches!(number & 0xffff, 0x4110 | 0x4111)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_streams_choose_their_access() {
        for (refine, params) in [(0xc260_4110, 0xc260_4111), (0xc25c_4110, 0xc25c_4111)] {
            assert!(chooses_access(refine) && chooses_access(params));
        }
        // PREPARE, and a timer's parameters.
        assert!(!chooses_access(0x4140) && !chooses_access(0x4050_5412));
    }
}
