//! Resets right after the doorbell, and in the middle of requests that another processor has carried out.

use super::super::Score;
use super::super::virtio::{AVAILABLE, SIZE, USED};
use super::driver::{DONE, Outcome, Request};
use super::{DOMAIN, FIRST, Guest, PAGE, PAGES};
use crate::console::println;
use crate::dma::memory::{get, put};
use crate::machine::{self, rdtsc, wrmsr};

/// Where the second processor is, and what it counts: below 1 MiB, for its processor mode.
const LOW_CODE: u64 = 0x6_0000;
const LOW_DATA: u64 = 0x7_0000;

/// Has the second processor write to a port, again and again, until [`stop_kicking`].
pub fn start_kicking(port: u16) {
    let [low, high] = ((LOW_DATA >> 4) as u16).to_le_bytes();
    let [port_low, port_high] = port.to_le_bytes();
    #[rustfmt::skip]
    let code = [
        0xfa,                                           // cli
        0xb8, low, high, 0x8e, 0xd8,                    // mov ax, data; mov ds, ax
        0xba, port_low, port_high, 0x31, 0xc0,          // mov dx, port; xor ax, ax
        0xef,                                           // out dx, ax
        0x66, 0xff, 0x06, 0x08, 0x00,                   // inc dword [8]
        0x80, 0x3e, 0, 0, 0,                            // cmp byte [0], 0
        0x74, 0xf3,                                     // je the write
        0xf4, 0xeb, 0xfd,                               // hlt; jmp hlt
    ];
    (0..16).step_by(4).for_each(|offset| put(LOW_DATA + offset, 0));
    for (at, byte) in (LOW_CODE..).zip(code) {
        unsafe { (at as *mut u8).write_volatile(byte) };
    }
    machine::x2apic();
    wrmsr(0x830, 1 << 32 | 0x4500);
    wrmsr(0x830, 1 << 32 | 0x4600 | LOW_CODE >> 12);
    machine::wait_for(10_000_000_000, || get(LOW_DATA + 8) != 0);
}

/// Returns how often it did.
pub fn stop_kicking() -> u32 {
    put(LOW_DATA, 1);
    machine::pause(10_000_000);
    get(LOW_DATA + 8)
}

impl Guest<'_> {
    /// Maps everything, or takes everything back, and resets the device right after the doorbell.
    pub fn resets(&mut self) {
        let mut score = Score::new("resets");
        for round in 0..48u64 {
            self.start();
            if round % 2 == 1 {
                self.must("MAP of everything", self.everything());
            }
            let request =
                if round % 4 == 1 { Request::unmap(DOMAIN, 0, u64::MAX) } else { self.everything() };
            self.iommu.offer_request(&request);
            self.iommu.ring();
            let reset = self.iommu.reset();
            self.check("the reset", reset);
            let stride = if round % 16 == 0 { 1 } else { 13 };
            score.add(self.is_any_issued(stride));
            self.start();
            self.must("MAP of what was mapped", Request::map_pages(DOMAIN, self.io, PAGES, self.area));
            self.must("MAP of its neighbourhood", Request::map_pages(DOMAIN, FIRST, 600, FIRST));
        }
    }

    /// The same while the second processor has the request carried out.
    pub fn raced(&mut self) {
        let mut score = Score::new("raced");
        let (mut whole, mut cut) = (0, 0);
        self.start();
        let before = rdtsc();
        self.must("MAP of everything", self.everything());
        let took = rdtsc() - before;
        start_kicking(self.iommu.device.doorbell);
        for round in 0..48u64 {
            self.start();
            if round % 2 == 1 {
                self.must("MAP of everything", self.everything());
            }
            let request =
                if round % 4 == 1 { Request::unmap(DOMAIN, 0, u64::MAX) } else { self.everything() };
            self.iommu.offer_request(&request);
            machine::pause(self.random.below(took));
            let answered = self.iommu.is_answered();
            let reset = self.iommu.reset();
            self.check("the reset", reset);
            let stride = if round % 16 == 0 { 1 } else { 13 };
            score.add(self.is_any_issued(stride));
            if answered {
                whole += 1
            } else {
                cut += 1
            }
            self.start();
            let again = self.iommu.ask(&self.everything());
            self.check("MAP of everything", again == DONE);
            self.mend(again);
        }
        let kicks = stop_kicking();
        drop(score);
        let both = if whole > 0 && cut > 0 { "ok" } else { "bad" };
        println!("SLUICE-RESULT raced_whole={whole} raced_cut={cut} raced_both={both} raced_kicks={kicks}");
    }

    /// Resets while the second processor has the device find that its queue makes no sense: after a reset it does not complain of what was before.
    pub fn late(&mut self) {
        let mut score = Score::new("late");
        let at = self.iommu.device.at;
        start_kicking(self.iommu.device.doorbell);
        for _ in 0..2_000u32 {
            put(at + AVAILABLE, 0);
            self.iommu.start_at([at, at + AVAILABLE, at + USED], SIZE);
            machine::pause(self.random.below(30_000));
            put(at + AVAILABLE, 1_000 << 16);
            machine::pause(self.random.below(30_000));
            self.iommu.reset();
            score.add((0..20).any(|_| self.iommu.device.status() != 0));
        }
        stop_kicking();
    }

    /// Rings full of requests that take long, each told of once: how long the longest took, in ticks.
    pub fn flood(&mut self) {
        let mut longest = 0;
        for round in 0..16u64 {
            self.start();
            self.must("MAP of everything", self.everything());
            let request = match round % 4 {
                0 => Request::unmap(DOMAIN, 0, u64::MAX),
                1 => Request::map_pages(DOMAIN, FIRST + PAGE, 1, FIRST),
                2 => Request::unmap(DOMAIN, self.own.end(), u64::MAX),
                _ => Request::attach(DOMAIN, self.endpoints[0]),
            };
            (0..64).for_each(|_| self.iommu.offer_request(&request));
            let before = rdtsc();
            self.iommu.ring();
            let outcome = self.iommu.outcome();
            longest = longest.max(rdtsc() - before);
            self.check("a ring full of requests", matches!(outcome, Outcome::Status(_)));
            self.mend(outcome);
        }
        println!("SLUICE-RESULT flood_longest={longest}");
    }
}
