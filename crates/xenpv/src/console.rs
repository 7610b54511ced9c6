//! The console: a ring of bytes in and bytes out in a page of the guest's memory (io/console.h), or calls, where the guest is the initial domain
//! (xen.h, HYPERVISOR_console_io).

use crate::abi::{Error, PAGE};
use crate::events::{CONSOLE, VIRQ_CONSOLE};
use crate::{Guest, Host};

/// Bytes typed that the initial domain may leave unread; more wait.
pub(crate) const INPUT: usize = 256;
const IN_BYTES: u32 = 1024;
const OUT: usize = 1024;
const OUT_BYTES: u32 = 2048;
const IN_CONS: usize = 3072;
const IN_PROD: usize = 3076;
const OUT_CONS: usize = 3080;
const OUT_PROD: usize = 3084;

impl Guest {
    /// Takes what the guest has written. What it says of its ring is an allegation: more than fits it is nothing.
    pub(crate) fn drain_console(&mut self, host: &mut impl Host) {
        // Where the ring would be, an initial domain has a page of its own, which may be a page table.
        if self.hardware.is_initial() {
            return;
        }
        let (mut from, to) = (self.index(host, OUT_CONS), self.index(host, OUT_PROD));
        let waiting = to.wrapping_sub(from);
        if waiting > OUT_BYTES {
            return;
        }
        let mut left = waiting;
        while left > 0 {
            let at = from % OUT_BYTES;
            let mut bytes = [0; 256];
            let here = left.min(OUT_BYTES - at).min(256) as usize;
            let Some(bytes) = bytes.get_mut(..here) else { break };
            host.read(self.layout.console, OUT + at as usize, bytes);
            let taken = host.console_output(bytes).min(here) as u32;
            if taken == 0 {
                break;
            }
            from = from.wrapping_add(taken);
            left -= taken;
        }
        if left < waiting {
            host.write(self.layout.console, OUT_CONS, &from.to_le_bytes());
            self.raise(host, CONSOLE);
        }
    }

    /// HYPERVISOR_console_io: CONSOLEIO_write, CONSOLEIO_read.
    pub(crate) fn console_io(
        &mut self,
        host: &mut impl Host,
        cmd: u64,
        count: u64,
        buffer: u64,
    ) -> Result<u64, Error> {
        if !self.hardware.is_initial() {
            return Err(Error::NoCall);
        }
        let mut bytes = [0; PAGE as usize];
        let bytes = bytes.get_mut(..count.min(PAGE) as usize).unwrap_or_default();
        match cmd as u32 {
            0 => {
                self.copy_in(host, buffer, bytes)?;
                // Linux makes a call again that was answered so, and takes any other for done.
                let taken = host.console_output(bytes);
                if taken == 0 && !bytes.is_empty() { Err(Error::Again) } else { Ok(taken as u64) }
            }
            1 => {
                let len = self.typed.len().min(bytes.len());
                let typed = self.typed.get(..len).unwrap_or_default();
                self.copy_out(host, buffer, typed)?;
                self.typed.drain(..len);
                Ok(len as u64)
            }
            _ => Err(Error::NoCall),
        }
    }

    /// Takes what was typed for the initial domain, when it has read what came before.
    fn tell_of_input(&mut self, host: &mut impl Host) {
        if !self.typed.is_empty() {
            return;
        }
        let mut bytes = [0; INPUT];
        let typed = host.console_input(&mut bytes);
        self.typed.extend(bytes.iter().take(typed));
        if typed != 0 {
            self.raise_virq(host, VIRQ_CONSOLE);
        }
    }

    /// Gives and takes what waits on either side.
    pub fn serve_console(&mut self, host: &mut impl Host) {
        if self.hardware.is_initial() {
            return self.tell_of_input(host);
        }
        self.drain_console(host);
        let (from, mut to) = (self.index(host, IN_CONS), self.index(host, IN_PROD));
        let waiting = to.wrapping_sub(from);
        if waiting >= IN_BYTES {
            return;
        }
        let at = to % IN_BYTES;
        let mut bytes = [0; 256];
        let room = (IN_BYTES - waiting).min(IN_BYTES - at).min(256) as usize;
        let Some(bytes) = bytes.get_mut(..room) else { return };
        let typed = host.console_input(bytes).min(room);
        if typed == 0 {
            return;
        }
        host.write(self.layout.console, at as usize, bytes.get(..typed).unwrap_or_default());
        to = to.wrapping_add(typed as u32);
        host.write(self.layout.console, IN_PROD, &to.to_le_bytes());
        self.raise(host, CONSOLE);
    }

    fn index(&self, host: &impl Host, at: usize) -> u32 {
        let mut bytes = [0; 4];
        host.read(self.layout.console, at, &mut bytes);
        u32::from_le_bytes(bytes)
    }
}
