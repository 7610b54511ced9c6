//! The interrupt command register: what a processor asks its local APIC to send.
//!
//! Source: Intel SDM vol. 3, 11.6.1 and 11.12.9.

/// What the interrupt does at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    /// The vector, at every destination.
    Fixed,
    /// The vector, at one of the destinations.
    LowestPriority,
    /// A non-maskable interrupt.
    Nmi,
    /// Resets the processor, which then waits for a start-up interrupt.
    Init,
    /// Starts a waiting processor at `vector << 12`, in real mode.
    StartUp,
}

/// A destination given by name instead of by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shorthand {
    /// None: `dest` holds.
    None,
    /// The sender.
    SelfOnly,
    /// Every processor.
    All,
    /// Every processor but the sender.
    Others,
}

/// An interprocessor interrupt to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipi {
    /// Destination: an APIC id, or a logical mask; [`crate::message::BROADCAST`] for all. Without meaning
    /// if there is a shorthand.
    pub dest: u32,
    /// `dest` is a logical destination.
    pub logical: bool,
    /// What it does.
    pub mode: DeliveryMode,
    /// The vector, or the page of a start-up interrupt. Zero for NMI and INIT.
    pub vector: u8,
    /// A destination by name.
    pub shorthand: Shorthand,
    /// Asserted. Always true: the de-assertion of INIT does nothing since the Pentium 4 and is not sent.
    pub assert: bool,
}

/// Why a command sends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotSent {
    /// A mode that this platform has no use for (SMI), a reserved one, or the de-assertion of INIT.
    Ignored,
    /// A vector below 16: an error of the sender's.
    IllegalVector,
}

/// Bits of the low word that are reserved, and fault in x2APIC mode. Bit 12, the delivery status, is
/// read-only and may be written back.
pub(super) const RESERVED: u32 = 0xFFF3_2000;

/// Decodes the low word of the command register.
pub(super) fn decode(command: u32, dest: u32) -> Result<Ipi, NotSent> {
    let asserted = command & 1 << 14 != 0;
    let shorthand = match command >> 18 & 3 {
        0 => Shorthand::None,
        1 => Shorthand::SelfOnly,
        2 => Shorthand::All,
        _ => Shorthand::Others,
    };
    let mode = match command >> 8 & 7 {
        0 => DeliveryMode::Fixed,
        1 => DeliveryMode::LowestPriority,
        4 => DeliveryMode::Nmi,
        // Level-triggered and not asserted: the second half of the old INIT protocol.
        5 if asserted || command & 1 << 15 == 0 => DeliveryMode::Init,
        6 => DeliveryMode::StartUp,
        _ => return Err(NotSent::Ignored),
    };
    let vector = match mode {
        DeliveryMode::Nmi | DeliveryMode::Init => 0,
        _ => command as u8,
    };
    if matches!(mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority) && vector < 16 {
        return Err(NotSent::IllegalVector);
    }
    // Table 11-3: only a fixed interrupt may name its sender.
    let names_sender = matches!(shorthand, Shorthand::SelfOnly | Shorthand::All);
    if names_sender && mode != DeliveryMode::Fixed && mode != DeliveryMode::LowestPriority {
        return Err(NotSent::Ignored);
    }
    Ok(Ipi { dest, logical: command & 1 << 11 != 0, mode, vector, shorthand, assert: true })
}
