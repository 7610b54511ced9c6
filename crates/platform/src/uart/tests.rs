//! The serial port against its datasheet, and against what Linux's 8250 driver looks for.

use super::*;
use proptest::prelude::*;

const DATA: u8 = 0;
const IER: u8 = 1;
const IIR: u8 = 2;
const LCR: u8 = 3;
const MCR: u8 = 4;
const LSR: u8 = 5;
const MSR: u8 = 6;
const SCR: u8 = 7;

/// Interrupts connected (OUT2), FIFOs on with a trigger level of 8.
fn uart() -> Uart {
    let mut uart = Uart::new();
    uart.write(MCR, 0x0B);
    uart.write(IIR, 0x81);
    uart
}

#[test]
fn pc16550d_table_i_reset() {
    let mut uart = Uart::new();
    let registers: Vec<u8> = (0..8).map(|offset| uart.read(offset)).collect();
    assert_eq!(registers, [0, 0, 0x01, 0, 0, 0x60, 0xB0, 0]);
    assert!(!uart.interrupt());
}

#[test]
fn pc16550d_8_6_1_divisor_latch() {
    let mut uart = uart();
    uart.write(LCR, 0x83);
    assert_eq!((uart.read(DATA), uart.read(IER)), (12, 0));
    assert_eq!(uart.write(DATA, 0x34), None);
    uart.write(IER, 0x12);
    assert_eq!((uart.read(DATA), uart.read(IER)), (0x34, 0x12));
    uart.write(LCR, 0x03);
    assert_eq!((uart.write(DATA, b'x'), uart.read(IER)), (Some(b'x'), 0));
}

#[test]
fn pc16550d_8_4_received_data() {
    let mut uart = uart();
    uart.write(IER, 0x01);
    assert!(uart.push_input(b'a'));
    assert!(uart.interrupt());
    assert_eq!((uart.read(IIR), uart.read(LSR) & 1), (0xCC, 1), "below the trigger level: timed out");
    (0..7).for_each(|_| assert!(uart.push_input(b'b')));
    assert_eq!(uart.read(IIR), 0xC4);
    assert_eq!((uart.read(DATA), uart.read(DATA)), (b'a', b'b'));
    (0..6).for_each(|_| _ = uart.read(DATA));
    assert_eq!((uart.interrupt(), uart.read(IIR), uart.read(LSR) & 1), (false, 0xC1, 0));
}

#[test]
fn a_busy_transmitter_reads_full_and_interrupts_when_it_is_empty_again() {
    let mut uart = uart();
    uart.write(IER, 0x02);
    assert_eq!(uart.read(IIR) & 0x0F, 0x02);
    uart.set_busy(true);
    assert_eq!(uart.write(DATA, b'a'), Some(b'a'), "who does not look sends all the same");
    assert_eq!((uart.read(LSR), uart.interrupt(), uart.read(IIR) & 0x0F), (0, false, 0x01));
    uart.set_busy(false);
    assert_eq!((uart.read(LSR), uart.interrupt(), uart.read(IIR) & 0x0F), (0x60, true, 0x02));
    assert!(!uart.interrupt(), "once");
    uart.set_busy(false);
    assert!(!uart.interrupt());
}

#[test]
fn pc16550d_8_6_7_transmitter_empty() {
    let mut uart = uart();
    uart.write(IER, 0x02);
    assert!(uart.interrupt(), "enabled while empty");
    assert_eq!((uart.read(IIR), uart.read(IIR)), (0xC2, 0xC1), "reading acknowledges");
    assert!(!uart.interrupt());
    assert_eq!(uart.write(DATA, b'x'), Some(b'x'));
    assert!(uart.interrupt(), "sent, and empty again");
    uart.write(IER, 0x00);
    assert!(!uart.interrupt());
    // What the driver does to look for a known bug: the interrupt has to come back.
    uart.write(IER, 0x02);
    assert_eq!(uart.read(IIR), 0xC2);
    uart.write(IER, 0x00);
    uart.write(IER, 0x02);
    assert_eq!(uart.read(IIR), 0xC2);
}

