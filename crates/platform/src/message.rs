//! An interrupt on its way from an I/O APIC pin or a message-signalled device to local APICs.
//!
//! Source: Intel SDM vol. 3, 12.11 (message signalled interrupts), 82093AA datasheet 3.2.4.

/// Destination that every local APIC matches, in every mode.
pub const BROADCAST: u32 = u32::MAX;

/// An interrupt message. Only the two delivery modes that carry a vector exist here: senders drop the
/// others (SMI, NMI, INIT, ExtINT), which no device of this platform has a use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Destination: an APIC id, or a logical mask; [`BROADCAST`] for all.
    pub dest: u32,
    /// `dest` is a logical destination.
    pub logical: bool,
    /// Interrupt vector, 16-255.
    pub vector: u8,
    /// Level-triggered: the receiver's EOI has to come back to the I/O APIC.
    pub level: bool,
    /// Deliver to one of the destinations (the one of lowest priority) instead of to all.
    pub lowest_priority: bool,
}

impl Message {
    /// What a device's write of `data` to `address` means, as MSI and MSI-X program it.
    ///
    /// `None` if the address is not in the interrupt window (0xFEEx_xxxx), the delivery mode carries no
    /// vector, or the vector is an illegal one (below 16).
    pub fn from_msi(address: u64, data: u32) -> Option<Self> {
        if address & !0xF_FFFF != 0xFEE0_0000 {
            return None;
        }
        let [vector, control, _, _] = data.to_le_bytes();
        let dest = widen((address >> 12) as u8);
        Self::new(dest, address & 1 << 2 != 0, control & 7, vector, control & 0x80 != 0).map(|message| {
            // The redirection hint asks for one receiver whatever the delivery mode says.
            let hint = address & 1 << 3 != 0 && dest != BROADCAST;
            Self { lowest_priority: message.lowest_priority || (hint && message.logical), ..message }
        })
    }

    /// A message from the fields that an I/O APIC entry and a message-signalled interrupt have in common.
    pub(crate) fn new(dest: u32, logical: bool, mode: u8, vector: u8, level: bool) -> Option<Self> {
        (mode <= 1 && vector >= 16).then_some(Self {
            dest,
            logical,
            vector,
            level,
            lowest_priority: mode == 1,
        })
    }
}

/// An 8-bit destination as a 32-bit one: 0xFF means everyone.
pub(crate) fn widen(dest: u8) -> u32 {
    if dest == 0xFF { BROADCAST } else { u32::from(dest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sdm_12_11_1_message_address() {
        let message = Message::from_msi(0xFEE0_3000, 0x0041).unwrap();
        assert_eq!(
            message,
            Message { dest: 3, logical: false, vector: 0x41, level: false, lowest_priority: false }
        );
        assert_eq!(Message::from_msi(0xFEEF_F000, 0x41).unwrap().dest, BROADCAST);
        assert!(Message::from_msi(0xFEE0_300C, 0x41).unwrap().lowest_priority);
        assert!(Message::from_msi(0xFEE0_3004, 0x41).unwrap().logical);
    }

    #[test]
    fn sdm_12_11_2_message_data() {
        assert!(Message::from_msi(0xFEE0_0000, 0x8141).unwrap().level);
        assert!(Message::from_msi(0xFEE0_0000, 0x0141).unwrap().lowest_priority);
        assert_eq!(Message::from_msi(0xFEE0_0000, 0x0441), None, "NMI");
        assert_eq!(Message::from_msi(0xFEE0_0000, 0x000F), None, "illegal vector");
    }

    #[test]
    fn only_the_interrupt_window_is_a_message() {
        assert_eq!(Message::from_msi(0xFED0_0000, 0x41), None);
        assert_eq!(Message::from_msi(0x1_FEE0_0000, 0x41), None);
        assert_eq!(Message::from_msi(0, 0x41), None);
    }
}
