//! Marks that a program sets by an instruction which no hypervisor sees (daemons/sluice-processes): before an operation is done a few times, between
//! that and many times, and after these.

/// What the counter had counted at a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Instructions of the machine.
    pub instructions: u64,
    /// Entries into a guest.
    pub entries: u64,
    /// Instructions of the hypervisor.
    pub hypervisor: u64,
}

/// What one operation costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Instructions.
    pub instructions: f64,
    /// Entries into a guest.
    pub exits: f64,
    /// Instructions of the hypervisor.
    pub hypervisor: f64,
    /// Operations between the two counts.
    pub operations: f64,
}

/// What is an entry into the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// There is no hypervisor.
    None,
    /// A VMRUN.
    Vmruns,
    /// An instruction of the hypervisor's that returns to who was interrupted.
    Returns,
}

/// Lines `count mark INSTRUCTIONS VMRUNS [WITHIN RETURNS]`.
pub fn marks(text: &str, entries: Entries) -> Vec<Mark> {
    let numbers = |line: &str| {
        let words = line.strip_prefix("count mark ")?.split_whitespace();
        Some(words.filter_map(|word| word.parse().ok()).collect::<Vec<u64>>())
    };
    let mark = |numbers: Vec<u64>| {
        let number = |at: usize| numbers.get(at).copied().unwrap_or(0);
        let entries = match entries {
            Entries::None => 0,
            Entries::Vmruns => number(1),
            Entries::Returns => number(3),
        };
        Mark { instructions: number(0), entries, hypervisor: number(2) }
    };
    text.lines().filter_map(numbers).map(mark).collect()
}

/// What an operation costs that was done `few` times between the first two marks, and `many` times between the last two.
pub fn cost(marks: [Mark; 3], few: f64, many: f64) -> Cost {
    let operations = many - few;
    let per = |count: fn(Mark) -> u64| {
        let [first, second, third] = marks.map(|mark| count(mark) as f64);
        ((third - second) - (second - first)) / operations
    };
    Cost {
        instructions: per(|mark| mark.instructions),
        exits: per(|mark| mark.entries),
        hypervisor: per(|mark| mark.hypervisor),
        operations,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_once_drops_out_of_a_cost() {
        let text = "noise\ncount mark 1000 10 100 7\ncount init 5 5 5 5\ncount mark 2300 22 160 9\ncount mark 8500 80 430 17\n";
        let counted = marks(text, Entries::Vmruns);
        let cost_of = |counted: &[Mark]| cost(counted.try_into().unwrap(), 10.0, 60.0);
        // Each costs 98 instructions, of which 4.2 are the hypervisor's, and 0.92 exits; beginning and end cost 320.
        let expected = Cost { instructions: 98.0, exits: 0.92, hypervisor: 4.2, operations: 50.0 };
        assert_eq!(cost_of(&counted), expected);
        assert_eq!(cost_of(&marks(text, Entries::Returns)).exits, 0.12);
        assert_eq!(cost_of(&marks(text, Entries::None)).exits, 0.0);
    }
}
