//! What the interface needs of the machine.

use sluice_pagetypes::{Machine, Mfn};

/// Memory and hardware of the domain. Frames that are named here have been found to be the domain's.
pub trait Host: Machine {
    /// Reads bytes of one frame.
    fn read(&self, frame: Mfn, offset: usize, buffer: &mut [u8]);
    /// Writes bytes of one frame.
    fn write(&mut self, frame: Mfn, offset: usize, bytes: &[u8]);
    /// The processor that asks forgets its translations.
    fn invalidate(&mut self);
    /// These processors do, a bit each, before this returns, or before they execute another instruction of the guest's.
    fn invalidate_on(&mut self, processors: u64);
    /// Another processor than the one that asks has to look whether something has happened.
    fn wake(&mut self, processor: u32);
    /// Another processor has begun to run, with [`crate::Guest::take_start`] or as it stopped.
    fn start(&mut self, processor: u32);
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
