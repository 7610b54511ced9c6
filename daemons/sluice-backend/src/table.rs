//! Pages that a guest lends by a table, the older way: mapped in the window for the requests that are under way, and not before or after.
//!
//! What is not mapped shows memory without a meaning, as in any window: a guest that permits less than it asks for gets a request that is broken, and harms itself. References are the
//! guest's, and so is what descriptors say of them.
//!
//! Source: Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for Safe and Efficient I/O Virtualization", 2.1.

use crate::function::{Function, MAX_COPIES, QueueSetup, TableCopy};
use crate::request::MAX_SEGMENTS;
use anyhow::{Context, Result, ensure};
use sluice_hypercall::grant::GRANT_MAX_BATCH;
use sluice_hypercall::table::{TABLE_COPY_BYTES, TABLE_COPY_OFFSET, TABLE_COPY_OUT, TABLE_MAP_READ};
use virtio_queue::DescriptorChain;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const PAGE: u64 = 4096;

/// The pages of a device that are mapped.
pub struct Table {
    function: Function,
    rings: Vec<u64>,
    /// For the requests that are under way.
    mapped: Vec<u64>,
}

/// Entries of a list: the pages of a part of the guest's memory.
fn pages(at: u64, len: u64, writes: bool) -> impl Iterator<Item = u64> {
    let flags = if writes { 0 } else { TABLE_MAP_READ };
    let last = at.saturating_add(len.max(1) - 1) / PAGE;
    // A reference is a number of 32 bits: what is larger is none.
    (at / PAGE..=last.min(u64::from(u32::MAX))).map(move |reference| reference | flags)
}

/// Entries of a list of copies: the pages of a part of the guest's memory, and where in the room each begins.
fn copies(at: u64, len: u32, writes: bool, place: u64) -> impl Iterator<Item = TableCopy> {
    let way = if writes { TABLE_COPY_OUT } else { 0 };
    let mut done = 0;
    std::iter::from_fn(move || {
        let (now, left) = (at.checked_add(done)?, u64::from(len) - done);
        let bytes = left.min(PAGE - now % PAGE);
        // A reference is a number of 32 bits: what is larger is none.
        let reference = u64::from(u32::try_from(now / PAGE).ok().filter(|_| bytes > 0)?);
        let entry = reference | (now % PAGE * TABLE_COPY_OFFSET) | (bytes * TABLE_COPY_BYTES) | way;
        let entry = [entry, place + done];
        done += bytes;
        Some(entry)
    })
}

