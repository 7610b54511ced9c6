//! Entries of queues.

/// A submission queue entry: a command (NVMe, figure 105).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command(pub [u32; 16]);

impl Command {
    /// Bytes of an entry.
    pub const SIZE: usize = 64;

    /// A command without parameters.
    pub fn new(opcode: u8, namespace: u32) -> Self {
        let mut command = Self::default();
        command.0[0] = opcode.into();
        command.0[1] = namespace;
        command
    }

    /// Of an entry's bytes.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Self {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Self(words)
    }

    /// An entry's bytes.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.0) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    /// What is to be done.
    pub const fn opcode(&self) -> u8 {
        self.0[0] as u8
    }

    /// Part of a fused operation, or data by scatter-gather lists: nothing that is offered.
    pub const fn is_fused_or_listed(&self) -> bool {
        self.0[0] & 0xc300 != 0
    }

    /// The driver's number of it.
    pub const fn id(&self) -> u16 {
        (self.0[0] >> 16) as u16
    }

    /// The same with another number.
    #[must_use]
    pub const fn with_id(mut self, id: u16) -> Self {
        self.0[0] = self.0[0] & 0xffff | (id as u32) << 16;
        self
    }

    /// The namespace.
    pub const fn namespace(&self) -> u32 {
        self.0[1]
    }

    /// Both entries of physical region pages.
    pub const fn prp(&self) -> (u64, u64) {
        (self.wide(6), self.wide(8))
    }

    /// The same with other data.
    #[must_use]
    pub const fn with_prp(self, first: u64, second: u64) -> Self {
        self.with_wide(6, first).with_wide(8, second)
    }

    /// A double word of the parameters, 10-15; of 64 bits with the next one.
    pub const fn wide(&self, word: usize) -> u64 {
        self.0[word] as u64 | (self.0[word + 1] as u64) << 32
    }

    /// The same with two other double words.
    #[must_use]
    pub const fn with_wide(mut self, word: usize, value: u64) -> Self {
        self.0[word] = value as u32;
        self.0[word + 1] = (value >> 32) as u32;
        self
    }

    /// The same with another double word.
    #[must_use]
    pub const fn with(mut self, word: usize, value: u32) -> Self {
        self.0[word] = value;
        self
    }
}

/// What became of a command: the status field, without its phase tag (NVMe, 4.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

/// It would fail again.
const FINAL: u16 = 1 << 14;
/// Of the command, not of all.
const SPECIFIC: u16 = 1 << 8;

impl Status {
    /// Done.
    pub const SUCCESS: Self = Self(0);
    /// There is no such command.
    pub const OPCODE: Self = Self(FINAL | 0x01);
    /// A parameter has no meaning.
    pub const FIELD: Self = Self(FINAL | 0x02);
    /// Data could not be moved.
    pub const TRANSFER: Self = Self(FINAL | 0x04);
    /// Given up, by nobody's fault: it can be repeated.
    pub const ABORTED: Self = Self(0x07);
    /// There is no such namespace.
    pub const NAMESPACE: Self = Self(FINAL | 0x0b);
    /// An address of data does not begin where it must.
    pub const OFFSET: Self = Self(FINAL | 0x13);
    /// Blocks that the namespace does not have.
    pub const RANGE: Self = Self(FINAL | 0x80);
    /// There is no completion queue of that number.
    pub const NO_COMPLETIONS: Self = Self(FINAL | SPECIFIC);
    /// No queue can have that number.
    pub const QUEUE: Self = Self(FINAL | SPECIFIC | 0x01);
    /// No queue can have that size.
    pub const QUEUE_SIZE: Self = Self(FINAL | SPECIFIC | 0x02);
    /// More requests for events than were offered.
    pub const EVENTS: Self = Self(FINAL | SPECIFIC | 0x05);
    /// There is no such interrupt.
    pub const VECTOR: Self = Self(FINAL | SPECIFIC | 0x08);
    /// There is no such log.
    pub const LOG: Self = Self(FINAL | SPECIFIC | 0x09);
    /// Commands are still to come by that queue, or to be told of by it.
    pub const DELETION: Self = Self(FINAL | SPECIFIC | 0x0c);
    /// It is not the driver's to change.
    pub const NOT_CHANGEABLE: Self = Self(FINAL | SPECIFIC | 0x0e);

    /// Whether it was done.
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }
}

/// Opcodes, of those commands that are known here.
pub mod admin {
    /// Delete I/O Submission Queue.
    pub const DELETE_SUBMISSIONS: u8 = 0x00;
    /// Create I/O Submission Queue.
    pub const CREATE_SUBMISSIONS: u8 = 0x01;
    /// Get Log Page.
    pub const LOG: u8 = 0x02;
    /// Delete I/O Completion Queue.
    pub const DELETE_COMPLETIONS: u8 = 0x04;
    /// Create I/O Completion Queue.
    pub const CREATE_COMPLETIONS: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const EVENT: u8 = 0x0c;
    /// Doorbell Buffer Config.
    pub const DOORBELLS: u8 = 0x7c;
}

/// Opcodes of commands for input and output.
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Zeroes.
    pub const ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET: u8 = 0x09;
}
