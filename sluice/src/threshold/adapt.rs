//! How many spare pages a level of the cache keeps, by what it needed lately: the rule of the guest's module (guest/linux/sluice-pibooster/adapt.h, which says
//! how it works), step for step. The tests compile the module's and compare.

/// Steps of the window: at least, at most, and to begin with.
pub const SHORTEST: u32 = 2;
pub const LONGEST: u32 = 64;
pub const FIRST: u32 = 16;
/// Spare pages that are never given back.
pub const FLOOR: u32 = 4;

/// What a level knows of its past.
#[derive(Clone)]
pub struct Adapt {
    low: u32,
    missed: u32,
    window: u32,
    steps: u32,
    lows: [u32; LONGEST as usize],
    given: [u32; LONGEST as usize],
}

impl Adapt {
    /// Nothing is known yet: whatever is there may be needed.
    pub const fn new(spare: u32) -> Self {
        let nothing = [0; LONGEST as usize];
        Self { low: spare, missed: 0, window: FIRST, steps: 0, lows: nothing, given: nothing }
    }

    /// Steps that the number of pages is decided by.
    #[cfg(test)]
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// A page was taken, and so many are left.
    pub fn taken(&mut self, left: u32) {
        self.low = self.low.min(left);
    }

    /// A page was asked for and none was free.
    pub const fn missed(&mut self) {
        self.low = 0;
        self.missed += 1;
    }

    /// So many spare pages are gone, and nobody needed them.
    pub fn removed(&mut self, count: u32) {
        self.low = self.low.saturating_sub(count);
        for low in &mut self.lows {
            *low = low.saturating_sub(count);
        }
    }

    /// The place of a step that was so many before this one.
    const fn place(&self, age: u32) -> usize {
        (self.steps.wrapping_sub(age) % LONGEST) as usize
    }

    /// Whether pages were missed that had been given back.
    fn regrets(&mut self) -> bool {
        let mut left = self.missed;
        for age in 1..=LONGEST {
            let place = self.place(age);
            let count = self.given[place].min(left);
            self.given[place] -= count;
            left -= count;
        }
        left != self.missed
    }

    /// A step is over, and so many pages are spare. Returns how many are to be given back, which the caller does.
    pub fn step(&mut self, spare: u32) -> u32 {
        let at = self.place(0);
        if self.regrets() {
            self.window = (self.window * 2).min(LONGEST);
        } else if self.given[at] > 0 {
            self.window = (self.window * 3 / 4).max(SHORTEST);
        }
        self.lows[at] = self.low.min(spare);
        let marks = (0..self.window).map(|age| self.lows[self.place(age)]);
        let least = marks.fold(spare, u32::min);
        let count = spare.saturating_sub((spare - least).max(FLOOR));
        self.given[at] = count;
        self.removed(count);
        self.low = spare - count;
        self.missed = 0;
        self.steps = self.steps.wrapping_add(1);
        count
    }
}
