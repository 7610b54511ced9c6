//! A request to a disk, as it stands in a chain of descriptors (Virtio 1.2, 5.2.6). Every value is the guest's.

use smallvec::SmallVec;
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileSlice};

/// Most parts of the data of a request.
pub const MAX_SEGMENTS: u32 = 126;

/// Bytes of the header: type, priority, sector.
const HEADER: usize = 16;

/// Why a chain is no request. The device cannot answer it, and needs a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The chain does not end, leads out of its table, or has more parts than was agreed on.
    Chain,
    /// A part is not in the window.
    Address,
    /// A part to be read comes after one to be written.
    Order,
    /// There is no header.
    Header,
    /// There is no room for the answer.
    Answer,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Chain => "a chain of descriptors is broken or too long",
            Self::Address => "a descriptor leads out of the guest's memory",
            Self::Order => "a descriptor to be read comes after one to be written",
            Self::Header => "a request has no header",
            Self::Answer => "a request has no room for its answer",
        })
    }
}

impl std::error::Error for Broken {}

/// Parts of a guest's memory. Small requests have two: the header or the answer, and a page.
pub type Slices<'w> = SmallVec<[VolatileSlice<'w>; 2]>;

/// A request. Its memory stays the guest's, who may change it at any time; the header was read once.
pub struct Request<'w> {
    /// What to do.
    pub kind: u32,
    /// Where on the disk, in sectors of 512 bytes.
    pub sector: u64,
    /// Data to the device.
    pub output: Slices<'w>,
    /// Room for data from the device.
    pub input: Slices<'w>,
    /// The byte of the answer.
    answer: VolatileSlice<'w>,
}

/// What a chain has to be read, and what it has to be written.
type Both<Part> = (SmallVec<[Part; 2]>, SmallVec<[Part; 2]>);

/// The parts of a chain.
pub fn parts<'w>(
    chain: DescriptorChain<&'w GuestMemoryMmap>,
    window: &'w GuestMemoryMmap,
) -> Result<Both<VolatileSlice<'w>>, Broken> {
    walk(chain, |at, len| window.get_slice(at, len as usize).ok())
}

/// Where parts of a guest's memory are: address and bytes.
pub type Pieces = SmallVec<[(u64, u32); 2]>;

/// Where the parts of a chain are, which are in the window.
pub fn pieces(
    chain: DescriptorChain<&GuestMemoryMmap>,
    window: &GuestMemoryMmap,
) -> Result<Both<(u64, u32)>, Broken> {
    walk(chain, |at, len| window.get_slice(at, len as usize).ok().map(|_| (at.0, len)))
}

/// Walks down a chain, each part of which is found or is not in the window.
fn walk<Part>(
    chain: DescriptorChain<&GuestMemoryMmap>,
    find: impl Fn(GuestAddress, u32) -> Option<Part>,
) -> Result<Both<Part>, Broken> {
    let (mut output, mut input) = (SmallVec::new(), SmallVec::new());
    let mut count = 0;
    // A walk that fails ends as one that is complete does, but in a descriptor that has a next one.
    let mut whole = false;
    for descriptor in chain {
        count += 1;
        if count > MAX_SEGMENTS + 2 {
            return Err(Broken::Chain);
        }
        whole = !descriptor.has_next();
        let part = find(descriptor.addr(), descriptor.len()).ok_or(Broken::Address)?;
        match descriptor.is_write_only() {
            true => input.push(part),
            false if input.is_empty() => output.push(part),
            false => return Err(Broken::Order),
        }
    }
    if !whole {
        return Err(Broken::Chain);
    }
    Ok((output, input))
}

/// The last byte of what is to be written, which is the answer; it is not among the others any more.
pub fn take_answer<'w>(input: &mut Slices<'w>) -> Result<VolatileSlice<'w>, Broken> {
    input.retain(|slice| !slice.is_empty());
    let last = input.pop().ok_or(Broken::Answer)?;
    let (rest, answer) = last.split_at(last.len() - 1).map_err(|_| Broken::Answer)?;
    if !rest.is_empty() {
        input.push(rest);
    }
    Ok(answer)
}

impl<'w> Request<'w> {
    /// The request in a chain.
    pub fn parse(
        chain: DescriptorChain<&'w GuestMemoryMmap>,
        window: &'w GuestMemoryMmap,
    ) -> Result<Self, Broken> {
        let (mut output, mut input) = parts(chain, window)?;
        let mut header = [0; HEADER];
        take(&mut output, &mut header).ok_or(Broken::Header)?;
        let answer = take_answer(&mut input)?;
        let [kind, _, low, high] = std::array::from_fn(|word| {
            u32::from_le_bytes(std::array::from_fn(|byte| header[word * 4 + byte]))
        });
        Ok(Self { kind, sector: u64::from(low) | u64::from(high) << 32, output, input, answer })
    }

    /// Bytes of the data, which go one way only.
    pub fn data_len(&self) -> u64 {
        self.output.iter().chain(&self.input).map(|slice| slice.len() as u64).sum()
    }

    /// Writes the answer.
    pub fn answer(&self, status: u8) {
        // A byte that is there: it cannot fail.
        let _ = self.answer.write_obj(status, 0);
    }
}

/// Reads the first bytes of the slices, and leaves the others.
pub fn take(slices: &mut Slices<'_>, bytes: &mut [u8]) -> Option<()> {
    let mut done = 0;
    while done < bytes.len() {
        let first = *slices.first()?;
        let count = first.len().min(bytes.len() - done);
        first.read_slice(&mut bytes[done..done + count], 0).ok()?;
        done += count;
        match first.offset(count).ok().filter(|rest| !rest.is_empty()) {
            Some(rest) => slices[0] = rest,
            None => drop(slices.remove(0)),
        }
    }
    Some(())
}
