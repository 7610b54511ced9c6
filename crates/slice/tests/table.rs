//! Lines of a table as clang has them, from `table.c`.

use sluice_slice::{Count, Error, From, Line, lines, module, probe};

fn read(table: &str) -> Result<Vec<Line>, Error> {
    lines(&module(include_str!("table.ll")).unwrap(), table)
}

fn line(number: u32, from: From, count: Count, size: i64) -> Line {
    Line {
        number,
        from,
        pointer_bytes: 8,
        count,
        size: Some(size),
        is_read: true,
        is_written: false,
        kind: None,
        elements: Vec::new(),
    }
}

#[test]
fn lines_that_lead_to_memory_are_read_up_to_the_end_of_the_table() {
    let start = From::Pointer(0);
    let words = [(8, Count::Field(4, 4)), (16, Count::Computed)];
    let words = words.map(|(at, count)| line(1, From::Pointer(at), count, 4));
    assert_eq!(
        read("table").unwrap(),
        [
            Line {
                is_written: true,
                elements: words.to_vec(),
                ..line(0xc040_64a0, From::Pointer(32), Count::Field(8, 4), 24)
            },
            Line { pointer_bytes: 0, ..line(3, From::Follows(8), Count::Field(4, 8), 1) },
            Line {
                pointer_bytes: 4,
                size: None,
                is_read: false,
                is_written: true,
                ..line(4, start, Count::One, 0)
            },
            line(5, start, Count::Computed, 4),
            line(6, start, Count::Computed, 4),
            Line { kind: Some((12, vec![32, 63])), ..line(7, start, Count::One, 8) },
        ]
    );
}

#[test]
fn a_table_with_nothing_but_its_end_has_no_lines() {
    assert_eq!(read("empty"), Ok(Vec::new()));
}

#[test]
fn what_is_no_table_is_an_error_that_names_it() {
    for (name, named) in [
        ("nowhere", "nowhere"),
        ("number", "number"),
        ("sluice_fields", "sluice_fields"),
        ("leads_elsewhere", "elsewhere"),
        ("itself", "itself"),
    ] {
        assert_eq!(read(name), Err(Error::Table(named.to_owned())), "{name}");
    }
    let text = include_str!("table.ll");
    let without = text.replace("@sluice_fields", "@others");
    assert!(lines(&module(&without).unwrap(), "table").is_err());
}

#[test]
fn the_compiler_is_asked_for_the_offsets_that_the_reader_knows() {
    let asked = probe("table");
    assert!(include_str!("table.c").contains(&asked), "{asked}");
}