#[test]
fn pc16550d_table_iii_priorities() {
    let mut uart = uart();
    uart.write(MCR, 0x10);
    (0..FIFO + 1).for_each(|_| _ = uart.write(DATA, 0));
    uart.write(MCR, 0x0B);
    uart.write(IER, 0x0F);
    assert_eq!(uart.read(IIR), 0xC6, "overrun");
    assert_eq!(uart.read(LSR) & 2, 2);
    assert_eq!(uart.read(IIR), 0xC4, "received");
    (0..FIFO).for_each(|_| _ = uart.read(DATA));
    assert_eq!(uart.read(IIR), 0xC2, "sent");
    assert_eq!(uart.read(IIR), 0xC0, "modem lines changed");
    assert_ne!(uart.read(MSR) & 0x0F, 0);
    assert_eq!((uart.read(IIR), uart.read(MSR)), (0xC1, 0xB0));
}

#[test]
fn pc16550d_8_6_8_out2_connects_the_interrupt() {
    let mut uart = uart();
    uart.write(IER, 0x02);
    uart.write(MCR, 0x03);
    assert!(!uart.interrupt());
    uart.write(MCR, 0x0B);
    assert!(uart.interrupt());
}

#[test]
fn input_waits_for_room() {
    let mut uart = Uart::new();
    assert!(uart.push_input(1) && !uart.push_input(2), "without FIFOs, one byte");
    uart.write(IIR, 0x01);
    assert_eq!(uart.read(LSR) & 1, 0, "changing the mode empties");
    assert_eq!((0..100).filter(|byte| uart.push_input(*byte)).count(), FIFO);
    uart.write(IIR, 0x03);
    assert!(uart.push_input(1));
    uart.write(MCR, 0x10);
    assert!(!uart.push_input(2), "nothing comes in while looped back");
}

#[test]
fn linux_8250_finds_a_16550a() {
    let mut uart = Uart::new();
    // The interrupt enable register has four bits.
    uart.write(IER, 0);
    assert_eq!(uart.read(IER), 0);
    uart.write(IER, 0xFF);
    assert_eq!(uart.read(IER), 0x0F);
    uart.write(IER, 0);
    // Loopback: RTS and OUT2 come back as CTS and DCD.
    uart.write(MCR, 0x1A);
    assert_eq!(uart.read(MSR) & 0xF0, 0x90);
    assert_eq!(uart.write(DATA, 0x55), None);
    assert_eq!(uart.read(DATA), 0x55);
    uart.write(MCR, 0);
    // FIFOs that work, and that do not grow to 64 as a 16750's do.
    uart.write(IIR, 0x01);
    assert_eq!(uart.read(IIR) >> 6, 3);
    for lcr in [0x00, 0x80] {
        uart.write(LCR, lcr);
        uart.write(IIR, 0x21);
        assert_eq!(uart.read(IIR) >> 5, 6);
    }
    // No enhanced feature register.
    uart.write(LCR, 0xBF);
    assert_ne!(uart.read(IIR), 0);
    uart.write(LCR, 0);
    uart.write(SCR, 0xA5);
    assert_eq!(uart.read(SCR), 0xA5);
}

proptest! {
    #[test]
    fn any_access_yields_a_value(steps: Vec<(u8, u8, u8)>) {
        let mut uart = Uart::new();
        for (kind, offset, value) in steps {
            match kind & 3 {
                0 => { uart.read(offset); }
                1 => { uart.push_input(value); }
                _ => { uart.write(offset, value); }
            }
            // The line says what the identification register would.
            if uart.interrupt() {
                prop_assert_eq!(uart.clone().read(IIR) & 1, 0);
            }
            if !uart.push_input(0) {
                prop_assert!(uart.mcr.contains(Mcr::LOOPBACK) || uart.read(LSR) & 1 == 1);
            }
        }
    }
}
