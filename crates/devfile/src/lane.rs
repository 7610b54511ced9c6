//! A lane: a page in which a guest leaves a request for somebody who looks for it, so that neither side has to be woken.
//!
//! ```text
//!            serve                    guest
//!   CLOSED --------> OPEN -----------------------> POSTED
//!      ^              | ^                             |
//!      +--- close ----+ +---------- answer -----------+
//! ```
//!
//! Each arrow has one side that may take it, and both leave OPEN by exchange: so a request is posted only while somebody looks, and who stops looking has
//! not missed one. All of the page may be altered by the guest at any time, and, on the way back, by who serves it: each word of a request is looked at once, and an
//! answer counts for the request whose number it bears.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 5.1 (polling).

use crate::Request;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_hypercall::devfile::{
    DEVFILE_LANE_CLOSED, DEVFILE_LANE_OPEN, DEVFILE_LANE_POSTED, DEVFILE_LANE_REQUEST, DEVFILE_LANE_RESULT,
    DEVFILE_LANE_STATE,
};

const WORDS: usize = Request::SIZE / 8;

/// The page. Both sides have parts of their own, a cache line each.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Lane {
    state: AtomicU32,
    /// Number of the request, which the guest chose.
    posted: AtomicU32,
    apart: [AtomicU64; 7],
    result: AtomicU64,
    /// Number of the request that the result is of.
    answered: AtomicU32,
    rest: AtomicU32,
    apart_too: [AtomicU64; 6],
    request: [AtomicU64; WORDS],
}

const _: () = {
    assert!(core::mem::offset_of!(Lane, state) == DEVFILE_LANE_STATE as usize);
    assert!(core::mem::offset_of!(Lane, result) == DEVFILE_LANE_RESULT as usize);
    assert!(core::mem::offset_of!(Lane, request) == DEVFILE_LANE_REQUEST as usize);
    assert!(size_of::<Lane>() <= crate::PAGE_SIZE as usize);
};

impl Default for Lane {
    fn default() -> Self {
        Self {
            state: AtomicU32::new(DEVFILE_LANE_CLOSED),
            posted: AtomicU32::new(0),
            apart: Default::default(),
            result: AtomicU64::new(0),
            answered: AtomicU32::new(0),
            rest: AtomicU32::new(0),
            apart_too: Default::default(),
            request: [const { AtomicU64::new(0) }; WORDS],
        }
    }
}

/// For who serves it, one thread at a time.
impl Lane {
    /// From here on requests may be posted. What was posted before for somebody else is not answered any more.
    pub fn open(&self) {
        self.state.store(DEVFILE_LANE_OPEN, Ordering::Release);
    }

    /// A request was posted.
    pub fn is_posted(&self) -> bool {
        self.state.load(Ordering::Acquire) == DEVFILE_LANE_POSTED
    }

    /// From here on none are. `false`: one was just then.
    pub fn close(&self) -> bool {
        let (open, closed) = (DEVFILE_LANE_OPEN, DEVFILE_LANE_CLOSED);
        let was = self.state.compare_exchange(open, closed, Ordering::AcqRel, Ordering::Acquire);
        was != Err(DEVFILE_LANE_POSTED)
    }

    /// Number of the request that was posted.
    pub fn number(&self) -> u32 {
        self.posted.load(Ordering::Relaxed)
    }

    /// The request that was posted; `None` if something in it cannot be.
    pub fn request(&self) -> Option<Request> {
        Request::read(|place| self.request.get(place).map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    /// Answers the request of this number, and looks for the next.
    pub fn answer(&self, number: u32, result: i64) {
        self.result.store(result as u64, Ordering::Relaxed);
        self.answered.store(number, Ordering::Relaxed);
        self.open();
    }
}

/// For the guest, one thread at a time.
impl Lane {
    /// Posts a request. `false`: nobody looks for one.
    pub fn post(&self, number: u32, request: &[u8; Request::SIZE]) -> bool {
        if self.state.load(Ordering::Relaxed) != DEVFILE_LANE_OPEN {
            return false;
        }
        let (words, _) = request.as_chunks::<8>();
        for (place, word) in self.request.iter().zip(words) {
            place.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        self.posted.store(number, Ordering::Relaxed);
        let (open, posted) = (DEVFILE_LANE_OPEN, DEVFILE_LANE_POSTED);
        self.state.compare_exchange(open, posted, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// What the request of this number was answered with; `None`: not yet. An inner `None`: it will not be.
    pub fn answered(&self, number: u32) -> Option<Option<i64>> {
        if self.is_posted() {
            return None;
        }
        let result = self.result.load(Ordering::Relaxed) as i64;
        Some((self.answered.load(Ordering::Relaxed) == number).then_some(result))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    /// An ioctl with one range.
    fn bytes(argument: u32) -> [u8; Request::SIZE] {
        let mut bytes = [0; Request::SIZE];
        bytes[0] = 6;
        for at in [24, 32, 56] {
            bytes[at..at + 4].copy_from_slice(&argument.to_le_bytes());
        }
        (bytes[48], bytes[64], bytes[68]) = (1, 1, 1);
        bytes
    }

    fn request(argument: u32) -> Option<Request> {
        Request::decode(&bytes(argument))
    }

    #[test]
    fn a_request_is_posted_only_for_somebody() {
        let lane = Lane::default();
        assert!(!lane.post(1, &bytes(7)), "nobody looks");
        lane.open();
        assert!(lane.post(1, &bytes(7)));
        assert!(!lane.post(2, &bytes(8)), "there is one");
        assert!(request(7).is_some());
        assert_eq!((lane.request(), lane.number(), lane.answered(1)), (request(7), 1, None));
        assert!(!lane.close(), "it would be missed");
        lane.answer(1, -5);
        assert_eq!((lane.answered(1), lane.answered(2)), (Some(Some(-5)), Some(None)));
        assert!(lane.close() && !lane.post(3, &bytes(9)));
        assert_eq!(lane.answered(1), Some(Some(-5)), "it can be fetched later");
    }

    #[test]
    fn who_comes_after_who_ended_answers_nothing_of_before() {
        let lane = Lane::default();
        lane.open();
        assert!(lane.post(1, &bytes(7)));
        lane.open();
        assert_eq!(lane.answered(1), Some(None));
    }

    /// Whoever looks stops now and then, and every request is either posted and answered, or not posted.
    #[test]
    fn nothing_is_missed_and_nothing_torn() {
        let (lane, over) = (Lane::default(), AtomicBool::new(false));
        let (mut posted, mut number) = (0, 0_u32);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut looks = 0_u32;
                lane.open();
                while !over.load(Ordering::Relaxed) {
                    looks += 1;
                    if lane.is_posted() {
                        let number = lane.number();
                        assert_eq!(lane.request(), request(number), "torn");
                        lane.answer(number, number.into());
                    } else if looks.is_multiple_of(50) && lane.close() {
                        std::thread::yield_now();
                        lane.open();
                    }
                }
            });
            while posted < 300 {
                number += 1;
                if lane.post(number, &bytes(number)) {
                    posted += 1;
                    let since = Instant::now();
                    while lane.answered(number).is_none() {
                        if since.elapsed() > Duration::from_secs(60) {
                            over.store(true, Ordering::Relaxed);
                            panic!("{number} was missed");
                        }
                        std::thread::yield_now();
                    }
                    assert_eq!(lane.answered(number), Some(Some(number.into())));
                } else {
                    std::thread::yield_now();
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