impl Table {
    /// Maps the rings of a guest's queues; `None` if the guest does not lend by a table.
    ///
    /// # Errors
    /// The guest does not permit them.
    pub fn find(function: &Function, queues: &[QueueSetup]) -> Result<Option<Self>> {
        let mut found =
            Self { function: Function::shared(function.share()?), rings: Vec::new(), mapped: Vec::new() };
        for queue in queues.iter().filter(|queue| queue.enabled != 0) {
            let entries = u64::from(queue.entries);
            // Virtio 1.2, 2.7.
            let rings = [
                (queue.descriptors, 16 * entries),
                (queue.driver, 6 + 2 * entries),
                (queue.device, 6 + 8 * entries),
            ];
            let mut list: Vec<u64> = rings.iter().flat_map(|(at, len)| pages(*at, *len, true)).collect();
            list.sort_unstable();
            list.dedup();
            match found.function.map_granted(&list) {
                Ok(done) => found.rings.extend(&list[..done]),
                // An older module knows no tables.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ENOTTY)) => {
                    return Ok(None);
                }
                Err(error) => return Err(error).context("the guest's queue cannot be mapped"),
            }
            ensure!(found.rings.ends_with(&list), "the guest does not permit all of its queue");
        }
        Ok(Some(found))
    }

    /// Maps what a chain of descriptors leads to: its table, if it has one of its own, and then its parts, as Xen's block driver does for each request.
    ///
    /// # Errors
    /// The queue is broken.
    pub fn map_chain(
        &mut self,
        chain: &DescriptorChain<&GuestMemoryMmap>,
        queue: u64,
        window: &GuestMemoryMmap,
    ) -> Result<()> {
        self.map_indirect(chain, queue, window)?;
        let parts = chain.clone().take(MAX_SEGMENTS as usize + 2);
        self.map_parts(parts.map(|part| (part.addr().0, part.len(), part.is_write_only())));
        Ok(())
    }

    /// Maps the table of a chain of descriptors, if it has one of its own.
    ///
    /// # Errors
    /// The queue is broken.
    pub fn map_indirect(
        &mut self,
        chain: &DescriptorChain<&GuestMemoryMmap>,
        queue: u64,
        window: &GuestMemoryMmap,
    ) -> Result<()> {
        let wrong = "the guest's queue is broken";
        let place = queue.checked_add(u64::from(chain.head_index()) * 16).context(wrong)?;
        let first: RawDescriptor = window.read_obj(GuestAddress(place)).context(wrong)?;
        let first = Descriptor::from(first);
        if first.refers_to_indirect_table() {
            self.map(&pages(first.addr().0, first.len().into(), false).take(MOST).collect::<Vec<u64>>());
        }
        Ok(())
    }

    /// Maps parts of the guest's memory: address, bytes, and whether they are written.
    pub fn map_parts(&mut self, parts: impl Iterator<Item = (u64, u32, bool)>) {
        let list = parts.flat_map(|(at, len, writes)| pages(at, len.into(), writes));
        self.map(&list.take(MOST).collect::<Vec<u64>>());
    }

    /// Copies between parts of the guest's memory and the room, in which they follow each other from a place on: address, bytes, and whether they are written.
    /// What the guest does not permit is left as it was.
    pub fn copy_parts(&self, parts: impl Iterator<Item = (u64, u32, bool)>, place: u64) {
        let mut place = place;
        let list: Vec<TableCopy> = parts
            .flat_map(|(at, len, writes)| {
                let begun = place;
                place += u64::from(len);
                copies(at, len, writes, begun)
            })
            .collect();
        let mut rest = &list[..];
        while !rest.is_empty() {
            let now = &rest[..rest.len().min(MAX_COPIES)];
            let done = self.function.copy_granted(now).unwrap_or(0);
            rest = &rest[(done + usize::from(done < now.len()))..];
        }
    }

    /// Nobody needs what was mapped for requests any more.
    pub fn unmap(&mut self) {
        unmap(&self.function, &mut self.mapped);
    }

    /// Maps what the guest permits, and leaves out the rest.
    fn map(&mut self, mut list: &[u64]) {
        while let Some(now) =
            list.get(..list.len().min(GRANT_MAX_BATCH as usize)).filter(|now| !now.is_empty())
        {
            let done = self.function.map_granted(now).unwrap_or(0);
            self.mapped.extend(now[..done].iter().map(|entry| entry & !TABLE_MAP_READ));
            list = &list[(done + usize::from(done < now.len())).min(list.len())..];
        }
    }
}

/// Most pages of a request. What is longer finds the sink.
const MOST: usize = 1 << 12;

/// What is not mapped any more, since the guest's life has ended, is left out.
fn unmap(function: &Function, list: &mut Vec<u64>) {
    let mut rest = &list[..];
    while !rest.is_empty() {
        let now = &rest[..rest.len().min(GRANT_MAX_BATCH as usize)];
        let done = function.unmap_granted(now).unwrap_or(0);
        rest = &rest[done.max(1)..];
    }
    list.clear();
}

impl Drop for Table {
    fn drop(&mut self) {
        self.unmap();
        let mut rings = std::mem::take(&mut self.rings);
        unmap(&self.function, &mut rings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_hypercall::table::Part;

    #[test]
    fn copies_follow_each_other_and_leave_no_page() {
        let list: Vec<TableCopy> = copies(3 * PAGE + 4000, 5000, true, 77).collect();
        let parts: Vec<Part> = list.iter().map(|entry| Part::decode(*entry).unwrap()).collect();
        let part = |reference, offset, bytes, local| Part { reference, offset, bytes, out: true, local };
        assert_eq!(parts, [part(3, 4000, 96, 77), part(4, 0, PAGE, 173), part(5, 0, 808, 173 + PAGE)]);
        assert_eq!(copies(PAGE, 0, false, 0).count(), 0);
        // What no reference says is left out.
        assert_eq!(copies((PAGE << 32) - 1, 2, false, 0).count(), 1);
        assert_eq!(copies(u64::MAX, 2, false, 0).count(), 0);
        assert_eq!(pages(u64::MAX - 1, 5, false).count(), 0);
        assert_eq!(pages(PAGE - 1, 2, false).collect::<Vec<u64>>(), [TABLE_MAP_READ, TABLE_MAP_READ | 1]);
    }
}
