//! Whose command the disk has, and whose is next.
//!
//! The caller starts what it is told to start, resets the channel when it is told to, and reports when either
//! is over. A guest that waits sees BSY. Times are of any one clock that does not go back.

use crate::Issue;

/// A guest, by its place: 0 to `N - 1`.
pub type Client = usize;

/// What the caller must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write the client's command to the disk.
    Start(Client, Issue),
    /// Stop the bus master and reset the channel (SRST), then call [`Channel::is_reset`]. A client, if one is left, is shown
    /// that its command failed.
    Reset(Option<Client>),
}

/// A command that a client may not have now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such client.
    Nobody,
    /// It has a command already.
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    /// A client's command runs.
    Running {
        client: Client,
        /// The client has not ended or reset its channel meanwhile.
        wanted: bool,
        until: u64,
    },
    Resetting,
}

/// A channel that up to `N` clients share.
#[derive(Debug)]
pub struct Channel<const N: usize> {
    phase: Phase,
    waiting: [Option<Issue>; N],
    /// Who was served last: the next is looked for behind it.
    served: Client,
    patience: u64,
}

impl<const N: usize> Channel<N> {
    /// Nobody has it. A command that has run for `patience` is taken for lost.
    pub const fn new(patience: u64) -> Self {
        Self { phase: Phase::Free, waiting: [None; N], served: 0, patience }
    }

    /// Whose command the disk has.
    pub const fn holder(&self) -> Option<Client> {
        match self.phase {
            Phase::Running { client, wanted: true, .. } => Some(client),
            _ => None,
        }
    }

    /// Whose buffer the disk moves data to or from, whether or not anybody waits for them: nothing else may be put there.
    pub const fn mover(&self) -> Option<Client> {
        match self.phase {
            Phase::Running { client, .. } => Some(client),
            Phase::Free | Phase::Resetting => None,
        }
    }

    /// Whether the disk has nothing to do.
    pub const fn is_free(&self) -> bool {
        matches!(self.phase, Phase::Free)
    }

    /// When [`Self::poll`] wants to be called.
    pub const fn deadline(&self) -> Option<u64> {
        match self.phase {
            Phase::Running { until, .. } => Some(until),
            Phase::Free | Phase::Resetting => None,
        }
    }

