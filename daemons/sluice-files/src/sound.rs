//! A sound card, by include/uapi/sound/asound.h, that is written to.

use crate::result;
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
/// `SNDRV_PCM_ACCESS_RW_INTERLEAVED`, and `SNDRV_PCM_ACCESS_RW_NONINTERLEAVED`.
const INTERLEAVED: u32 = 3;
const APART: u32 = 4;
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
    /// `SNDRV_PCM_FORMAT_S16_LE`, `SNDRV_PCM_SUBFORMAT_STD`.
    const CHOSEN: [(usize, u32); 2] = [(Self::FORMAT, 2), (Self::SUBFORMAT, 0)];
    /// Word of the parameters that are asked for.
    const ASKED: usize = 128;
    /// An interval holds whole numbers only.
    const INTEGER: u32 = 1 << 2;

    fn wanted(access: u32) -> Self {
        let mut wanted = Self::default();
        let words = &mut wanted.0;
        for (mask, bit) in Self::CHOSEN.into_iter().chain([(Self::ACCESS, access)]) {
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
        let mut parameters = Parameters::wanted(INTERLEAVED);
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

/// `struct snd_xfern`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Apart {
    result: i64,
    /// Address of the addresses of the channels' samples.
    channels: u64,
    frames: u64,
}

// SAFETY: These are numbers. The address is one of what `move_apart` has.
unsafe impl Plain for Apart {}

// SAFETY: The driver reads `struct snd_xfern`, and the samples that it leads to.
const WRITE_APART: Call<Apart> = unsafe {
    Call::new(ioctl_expr(_IOC_WRITE, b'A' as u32, 0x52, size_of::<Apart>() as u32) as libc::c_ulong)
};
// SAFETY: The driver reads and writes `struct snd_xfern`, and writes the samples that it leads to.
const READ_APART: Call<Apart> = unsafe {
    Call::new(ioctl_expr(_IOC_READ, b'A' as u32, 0x53, size_of::<Apart>() as u32) as libc::c_ulong)
};
// SAFETY: It has no argument.
const START: Order = unsafe { Order::new(ioctl_expr(_IOC_NONE, b'A' as u32, 0x42, 0) as libc::c_ulong) };

/// How many frames in a row must be heard as they were played.
const HEARD: usize = 1000;

fn move_apart(call: &Call<Apart>, file: &File, channels: &mut [Vec<i16>; 2]) -> std::io::Result<()> {
    let frames = channels[0].len() as u64;
    let addresses = channels.each_mut().map(|channel| channel.as_mut_ptr() as u64);
    call.update(file, &mut Apart { result: 0, channels: addresses.as_ptr() as u64, frames })
}

/// Opens a stream of a card whose channels are in buffers of their own.
fn open_apart(path: &Path, writes: bool) -> Result<File> {
    let file = OpenOptions::new().read(!writes).write(writes).open(path);
    let file = file.with_context(|| format!("could not open {}", path.display()))?;
    let mut parameters = Parameters::wanted(APART);
    SET_PARAMETERS.update(&file, &mut parameters).context("SNDRV_PCM_IOCTL_HW_PARAMS failed")?;
    PREPARE.give(&file).context("SNDRV_PCM_IOCTL_PREPARE failed")?;
    Ok(file)
}

/// Plays on one stream of a card with a loop, in a buffer for each channel, and hears it on the other.
pub fn apart(plays: &Path, hears: &Path) -> Result<()> {
    let (to, from) = (open_apart(plays, true)?, open_apart(hears, false)?);
    START.give(&from).context("SNDRV_PCM_IOCTL_START failed")?;
    let played: Vec<i16> = (1..=BUFFER as i16).collect();
    let mut both = [played.clone(), played.iter().map(|sample| -sample).collect()];
    move_apart(&WRITE_APART, &to, &mut both).context("SNDRV_PCM_IOCTL_WRITEN_FRAMES failed")?;
    let mut heard: [Vec<i16>; 2] = Default::default();
    for _ in 0..Sound::ROOM / 2 {
        let mut part = [(); 2].map(|()| vec![0; PERIOD as usize]);
        move_apart(&READ_APART, &from, &mut part).context("SNDRV_PCM_IOCTL_READN_FRAMES failed")?;
        heard.iter_mut().zip(part).for_each(|(all, part)| all.extend(part));
    }
    let [left, right] = &heard;
    let sounds = left.iter().zip(right).skip_while(|(left, _)| **left == 0);
    let right_ones =
        sounds.zip(&played).take_while(|((left, right), played)| *left == *played && **right == -**played);
    let right_ones = right_ones.count();
    ensure!(right_ones >= HEARD, "{right_ones} frames were heard as they were played");
    result("sound_apart=ok");
    Ok(())
}
