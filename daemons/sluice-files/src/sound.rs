//! A sound card, by include/uapi/sound/asound.h, that is written to.

use anyhow::{Context, Result, ensure};
use sluice_backend::sys::{Call, Order, Plain};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

const RATE: u32 = 48_000;
const CHANNELS: u32 = 2;
/// Frames that the card tells of at once, and those that it has room for.
const PERIOD: u32 = RATE / 100;
const BUFFER: u32 = Sound::ROOM * PERIOD;
/// Bytes of a frame: 16 bits a channel.
const FRAME: u32 = 2 * CHANNELS;

/// `struct snd_pcm_hw_params` in words: flags, eight masks of eight, 21 intervals of three, and the rest.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Parameters([u32; 152]);

impl Default for Parameters {
    fn default() -> Self {
        Self([0; 152])
    }
}

// SAFETY: It is numbers.
unsafe impl Plain for Parameters {}

impl Parameters {
    /// `SNDRV_PCM_HW_PARAM_` numbers: masks, and intervals.
    const ACCESS: usize = 0;
    const FORMAT: usize = 1;
    const SUBFORMAT: usize = 2;
    const INTERVALS: std::ops::RangeInclusive<usize> = 8..=19;
    const CHANNELS: usize = 10;
    const RATE: usize = 11;
    const PERIOD_SIZE: usize = 13;
    const BUFFER_SIZE: usize = 17;
    /// `SNDRV_PCM_ACCESS_RW_INTERLEAVED`, `SNDRV_PCM_FORMAT_S16_LE`, `SNDRV_PCM_SUBFORMAT_STD`.
    const CHOSEN: [(usize, u32); 3] = [(Self::ACCESS, 3), (Self::FORMAT, 2), (Self::SUBFORMAT, 0)];
    /// Word of the parameters that are asked for.
    const ASKED: usize = 128;
    /// An interval holds whole numbers only.
    const INTEGER: u32 = 1 << 2;

    fn wanted() -> Self {
        let mut wanted = Self::default();
        let words = &mut wanted.0;
        for (mask, bit) in Self::CHOSEN {
            words[1 + 8 * mask] = 1 << bit;
        }
        let fixed = [
            (Self::CHANNELS, CHANNELS),
            (Self::RATE, RATE),
            (Self::PERIOD_SIZE, PERIOD),
            (Self::BUFFER_SIZE, BUFFER),
        ];
        for interval in Self::INTERVALS {
            let only = fixed.iter().find(|(which, _)| *which == interval).map(|(_, value)| *value);
            let flags = only.map_or(0, |_| Self::INTEGER);
            words[Self::at(interval)..][..3].copy_from_slice(&[
                only.unwrap_or(0),
                only.unwrap_or(u32::MAX),
                flags,
            ]);
        }
        words[Self::ASKED] = u32::MAX;
        wanted
    }

    /// First word of an interval.
    const fn at(interval: usize) -> usize {
        1 + 8 * 8 + 3 * (interval - *Self::INTERVALS.start())
    }

    /// The least that an interval holds.
    fn least(&self, interval: usize) -> u32 {
        self.0[Self::at(interval)]
    }
}

// SAFETY: The driver reads and writes `struct snd_pcm_hw_params`.
const SET_PARAMETERS: Call<Parameters> = unsafe {
    Call::new(ioctl_expr(_IOC_READ | _IOC_WRITE, b'A' as u32, 0x11, size_of::<Parameters>() as u32)
        as libc::c_ulong)
};
// SAFETY: It has no argument.
const PREPARE: Order = unsafe { Order::new(ioctl_expr(_IOC_NONE, b'A' as u32, 0x40, 0) as libc::c_ulong) };

/// A card that plays.
pub struct Sound {
    file: File,
    period: Vec<u8>,
}

impl Sound {
    /// How many such pieces the card has room for.
    pub const ROOM: u32 = 10;

    /// Opens a card, and has it play 48,000 frames of two channels a second.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().write(true).open(path).context("could not open the sound card")?;
        let mut parameters = Parameters::wanted();
        SET_PARAMETERS.update(&file, &mut parameters).context("SNDRV_PCM_IOCTL_HW_PARAMS failed")?;
        let room = parameters.least(Parameters::BUFFER_SIZE);
        ensure!(room == BUFFER, "the card has room for {room} frames");
        PREPARE.give(&file).context("SNDRV_PCM_IOCTL_PREPARE failed")?;
        Ok(Self { file, period: vec![0; (PERIOD * FRAME) as usize] })
    }

    /// Plays a hundredth of a second more, and goes on when the card has run empty.
    pub fn play_on(&mut self) -> io::Result<()> {
        match self.file.write_all(&self.period) {
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => PREPARE.give(&self.file),
            result => result,
        }
    }

    /// Plays a hundredth of a second more, once there is room for it.
    pub fn play(&mut self) -> Result<()> {
        self.file.write_all(&self.period).context("could not play")
    }
}
