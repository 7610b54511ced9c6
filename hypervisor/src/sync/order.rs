//! The lock order, and with the feature `lock-order` a check of it at every lock.
//!
//! Key types: [`Rank`] (a lock's place in the order), [`Held`] (a lock's entry in the record of its processor).
//! docs/architecture.md says what each lock guards. Without the feature nothing here leaves any code.

macro_rules! ranks {
    ($($(#[$doc:meta])* $rank:ident,)*) => {
        /// A lock's place in the order, from outside to inside: who holds one may take those after it, and no other of the
        /// same rank.
        #[derive(Clone, Copy, Debug)]
        pub enum Rank { $($(#[$doc])* $rank,)* }

        #[cfg(feature = "lock-order")]
        const RANKS: &[Rank] = &[$(Rank::$rank,)*];
    };
}

ranks! {
    /// `Vcpu::context`.
    Context,
    /// `Interface::guest` of a paravirtual domain.
    Interface,
    /// `MANAGER`.
    Manager,
    /// What a guest's IOMMU has come to: `Translator::state`.
    Translator,
    /// What is in a slot: `Socket`.
    Socket,
    /// `virtio::LINKS`.
    Links,
    /// Who uses a device: `devices::Entry::usage`.
    Device,
    /// The engines of a network, in their order: `vif::Engine::state`.
    Engine0,
    /// The second.
    Engine1,
    /// The third.
    Engine2,
    /// The fourth.
    Engine3,
    /// A card that several guests have: `ne2000::Card::state`, `nic::Card::state`; or engines: the driver or a queue of
    /// `vif::Wire`.
    Card,
    /// A guest's interface on a network: `vif::Interface::seat`.
    Seat,
    /// Signals that go by way of a controller domain: `vif::relay::Relay::state`.
    Relay,
    /// The card that a guest has in place of an interface: `CardFunction::state`.
    Face,
    /// A guest's function of a device: `PassthroughFunction::state`, `Ne2000Function::ports`, `NicFunction::mapping`.
    Function,
    /// Domains that may share pages: `grants::DOMAINS`.
    Domains,
    /// `Domain::grants`.
    Grants,
    /// `Domain::space`.
    Space,
    /// `Domain::pages`.
    Pages,
    /// `Domain::ports`.
    Ports,
    /// `Domain::platform`.
    Platform,
    /// `Vcpu::route`.
    Route,
    /// `Line::devices`.
    Line,
    /// The physical I/O APICs.
    IoApics,
    /// Owners of IOMMU groups.
    Owners,
    /// An IOMMU's tables and queue.
    Unit,
    /// The log of IOMMU faults.
    Faults,
    /// `HOMES[n]`.
    Home,
    /// `Domain::end`.
    End,
    /// `Domain::console`.
    Console,
    /// The hypervisor's own page tables.
    Tables,
    /// The frame allocator.
    Frames,
    /// Ports of PCI configuration.
    PciPorts,
    /// The machine's screen.
    Screen,
    /// The log: its port and the lines that are kept.
    Log,
}

#[cfg(feature = "lock-order")]
pub(super) use checked::{Held, Tag};
#[cfg(not(feature = "lock-order"))]
pub(super) use unchecked::{Held, Tag};

#[cfg(feature = "lock-order")]
mod checked {
    use super::{RANKS, Rank};
    use crate::x86;
    use core::sync::atomic::{AtomicU32, Ordering};

    /// By processor, as its initial local APIC identifier: the ranks of the locks that it holds, by bit.
    static RECORDS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

    /// The record of this processor. CPUID leaf 1 tells who it is (APM vol. 3, E.3.2), also before it is set up.
    fn record() -> &'static AtomicU32 {
        &RECORDS[(x86::cpuid(1, 0).ebx >> 24) as usize]
    }

    /// The rank that a lock carries.
    #[derive(Clone, Copy)]
    pub struct Tag(Rank);

    impl Tag {
        pub const fn new(rank: Rank) -> Self {
            Self(rank)
        }

        /// Checks that this processor may wait for the lock.
        ///
        /// # Panics
        /// It holds one that comes after it in the order, or another of the same rank.
        pub fn check(self) {
            let held = record().load(Ordering::Relaxed);
            if let Some(last) = held.checked_ilog2().filter(|last| *last >= self.0 as u32) {
                panic!("lock order: {:?} is taken while {:?} is held", self.0, RANKS[last as usize]);
            }
        }

        /// Records that this processor holds the lock.
        pub fn hold(self) -> Held {
            let bit = 1 << self.0 as u32;
            // Who only tries a lock may hold another of its rank, whose entry stays.
            let before = record().fetch_or(bit, Ordering::Relaxed);
            Held(bit & !before)
        }
    }

    /// An entry in the record of the processor that holds the lock, which ends with it.
    pub struct Held(u32);

    impl Drop for Held {
        fn drop(&mut self) {
            record().fetch_and(!self.0, Ordering::Relaxed);
        }
    }
}

#[cfg(not(feature = "lock-order"))]
mod unchecked {
    use super::Rank;

    /// Nothing.
    #[derive(Clone, Copy)]
    pub struct Tag;

    impl Tag {
        pub const fn new(_: Rank) -> Self {
            Self
        }

        #[inline(always)]
        pub fn check(self) {}

        #[inline(always)]
        pub fn hold(self) -> Held {
            Held
        }
    }

    /// Nothing.
    pub struct Held;
}
