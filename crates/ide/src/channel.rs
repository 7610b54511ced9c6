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
    /// Stop the bus master and reset the channel (SRST), then call [`Channel::is_reset`]. A client that has
    /// not ended is shown an aborted command. The memory of the command's client must not be freed before.
    Reset(Client),
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
    Running { client: Client, until: u64 },
    Resetting { client: Client },
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

    /// Whose command the disk has, or is being reset from. Its memory is in use.
    pub const fn holder(&self) -> Option<Client> {
        match self.phase {
            Phase::Free => None,
            Phase::Running { client, .. } | Phase::Resetting { client } => Some(client),
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

    /// The disk has finished. Says whose interrupt that is, and what follows.
    pub fn finished(&mut self, now: u64) -> (Option<Client>, Option<Action>) {
        let Phase::Running { client, .. } = self.phase else { return (None, None) };
        self.phase = Phase::Free;
        (Some(client), self.next(now))
    }

    /// A client ends, or resets its own channel. What it waits for is forgotten, what runs is stopped.
    pub fn withdraw(&mut self, client: Client) -> Option<Action> {
        if let Some(place) = self.waiting.get_mut(client) {
            *place = None;
        }
        match self.phase {
            Phase::Running { client: holder, .. } if holder == client => self.reset(client),
            _ => None,
        }
    }

    /// Time passes.
    pub fn poll(&mut self, now: u64) -> Option<Action> {
        match self.phase {
            Phase::Running { client, until } if now >= until => self.reset(client),
            _ => None,
        }
    }

    /// The channel has been reset: no DMA is under way.
    pub fn is_reset(&mut self, now: u64) -> Option<Action> {
        if let Phase::Resetting { .. } = self.phase {
            self.phase = Phase::Free;
        }
        self.next(now)
    }

    fn reset(&mut self, client: Client) -> Option<Action> {
        self.phase = Phase::Resetting { client };
        Some(Action::Reset(client))
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
        self.phase = Phase::Running { client, until: now.saturating_add(self.patience) };
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
        let (whose, next) = channel.finished(1);
        assert_eq!((whose, started(next)), (Some(0), Some(1)));
        assert_eq!(channel.request(0, ISSUE, 1), Ok(None));
        assert_eq!(started(channel.finished(2).1), Some(2));
        assert_eq!(started(channel.finished(3).1), Some(0));
        assert_eq!(channel.finished(4), (Some(0), None));
        assert_eq!(channel.finished(5), (None, None));
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
    fn nobody_follows_one_that_ends_before_the_reset_is_over() {
        let mut channel = Channel::<2>::new(100);
        assert!(channel.request(0, ISSUE, 0).is_ok() && channel.request(1, ISSUE, 0).is_ok());
        assert_eq!(channel.withdraw(0), Some(Action::Reset(0)));
        // The interrupt of a command that is being stopped is nobody's.
        assert_eq!((channel.holder(), channel.finished(1)), (Some(0), (None, None)));
        assert_eq!(channel.request(0, ISSUE, 1), Err(Refusal::Busy));
        assert_eq!(started(channel.is_reset(2)), Some(1));
    }

    #[test]
    fn one_that_ends_while_it_waits_is_not_served() {
        let mut channel = Channel::<2>::new(100);
        assert!(channel.request(0, ISSUE, 0).is_ok() && channel.request(1, ISSUE, 0).is_ok());
        assert_eq!(channel.withdraw(1), None);
        assert_eq!(channel.finished(1), (Some(0), None));
    }

    #[test]
    fn a_command_that_does_not_end_is_stopped() {
        let mut channel = Channel::<2>::new(100);
        assert!(channel.request(0, ISSUE, 7).is_ok() && channel.request(1, ISSUE, 50).is_ok());
        assert_eq!(channel.poll(106), None);
        assert_eq!(channel.poll(107), Some(Action::Reset(0)));
        assert_eq!(started(channel.is_reset(108)), Some(1));
        assert_eq!(channel.poll(207), None, "its time begins when it starts");
    }
}
