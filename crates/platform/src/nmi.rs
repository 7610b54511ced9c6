//! Non-maskable interrupts of a virtual processor: one is latched while another is handled, and its delivery waits for IRET.
//!
//! The hypervisor tells of IRET before it is executed (its intercept has no "after"). The handler is over when execution is
//! anywhere else, or when a single step over the instruction has come back. An IRET that faults ends it, too.
//!
//! Source: APM vol. 2, 8.2.3 (NMI) and 15.20 (event injection); Intel SDM vol. 3, 6.7.1 (blocking until IRET).

/// Where the processor is with regard to NMIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Handler {
    /// Not in a handler.
    #[default]
    Out,
    /// In one, before its IRET.
    In,
    /// About to execute the IRET at this address.
    Ends(u64),
}

/// What is to be done about an NMI now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Action {
    /// Nothing: there is none, or the handler's IRET is awaited.
    None,
    /// Deliver it. Until its IRET the processor is in the handler.
    Deliver,
    /// Execute one instruction, and ask again ([`Nmi::stepped`]).
    Step,
}

/// NMI state of one virtual processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nmi {
    latched: bool,
    handler: Handler,
}

impl Nmi {
    /// An NMI arrives. Any number that wait are one.
    pub fn request(&mut self) {
        self.latched = true;
    }

    /// The next instruction is the IRET at `rip`, which was awaited.
    pub fn returns(&mut self, rip: u64) {
        if self.handler == Handler::In {
            self.handler = Handler::Ends(rip);
        }
    }

    /// The instruction that [`Action::Step`] asked for was executed.
    pub fn stepped(&mut self) {
        if self.returning() {
            self.handler = Handler::Out;
        }
    }

    /// Does IRET have to be told of?
    pub fn awaits_return(&self) -> bool {
        self.handler == Handler::In
    }

    /// Is the next instruction, or the one just executed, the IRET of a handler?
    pub fn returning(&self) -> bool {
        matches!(self.handler, Handler::Ends(_))
    }

    /// Would an NMI end a sleep?
    pub fn wakes(&self) -> bool {
        self.latched && !self.awaits_return()
    }

    /// What to do before the instruction at `rip` is executed, which may be in an interrupt shadow (of STI or MOV SS).
    pub fn next(&mut self, rip: u64, shadow: bool) -> Action {
        if matches!(self.handler, Handler::Ends(at) if at != rip) {
            self.handler = Handler::Out;
        }
        match self.handler {
            _ if !self.latched => Action::None,
            Handler::In => Action::None,
            Handler::Ends(_) => Action::Step,
            Handler::Out if shadow => Action::Step,
            Handler::Out => {
                self.latched = false;
                self.handler = Handler::In;
                Action::Deliver
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A handler whose IRET is at this address.
    const IRET: u64 = 0x2000;

    fn in_handler() -> Nmi {
        let mut nmi = Nmi::default();
        nmi.request();
        assert_eq!(nmi.next(0x1000, false), Action::Deliver);
        assert!(nmi.awaits_return());
        nmi
    }

    #[test]
    fn of_those_that_arrive_in_a_handler_one_is_delivered_after_its_iret() {
        let mut nmi = in_handler();
        for rip in 0..3 {
            nmi.request();
            assert_eq!((nmi.next(rip, false), nmi.wakes()), (Action::None, false));
        }
        nmi.returns(IRET);
        assert_eq!(nmi.next(IRET, false), Action::Step, "not before it was executed");
        nmi.stepped();
        assert_eq!(nmi.next(0x1000, false), Action::Deliver);
        nmi.returns(IRET);
        nmi.stepped();
        assert_eq!(nmi.next(0x1000, false), Action::None, "three were one");
    }

    #[test]
    fn a_handler_that_returned_unwatched_is_over() {
        let mut nmi = in_handler();
        nmi.returns(IRET);
        assert_eq!(nmi.next(IRET, false), Action::None);
        nmi.request();
        assert_eq!(nmi.next(IRET, false), Action::Step, "it may not have got further yet");
        assert_eq!(nmi.next(0x1000, false), Action::Deliver);
    }

    #[test]
    fn an_iret_to_itself_ends_the_handler_by_the_step() {
        let mut nmi = in_handler();
        nmi.request();
        nmi.returns(IRET);
        assert_eq!(nmi.next(IRET, false), Action::Step);
        nmi.stepped();
        assert_eq!(nmi.next(IRET, false), Action::Deliver);
    }

    #[test]
    fn none_is_delivered_in_an_interrupt_shadow() {
        let mut nmi = Nmi::default();
        nmi.request();
        assert_eq!(nmi.next(0x1000, true), Action::Step);
        assert!(nmi.wakes());
        nmi.stepped();
        assert_eq!(nmi.next(0x1001, false), Action::Deliver);
    }

    proptest! {
        /// Against a count of arrivals and deliveries: never nested, never lost, never made up.
        #[test]
        fn handlers_never_nest_and_none_is_lost(
            events in proptest::collection::vec((0u8..5, 0u64..4, any::<bool>()), 1..200)
        ) {
            let (mut nmi, mut inside, mut waiting) = (Nmi::default(), false, false);
            for (kind, rip, shadow) in events {
                match kind {
                    0 => {
                        nmi.request();
                        waiting = true;
                    }
                    // A handler's IRET, executed under the eyes of the hypervisor.
                    1 if inside => {
                        nmi.returns(rip);
                        prop_assert_ne!(nmi.next(rip, shadow), Action::Deliver);
                        nmi.stepped();
                        inside = false;
                    }
                    // An IRET that is no handler's is not told of.
                    _ => match nmi.next(rip, shadow) {
                        Action::Deliver => {
                            prop_assert!(waiting && !inside && !shadow);
                            (waiting, inside) = (false, true);
                        }
                        Action::Step => prop_assert!(waiting && !inside && shadow),
                        Action::None => prop_assert!(!waiting || inside),
                    },
                }
                prop_assert_eq!(nmi.awaits_return(), inside);
            }
        }
    }
}
