//! Commands for a graphics card that make no sense, the same in each run.

use crate::virgl::{COMMANDS, Shape, command, commands};

/// Numbers that lengths, places and counts are taken for wrongly.
const ODD: [u32; 10] =
    [0, 1, 0x7f, 0xff, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, 0xffff_ffff];

/// A blit draws as many layers as it is told to, whether there are such or not, and nobody else does anything with the card meanwhile: that many are not asked for.
fn is_endless(command: &[u32], place: usize) -> bool {
    command[0] & 0xff == 16 && matches!(place, 12 | 21)
}

/// Makes batches.
pub struct Wild {
    state: u64,
    /// Buffers that are the context's: a texture, and bytes.
    own: [u32; 2],
}

impl Wild {
    pub fn new(texture: u32, bytes: u32) -> Self {
        Self { state: 1, own: [texture, bytes] }
    }

    fn number(&mut self) -> u32 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as u32
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.number() % bound
    }

    fn odd(&mut self) -> u32 {
        match self.below(4) {
            0 => self.number() << 1,
            1 => self.own[self.state as usize >> 40 & 1],
            2 => self.below(64),
            _ => ODD[self.below(ODD.len() as u32) as usize],
        }
    }

    /// A command that makes sense.
    fn sound(&mut self) -> Vec<u32> {
        let [texture, bytes] = self.own;
        match self.below(12) {
            0 => commands::copy(texture, texture, Shape::Texture),
            1 => commands::copy(bytes, bytes, Shape::Bytes),
            2 => commands::blit(texture, texture),
            3 => commands::stage(texture, texture, Shape::Texture),
            4 => commands::write(bytes, Shape::Bytes, 7),
            5 => commands::write(texture, Shape::Texture, 7),
            6 => commands::transfer(texture, Shape::Texture, 1 + self.below(2)),
            7 => commands::clear(texture),
            8 => commands::count(bytes),
            9 => commands::sample(texture),
            10 => commands::storage(bytes),
            _ => commands::vertices(bytes),
        }
    }

    /// A few commands of which at least one makes no sense.
    pub fn batch(&mut self) -> Vec<u32> {
        let mut words = if self.below(2) == 0 { Vec::new() } else { self.sound() };
        match self.below(4) {
            // Words.
            0 => words.extend((0..1 + self.below(64)).map(|_| self.number() << 1 | 1)),
            // Commands that there are, with anything in them.
            1 => {
                for _ in 0..1 + self.below(4) {
                    let (number, object, count) = (self.below(COMMANDS), self.below(12), self.below(24));
                    let given: Vec<u32> = (0..count).map(|_| self.odd()).collect();
                    words.extend(command(number, object, &given));
                }
            }
            // Lengths that are none.
            2 => {
                let mut sound = self.sound();
                sound[0] = sound[0] & 0xffff | self.odd() << 16;
                words.extend(sound);
            }
            // Numbers that are none.
            _ => {
                let mut sound = self.sound();
                let places: Vec<usize> =
                    (1..sound.len().min(22)).filter(|place| !is_endless(&sound, *place)).collect();
                let place = places[self.below(places.len() as u32) as usize];
                sound[place] = self.odd();
                words.extend(sound);
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_the_same_in_each_run_and_seldom_the_same_twice() {
        let batches = || {
            let mut wild = Wild::new(3, 4);
            (0..100).map(|_| wild.batch()).collect::<Vec<_>>()
        };
        let mut all = batches();
        assert_eq!(all, batches());
        assert!(all.iter().all(|batch| (1..=20_000).contains(&batch.len())));
        all.sort();
        all.dedup();
        assert!(all.len() > 95);
    }
}
