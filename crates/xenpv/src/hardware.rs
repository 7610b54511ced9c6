//! Physical devices of a paravirtual domain: registers that it maps, ports, and interrupt lines.
//!
//! A domain that has some is told that it is the initial domain (SIF_INITDOMAIN): its kernel then looks for PCI functions by itself, as on
//! a PC, and asks for their interrupt lines by number (physdev.h). It finds no ACPI tables and no I/O APIC, so that the number is
//! the one in a function's interrupt line register, as on a PC whose firmware has routed the lines to an interrupt controller of
//! the first PCs'. Of that one nothing is there but a mask that can be read again, by which Linux knows that there are such lines.
//!
//! Source: Xen's public headers (physdev.h, event_channel.h, xen.h); 8259A data sheet (operation command word 1).

use crate::abi::Error;
use crate::events::Port;
use crate::{Guest, Host};
use alloc::vec::Vec;
use core::ops::Range;

/// Lines that there are.
pub const LINES: u32 = 16;
/// Where the first interrupt controller's mask is.
const PIC_MASK: u16 = 0x21;
/// The counter of a PC's timer by which Linux times its processor: it reads this 100,000 times if it says ones, and gives up at zeros.
const TIMER: u16 = 0x42;

/// Frames of the machine's that an initial domain may map to look for a BIOS's tables: Linux takes them for those of a PC, 6.12 from 512 KiB on
/// (iBFT; drivers/firmware/iscsi_ibft_find.c) and up to 1 MiB. What is to be found there is for the host to say.
pub const BIOS: Range<u64> = 0x80..0x100;

/// What a domain has of the machine's devices. Empty: it has none, and is no initial domain.
#[derive(Clone, Debug, Default)]
pub struct Hardware {
    /// Frames of registers that it may map.
    pub registers: Vec<Range<u64>>,
    /// Interrupt lines, a bit each.
    pub lines: u16,
}

impl Hardware {
    /// Whether the domain is told that it is the initial one.
    pub fn is_initial(&self) -> bool {
        !self.registers.is_empty() || self.lines != 0
    }

    /// Frames that it may map and that are nobody's memory.
    pub(crate) fn frames(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.registers.iter().cloned().chain(self.is_initial().then_some(BIOS))
    }
}

mod physdev {
    pub const IRQ_STATUS_QUERY: u64 = 5;
    pub const SET_IOPL: u64 = 6;
    pub const SET_IOBITMAP: u64 = 7;
    pub const ALLOC_IRQ_VECTOR: u64 = 10;
    pub const EOI: u64 = 12;
    pub const DEVICE_ADD: u64 = 25;
    pub const DEVICE_REMOVE: u64 = 26;
    /// XENIRQSTAT_needs_eoi.
    pub const NEEDS_EOI: u32 = 1;
}

impl Guest {
    /// A line of the guest's devices went up: it is told where it has bound the line, and nowhere else.
    pub fn raise_line(&mut self, host: &mut impl Host, line: u32) {
        if let Some(port) = self.channels.find(Port::Line(line)) {
            self.raise(host, port);
        }
    }

    /// Whether a line is one of the guest's devices'.
    pub(crate) fn own_line(&self, line: u32) -> Result<u32, Error> {
        let own = line < LINES && self.hardware.lines >> line & 1 != 0;
        if own { Ok(line) } else { Err(Error::NotPermitted) }
    }

    /// HYPERVISOR_platform_op: XENPF_settime32, XENPF_settime64. The machine's clock is not the guest's, and it keeps its own in memory of its own; but Linux
    /// asks at every tick until it is told that this is done.
    pub(crate) fn platform_op(&self, host: &impl Host, operation: u64) -> Result<u64, Error> {
        let is_initial = self.hardware.is_initial();
        let [cmd] = if is_initial { self.halves(host, operation)? } else { [0] };
        if matches!(cmd, 17 | 62) { Ok(0) } else { Err(Error::NoCall) }
    }

    /// HYPERVISOR_physdev_op.
    pub(crate) fn physdev_op(&mut self, host: &mut impl Host, cmd: u64, arg: u64) -> Result<u64, Error> {
        match cmd {
            // The level is only shown: ports are the kernel's, and those of its devices.
            physdev::SET_IOPL => {
                let [level] = self.halves(host, arg)?;
                self.cpu.iopl = u8::try_from(level).ok().filter(|level| *level < 4).ok_or(Error::Invalid)?;
                self.cpu.gate_is_stale = true;
            }
            physdev::SET_IOBITMAP => {}
            // The hypervisor knows the guest's devices.
            physdev::DEVICE_ADD | physdev::DEVICE_REMOVE if self.hardware.is_initial() => {}
            physdev::ALLOC_IRQ_VECTOR => {
                let [line] = self.halves(host, arg)?;
                let line = self.own_line(line)?;
                self.copy_out(host, arg.wrapping_add(4), &line.to_le_bytes())?;
            }
            physdev::IRQ_STATUS_QUERY => {
                let [line] = self.halves(host, arg)?;
                self.own_line(line)?;
                self.copy_out(host, arg.wrapping_add(4), &physdev::NEEDS_EOI.to_le_bytes())?;
            }
            physdev::EOI => {
                let [line] = self.halves(host, arg)?;
                let line = self.own_line(line)?;
                host.end_of_line(line);
            }
            _ => return Err(Error::NoCall),
        }
        Ok(0)
    }

    /// IN: what a port of `width` bytes says, ones where the guest has none.
    pub(crate) fn read_port(&mut self, host: &mut impl Host, port: u16, width: u8) -> u32 {
        let ones = u32::MAX >> (32 - 8 * u32::from(width.clamp(1, 4)));
        match port {
            TIMER => 0,
            _ if !self.hardware.is_initial() => ones,
            PIC_MASK if width == 1 => self.pic_mask.into(),
            _ => host.read_port(port, width) & ones,
        }
    }

    /// OUT.
    pub(crate) fn write_port(&mut self, host: &mut impl Host, port: u16, width: u8, value: u32) {
        match port {
            _ if !self.hardware.is_initial() => {}
            PIC_MASK if width == 1 => self.pic_mask = value as u8,
            _ => host.write_port(port, width, value),
        }
    }
}
