//! Bytes as a source of decisions: what runs out reads as zero, so that every input means something.

/// The input, consumed from the front.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// All of `data`.
    pub const fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    /// Nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `count` bytes, or what is left of them.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// A byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// A 16-bit number.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// A 32-bit number.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// A 64-bit number.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A coin.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// One of several values, which must not be none.
    pub fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::from(self.u8()) % values.len()]
    }

    /// Overwrites bytes of a valid file at places that the input names.
    pub fn damage(&mut self, file: &mut Vec<u8>) {
        for _ in 0..self.u8() % 16 {
            let (at, how, value) = (usize::from(self.u16()), self.u8(), self.u8());
            let len = file.len().max(1);
            match how {
                0..=200 => file.get_mut(at % len).into_iter().for_each(|byte| *byte = value),
                201..=230 => {
                    let end = (at % len + 8).min(file.len());
                    file.get_mut(at % len..end).into_iter().for_each(|bytes| bytes.fill(0xff));
                }
                _ => file.truncate(at % len),
            }
        }
    }
}
