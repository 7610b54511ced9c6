//! What the interface needs of the machine.

use sluice_pagetypes::{Machine, Mfn};

/// Memory and hardware of the domain. Frames that are named here have been found to be the domain's.
pub trait Host: Machine {
    /// Reads bytes of one frame.
    fn read(&self, frame: Mfn, offset: usize, buffer: &mut [u8]);
    /// Writes bytes of one frame.
    fn write(&mut self, frame: Mfn, offset: usize, bytes: &[u8]);
    /// The guest asks for its own translations to be forgotten, on its only processor.
    fn invalidate(&mut self);
    /// Reads a port of so many bytes (1, 2 or 4) for the kernel of a domain with devices: ones if it is not its own.
    fn read_port(&mut self, port: u16, width: u8) -> u32;
    /// Writes one, if it is its own.
    fn write_port(&mut self, port: u16, width: u8, value: u32);
    /// The guest has dealt with an interrupt of a line of its devices.
    fn end_of_line(&mut self, line: u32);
    /// Nanoseconds since the domain was built.
    fn now(&self) -> u64;
    /// Takes console output. Returns how much was taken.
    fn console_output(&mut self, bytes: &[u8]) -> usize;
    /// Gives console input that waits. Returns how much there was.
    fn console_input(&mut self, buffer: &mut [u8]) -> usize;
    /// CPUID as a guest of the machine sees it: EAX, EBX, ECX, EDX.
    fn cpuid(&self, leaf: u32, subleaf: u32) -> [u32; 4];
}
