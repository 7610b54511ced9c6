//! I/O spaces: numbered pages, and everyone who sees them.
//!
//! A [`Space`] is the one place where it is written which page is where and who may do what with it. Its views show it
//! to its audiences: nested page tables to the processors of the guest that it belongs to, IOMMU tables to devices, and
//! (with driver domains) a linear window to software elsewhere. A guest's memory is the space of the devices that it
//! owns, and page numbers are guest-physical ones; in a space of grants *the page number is the grant reference*.
//!
//! Taking a page away has two halves. [`Space::revoke`] takes it out of every table; [`Space::settle`] then has every
//! view forget, in one batch, what may still be cached. Only `settle` gives frames back, so that none can have another
//! owner while a processor or a device could still reach it. That goes for frames that held tables, too.
//!
//! A space does not take its caller's word for whose memory it is: a [`Ledger`] is asked before a page is shown, and told
//! when nobody reaches it any more.
//!
//! Source: Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for Safe and Efficient I/O Virtualization",
//! 2.2 and 3.4 (references, revocation before reuse); Amiri Sani et al., "I/O Paravirtualization at the Device File
//! Boundary", 4.2 (device memory regions by IOMMU).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ledger;
mod pieces;
mod retire;
mod space;
mod stale;
mod table;

pub use ledger::{Foreign, Ledger};
pub use pieces::{Contents, Piece, Rights};
pub use retire::Retiring;
pub use space::{IssueError, Space, View};
pub use stale::{RANGES, Stale};
pub use table::{Audience, TableView};