    /// A client's command, vetted. It is started at once if nobody has the channel.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn request(&mut self, client: Client, issue: Issue, now: u64) -> Result<Option<Action>, Refusal> {
        let held = self.holder() == Some(client);
        let place = self.waiting.get_mut(client).ok_or(Refusal::Nobody)?;
        if held || place.is_some() {
            return Err(Refusal::Busy);
        }
        *place = Some(issue);
        Ok(self.next(now))
    }

    /// The disk has finished. Says whose command that was. [`Self::go_on`] says what follows.
    pub fn finished(&mut self) -> Option<Client> {
        let holder = self.holder();
        if self.mover().is_some() {
            self.phase = Phase::Free;
        }
        holder
    }

    /// A client ends, or resets its own channel. What it waits for is forgotten; what runs, runs to its end, and is nobody's.
    pub fn withdraw(&mut self, client: Client) {
        if let Some(place) = self.waiting.get_mut(client) {
            *place = None;
        }
        if let Phase::Running { client: mover, wanted, .. } = &mut self.phase
            && *mover == client
        {
            *wanted = false;
        }
    }

    /// Likewise, but what runs of the client's must not: the disk is to be stopped.
    pub fn stop(&mut self, client: Client) -> Option<Action> {
        self.withdraw(client);
        (self.mover() == Some(client)).then(|| {
            self.phase = Phase::Resetting;
            Action::Reset(None)
        })
    }

    /// Time passes.
    pub fn poll(&mut self, now: u64) -> Option<Action> {
        match self.phase {
            Phase::Running { until, .. } if now >= until => {
                let holder = self.holder();
                self.phase = Phase::Resetting;
                Some(Action::Reset(holder))
            }
            _ => None,
        }
    }

    /// The channel has been reset.
    pub fn is_reset(&mut self, now: u64) -> Option<Action> {
        if self.phase == Phase::Resetting {
            self.phase = Phase::Free;
        }
        self.next(now)
    }

    /// The next command, if the disk has nothing to do.
    pub fn go_on(&mut self, now: u64) -> Option<Action> {
        self.next(now)
    }

    /// Each in turn.
    fn next(&mut self, now: u64) -> Option<Action> {
        if self.phase != Phase::Free {
            return None;
        }
        let client =
            (1..=N).map(|step| (self.served + step) % N).find(|&client| self.waiting[client].is_some())?;
        let issue = self.waiting[client].take()?;
        self.served = client;
        let until = now.saturating_add(self.patience);
        self.phase = Phase::Running { client, wanted: true, until };
        Some(Action::Start(client, issue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    const ISSUE: Issue = Issue { code: 0xc8, kind: Kind::DmaIn, lba: 0, count: 1, long: false };

    fn started(action: Option<Action>) -> Option<Client> {
        match action {
            Some(Action::Start(client, _)) => Some(client),
            _ => None,
        }
    }

    #[test]
    fn one_has_the_channel_and_all_have_their_turn() {
        let mut channel = Channel::<3>::new(100);
        assert_eq!(started(channel.request(0, ISSUE, 0).expect("first")), Some(0));
        assert_eq!(channel.request(2, ISSUE, 0), Ok(None));
        assert_eq!(channel.request(1, ISSUE, 0), Ok(None));
        assert_eq!((channel.finished(), started(channel.go_on(1))), (Some(0), Some(1)));
        assert_eq!(channel.request(0, ISSUE, 1), Ok(None));
        assert_eq!((channel.finished(), started(channel.go_on(2))), (Some(1), Some(2)));
        assert_eq!((channel.finished(), started(channel.go_on(3))), (Some(2), Some(0)));
        assert_eq!((channel.finished(), channel.go_on(4)), (Some(0), None));
        assert!(channel.is_free());
        assert_eq!((channel.finished(), channel.go_on(5)), (None, None));
    }

    #[test]
    fn a_client_has_one_command() {
        let mut channel = Channel::<2>::new(100);
        assert!(channel.request(0, ISSUE, 0).is_ok() && channel.request(1, ISSUE, 0).is_ok());
        assert_eq!(channel.request(0, ISSUE, 0), Err(Refusal::Busy));
        assert_eq!(channel.request(1, ISSUE, 0), Err(Refusal::Busy));
        assert_eq!(channel.request(2, ISSUE, 0), Err(Refusal::Nobody));
    }

    #[test]
    fn what_one_that_ended_had_running_is_nobodys_and_has_the_disk_until_it_is_over() {
        let mut channel = Channel::<2>::new(100);
        assert!(channel.request(0, ISSUE, 0).is_ok() && channel.request(1, ISSUE, 0).is_ok());
        channel.withdraw(0);
        assert_eq!((channel.holder(), channel.is_free(), channel.go_on(1)), (None, false, None));
        assert_eq!(channel.mover(), Some(0), "its buffer is still in use");
        // Somebody new in its place waits as all do.
        assert_eq!(channel.request(0, ISSUE, 1), Ok(None));
        assert_eq!((channel.finished(), channel.mover()), (None, None));
        assert_eq!((started(channel.go_on(2)), channel.mover()), (Some(1), Some(1)));
    }

    #[test]
    fn one_that_ends_while_it_waits_is_not_served() {
        let mut channel = Channel::<2>::new(100);
        assert!(channel.request(0, ISSUE, 0).is_ok() && channel.request(1, ISSUE, 0).is_ok());
        channel.withdraw(1);
        assert_eq!((channel.finished(), channel.go_on(1)), (Some(0), None));
    }

    #[test]
    fn a_command_that_does_not_end_is_stopped() {
        let mut channel = Channel::<2>::new(100);
        assert!(channel.request(0, ISSUE, 7).is_ok() && channel.request(1, ISSUE, 50).is_ok());
        assert_eq!((channel.deadline(), channel.poll(106)), (Some(107), None));
        assert_eq!(channel.poll(107), Some(Action::Reset(Some(0))));
        // The interrupt of a command that is being stopped is nobody's, and nobody is served meanwhile.
        assert_eq!((channel.finished(), channel.go_on(107), channel.poll(300)), (None, None, None));
        assert_eq!(started(channel.is_reset(108)), Some(1));
        assert_eq!(channel.poll(207), None, "its time begins when it starts");
    }
}
