//! What a driver asks for, whether it keeps the rules or not.

use super::*;

#[test]
fn the_driver_reads_what_the_device_can_do() {
    let mut device = iommu::device(&ADDRESSES);
    assert_eq!((device.kind(), device.kind().id()), (Kind::Iommu, 23));
    assert_eq!(device.read(0x04, 4).0, 0b10101, "input range, map and unmap, probe");
    device.write(0x00, 4, 1);
    assert_eq!(device.read(0x04, 4).0, 1, "a modern device");
    assert_eq!((device.read(0x12, 2).0, device.read(0x18, 2).0), (2, 256), "queues and their entries");
    let words: Vec<u32> = (0..10).map(|at| device.read(pci::CONFIG + at * 4, 4).0).collect();
    let sizes = [0x1000, 0];
    let range = [0x10_0000, 0, 0x3fff_ffff, 0];
    let (domains, probe, bypass) = ([0, u32::MAX], 24, 0);
    assert_eq!(words, [&sizes[..], &range, &domains, &[probe, bypass]].concat());
    assert_eq!(device.read(pci::CONFIG + 40, 4).0, 0, "there is nothing behind it");
}

#[test]
fn a_probe_tells_where_messages_are() {
    let mut guest = Guest::new();
    guest.send(&probe(endpoint(3)), LONG);
    assert_eq!(guest.serve(), Ok(Served { more: false, signals: true }));
    let reserved = [1, 0, 20, 0, 1, 0, 0, 0];
    let [first, last] = [0xfee0_0000_u64, 0xfeef_ffff].map(u64::to_le_bytes);
    assert_eq!(guest.answer(), Some([&reserved[..], &first, &last, &[DONE, 0, 0, 0]].concat()));
}

#[test]
fn a_probe_of_a_device_that_is_not_there_tells_nothing() {
    let mut guest = Guest::new();
    // An empty slot, a function behind the first one, a slot behind the last one, another bus.
    for nobody in [endpoint(4), endpoint(3) + 1, endpoint(31) + 8, 0x100, u32::MAX] {
        guest.send(&probe(nobody), LONG);
        guest.settle();
        let answer = guest.answer().expect("a probe is answered");
        assert_eq!(answer, [&[0; 24][..], &[NO_ENTRY, 0, 0, 0]].concat(), "{nobody:#x}");
    }
}

#[test]
fn attaching_opens_a_device() {
    let mut guest = Guest::new();
    assert_eq!(guest.ask(&map(7, FIRST..FIRST + 1, 0)), NO_ENTRY, "nothing is attached");
    assert_eq!(guest.ask(&attach(7, endpoint(3))), DONE);
    assert_eq!(guest.behind.open, BTreeSet::from([3]));
    for nobody in [endpoint(4), endpoint(3) + 1, 0x100] {
        assert_eq!(guest.ask(&attach(8, nobody)), NO_ENTRY, "{nobody:#x}");
    }
    assert_eq!(guest.ask(&map(8, FIRST..FIRST + 1, 0)), NO_ENTRY, "no one has that address space");
    assert_eq!(guest.ask(&request(1, &[8, endpoint(2), 1, 0])), INVALID, "passing by was not offered");
    assert_eq!((guest.behind.open.len(), guest.behind.reach.len()), (1, 0));
}

#[test]
fn an_address_space_is_one_devices() {
    let mut guest = Guest::attached();
    guest.ask(&map(7, FIRST..FIRST + 2, 0x5000));
    assert_eq!(guest.ask(&attach(9, endpoint(2))), DONE);
    guest.ask(&map(9, FIRST..FIRST + 1, 0x8000));
    let before = guest.behind.reach.clone();
    assert_eq!(guest.ask(&attach(7, endpoint(2))), UNSUPPORTED);
    assert_eq!(guest.ask(&attach(7, endpoint(1))), UNSUPPORTED);
    assert_eq!((&guest.behind.reach, guest.behind.open.contains(&1)), (&before, false));
    assert_eq!(guest.ask(&unmap(9, FIRST..FIRST + 1)), DONE, "the other device keeps the space that it had");
    assert_eq!(guest.pages(3), [FIRST, FIRST + 1]);
    assert_eq!(guest.pages(2), []);
    guest.ask(&detach(7, endpoint(3)));
    assert_eq!(guest.ask(&attach(7, endpoint(1))), DONE, "it is free again");
}

#[test]
fn attaching_elsewhere_takes_back_what_was_mapped() {
    let mut guest = Guest::attached();
    guest.ask(&map(7, FIRST..FIRST + 3000, 0));
    guest.send(&attach(8, endpoint(3)), SHORT);
    guest.send(&map(8, FIRST..FIRST + 1, 0x9000), SHORT);
    guest.settle();
    assert_eq!((guest.state(), guest.state()), (Some(DONE), Some(DONE)));
    assert_eq!(guest.behind.reach, Reach::from([((3, FIRST), (0x9000, true))]));
    assert_eq!(guest.ask(&unmap(7, FIRST..FIRST + 1)), NO_ENTRY, "the old address space is nobody's");
}

#[test]
fn attaching_again_opens_a_device_that_came_in_its_place() {
    let mut guest = Guest::attached();
    guest.ask(&map(7, FIRST..FIRST + 2, 0));
    assert_eq!(guest.ask(&attach(7, endpoint(3))), DONE);
    assert_eq!(guest.pages(3), [FIRST, FIRST + 1], "the same device keeps what it has");
    guest.behind.unplug(3);
    assert_eq!(guest.ask(&map(7, FIRST..FIRST + 1, 0)), NO_ENTRY);
    assert_eq!(guest.ask(&attach(7, endpoint(3))), NO_ENTRY);
    guest.behind.there.insert(3);
    assert_eq!(guest.ask(&attach(7, endpoint(3))), DONE);
    assert_eq!(guest.ask(&map(7, FIRST..FIRST + 1, 0)), DONE);
}

#[test]
fn what_is_mapped_is_reached_until_it_is_unmapped() {
    let mut guest = Guest::attached();
    let (page, last) = (FIRST * PAGE, SIZE * PAGE - 1);
    for request in [
        map_exactly(7, [page, page + 2 * PAGE - 1, 0x7000], 1),
        map_exactly(7, [page + 2 * PAGE, page + 3 * PAGE - 1, 0x7000], 2),
        map_exactly(7, [last - PAGE + 1, last, MEMORY - PAGE], 3),
    ] {
        guest.send(&request, SHORT);
    }
    assert_eq!(guest.serve(), Ok(Served { more: false, signals: true }), "one call answers them all");
    assert_eq!([guest.state(), guest.state(), guest.state()], [Some(DONE); 3]);
    let reached = [
        ((3, FIRST), (0x7000, false)),
        ((3, FIRST + 1), (0x8000, false)),
        ((3, FIRST + 2), (0x7000, true)),
        ((3, SIZE - 1), (MEMORY - PAGE, true)),
    ];
    assert_eq!(guest.behind.reach, Reach::from(reached));
    assert_eq!(guest.ask(&unmap(7, FIRST + 1..FIRST + 2)), DONE, "a part of a mapping, too");
    assert_eq!(guest.ask(&unmap(7, FIRST + 1..FIRST + 2)), DONE, "there is nothing to take back");
    assert_eq!(guest.pages(3), [FIRST, FIRST + 2, SIZE - 1]);
    assert_eq!(guest.ask(&unmap(7, 0..u64::MAX / PAGE)), DONE, "far more than there are");
    assert_eq!(guest.pages(3), []);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut guest = Guest::attached();
    guest.ask(&map(7, FIRST + 8..FIRST + 9, 0x5000));
    let before = guest.behind.reach.clone();
    let at = FIRST * PAGE;
    let long = map_exactly(7, [at, at + PAGE - 1, 0], 3);
    let refused = [
        ("below what devices can have", map(7, FIRST - 1..FIRST + 1, 0), OUT_OF_RANGE),
        ("above it", map(7, SIZE - 1..SIZE + 1, 0), OUT_OF_RANGE),
        ("all addresses", map_exactly(7, [0, u64::MAX, 0], 3), OUT_OF_RANGE),
        ("to the last address", map_exactly(7, [at, u64::MAX, 0], 3), OUT_OF_RANGE),
        ("the first address is in a page", map_exactly(7, [at + 8, at + PAGE - 1, 0], 3), OUT_OF_RANGE),
        ("the last address is in a page", map_exactly(7, [at, at + PAGE, 0], 3), OUT_OF_RANGE),
        ("the memory is in a page", map_exactly(7, [at, at + PAGE - 1, 0x800], 3), OUT_OF_RANGE),
        ("the end is before the beginning", map_exactly(7, [at + PAGE, at - 1, 0], 3), OUT_OF_RANGE),
        ("no page", map_exactly(7, [at + PAGE, at + PAGE - 1, 0], 3), OUT_OF_RANGE),
        ("memory around the end", map(7, FIRST..FIRST + 2, PAGE.wrapping_neg()), OUT_OF_RANGE),
        ("no right", map_exactly(7, [at, at + PAGE - 1, 0], 0), INVALID),
        ("a right that was not offered", map_exactly(7, [at, at + PAGE - 1, 0], 7), INVALID),
        ("mapped already", map(7, FIRST + 8..FIRST + 9, 0x9000), INVALID),
        ("not the guest's memory", map(7, FIRST..FIRST + 1, MEMORY), INVALID),
        ("mapping in nobody's address space", map(8, FIRST..FIRST + 1, 0), NO_ENTRY),
        ("unmapping there", unmap(8, FIRST..FIRST + 1), NO_ENTRY),
        ("unmapping half a page", request(4, &[7, at as u32, 0, at as u32 + 7, 0, 0]), OUT_OF_RANGE),
        ("unmapping no page", request(4, &[7, at as u32 + 4096, 0, at as u32 - 1, 0, 0]), OUT_OF_RANGE),
        ("detaching from nobody's address space", detach(8, endpoint(3)), INVALID),
        ("detaching a device that is not attached", detach(7, endpoint(2)), INVALID),
        ("detaching what is no device", detach(7, 0x100), NO_ENTRY),
        ("no type", request(0, &[7, 0, 0, 0]), UNSUPPORTED),
        ("a type that there is not", request(6, &[7, 0, 0, 0]), UNSUPPORTED),
        ("a cut off mapping", long[..long.len() - 1].to_vec(), INVALID),
        ("a cut off unmapping", unmap(7, FIRST + 8..FIRST + 9)[..23].to_vec(), INVALID),
        ("a cut off attachment", attach(8, endpoint(3))[..15].to_vec(), INVALID),
        ("a cut off detachment", detach(7, endpoint(3))[..11].to_vec(), INVALID),
        ("a cut off probe", probe(endpoint(3))[..7].to_vec(), INVALID),
        ("a type alone", vec![3], INVALID),
    ];
    for (what, request, state) in refused {
        assert_eq!(guest.ask(&request), state, "{what}");
        assert_eq!(guest.behind.reach, before, "{what}");
    }
    assert_eq!(guest.ask(&unmap(7, FIRST + 8..FIRST + 9)), DONE, "it is attached as it was");
}

#[test]
fn of_a_mapping_that_fails_in_the_middle_nothing_is_left() {
    for (what, state, tables) in
        [("mapped", INVALID, 5000), ("not the guest's", INVALID, 5000), ("no tables", NO_MEMORY, 2500)]
    {
        for mapped_at_once in [1, 100, AT_ONCE] {
            let mut guest = Guest::attached();
            (guest.behind.mapped_at_once, guest.behind.room) = (mapped_at_once, tables);
            guest.ask(&map(7, FIRST..FIRST + 1, 0x5000));
            let gpa = if what == "not the guest's" { MEMORY - 2000 * PAGE } else { 0 };
            if what == "mapped" {
                guest.ask(&map(7, FIRST + 2000..FIRST + 2002, 0x6000));
            }
            let before = guest.behind.reach.clone();
            guest.send(&map(7, FIRST + 1..FIRST + 4000, gpa), SHORT);
            guest.send(&map(7, FIRST + 5000..FIRST + 5001, 0), SHORT);
            assert!(guest.settle() >= 4, "{what}: it comes to light late");
            assert_eq!((guest.state(), guest.state()), (Some(state), Some(DONE)), "{what}");
            guest.ask(&unmap(7, FIRST + 5000..FIRST + 5001));
            assert_eq!(guest.behind.reach, before, "{what}");
        }
    }
}

#[test]
fn detaching_takes_everything_back() {
    let mut guest = Guest::attached();
    guest.ask(&attach(9, endpoint(2)));
    guest.ask(&map(9, FIRST..FIRST + 1, 0x5000));
    let others = guest.behind.reach.clone();
    guest.behind.taken_at_once = 1;
    for pages in [FIRST..FIRST + 3000, SIZE - 10..SIZE] {
        guest.ask(&map(7, pages, 0));
    }
    guest.send(&detach(7, endpoint(3)), SHORT);
    guest.send(&map(7, FIRST..FIRST + 1, 0), SHORT);
    let (mut states, mut more) = (Vec::new(), true);
    while more {
        more = guest.serve().expect("the driver breaks no rule").more;
        states.extend(core::iter::from_fn(|| guest.state()));
        assert!(states.is_empty() || guest.pages(3).is_empty(), "it is answered too early");
    }
    assert_eq!(states, [DONE, NO_ENTRY], "nothing can be mapped for it any more");
    assert_eq!(guest.behind.reach, others);
}

#[test]
fn a_long_request_is_carried_out_in_short_calls() {
    const PAGES: u64 = 10_000;
    let mut guest = Guest::attached();
    for (request, rises) in [(map(7, FIRST..FIRST + PAGES, 0), true), (unmap(7, FIRST..FIRST + PAGES), false)]
    {
        // One step takes back few pages, so that there are many.
        guest.behind.taken_at_once = 1;
        guest.send(&request, SHORT);
        let mut calls = 0;
        loop {
            calls += 1;
            let before = guest.behind.reach.len() as u64;
            let served = guest.serve().expect("the driver breaks no rule");
            let change = guest.behind.reach.len().abs_diff(before as usize) as u64;
            assert!((1..=AT_ONCE).contains(&change), "{change} pages in call {calls}");
            assert_eq!(served.signals, !served.more, "a signal tells of the answer");
            if !served.more {
                break;
            }
            assert_eq!(guest.state(), None, "it is answered before it is done");
        }
        assert_eq!((guest.state(), calls), (Some(DONE), PAGES.div_ceil(AT_ONCE)));
        assert_eq!(guest.behind.reach.len() as u64, if rises { PAGES } else { 0 });
    }
}

#[test]
fn steps_that_take_back_many_pages_are_few_in_one_call() {
    const PAGES: u64 = 20_000;
    let mut guest = Guest::attached();
    // As many as the hypervisor's devices take back in a step.
    guest.behind.taken_at_once = AT_ONCE as usize;
    for reset in [false, true] {
        guest.ask(&map(7, FIRST..FIRST + PAGES, 0));
        guest.send(&if reset { probe(endpoint(3)) } else { unmap(7, FIRST..FIRST + PAGES) }, LONG);
        if reset {
            guest.reset();
        }
        let mut before = guest.behind.reach.len();
        while before > 0 {
            if reset {
                guest.iommu.leave(&mut guest.behind);
            } else {
                guest.serve().expect("the driver breaks no rule");
            }
            let taken = before - guest.behind.reach.len();
            assert!((1..2 * AT_ONCE as usize).contains(&taken), "{taken} pages in one call, reset: {reset}");
            before -= taken;
        }
        if !reset {
            guest.settle();
            guest.state();
        }
    }
}

#[test]
fn many_requests_are_answered_in_short_calls() {
    const EACH: u64 = 4;
    let mut guest = Guest::attached();
    let count = u64::from(ENTRIES / 2);
    for at in 0..count {
        let first = FIRST + at * EACH;
        guest.send(&map(7, first..first + EACH, 0), SHORT);
    }
    let (mut all, mut more) = (0, true);
    while more {
        more = guest.serve().expect("the driver breaks no rule").more;
        let answered =
            core::iter::from_fn(|| guest.state()).inspect(|state| assert_eq!(*state, DONE)).count();
        assert!(answered > 0 && answered as u64 * (EACH + 1) <= AT_ONCE, "{answered} in one call");
        all += answered as u64;
    }
    assert_eq!((all, guest.behind.reach.len() as u64), (count, count * EACH));
}

#[test]
fn who_wants_no_signal_gets_none() {
    let mut guest = Guest::new();
    guest.put(START + DRIVER, &1_u16.to_le_bytes());
    guest.send(&attach(7, endpoint(3)), SHORT);
    while !guest.sent.is_empty() {
        assert!(!guest.serve().expect("the driver breaks no rule").signals);
        guest.state();
    }
    assert_eq!(guest.serve(), Ok(Served::default()), "there is nothing to do");
}

#[test]
fn a_device_that_goes_in_the_middle_of_a_mapping_gets_none() {
    let mut guest = Guest::attached();
    guest.send(&map(7, FIRST..FIRST + 5000, 0), SHORT);
    assert!(guest.serve().expect("the driver breaks no rule").more);
    guest.behind.unplug(3);
    guest.behind.there.insert(3);
    guest.settle();
    assert_eq!((guest.state(), guest.pages(3)), (Some(NO_ENTRY), vec![]));
}

#[test]
fn a_reset_in_the_middle_of_a_request_takes_everything_back() {
    type Begin = fn(&mut Guest);
    let begun: [(&str, Begin); 4] = [
        ("mapping", |guest| guest.send(&map(7, FIRST + 5000..FIRST + 10_000, 0), SHORT)),
        ("a mapping that failed", |guest| {
            guest.behind.room = 5200;
            guest.send(&map(7, FIRST + 5000..FIRST + 10_000, 0), SHORT);
        }),
        ("detaching", |guest| guest.send(&detach(7, endpoint(3)), SHORT)),
        ("attaching elsewhere", |guest| guest.send(&attach(8, endpoint(3)), SHORT)),
    ];
    for (what, begin) in begun {
        for waits in [true, false] {
            let mut guest = Guest::attached();
            guest.ask(&attach(9, endpoint(2)));
            guest.behind.taken_at_once = 1;
            guest.ask(&map(7, FIRST..FIRST + 3000, 0));
            guest.ask(&map(9, FIRST..FIRST + 1000, 0));
            begin(&mut guest);
            assert!(guest.serve().expect("the driver breaks no rule").more, "{what}");
            assert!(!guest.pages(3).is_empty(), "{what}");
            guest.reset();
            // Somebody who does not wait has the rest of it before the first of his own requests.
            for calls in (1..).take_while(|_| waits) {
                guest.behind.steps = 0;
                let more = guest.iommu.leave(&mut guest.behind);
                assert!((1..=AT_ONCE).contains(&guest.behind.steps), "{what}: call {calls}");
                assert!(more || guest.behind.reach.is_empty(), "{what}: something is left");
                if !more {
                    break;
                }
            }
            guest.start();
            guest.send(&attach(7, endpoint(3)), SHORT);
            while guest.serve().expect("the driver breaks no rule").more {
                assert!(guest.behind.reach.is_empty() || guest.answer().is_none(), "{what}");
            }
            assert_eq!((guest.state(), &guest.behind.reach), (Some(DONE), &Reach::new()), "{what}");
            assert_eq!(guest.ask(&map(9, FIRST..FIRST + 1, 0)), NO_ENTRY, "{what}: the other one left, too");
        }
    }
}

#[test]
fn requests_and_answers_may_be_in_pieces() {
    let mut guest = Guest::attached();
    let request = map(7, FIRST..FIRST + 2, 0x5000);
    let at = room(200);
    guest.put(at, &request);
    guest.clear(200);
    let pieces =
        [(at, 5, 0), (at + 5, 0, 0), (at + 5, 31, 0), (at + ANSWER, 1, WRITE), (at + ANSWER + 1, 7, WRITE)];
    guest.offer(200, &pieces);
    guest.sent.push_back((200, 8));
    guest.settle();
    assert_eq!((guest.state(), guest.pages(3)), (Some(DONE), vec![FIRST, FIRST + 1]));
}

#[test]
fn a_chain_without_a_request_is_refused() {
    let mut guest = Guest::attached();
    guest.send(&[], SHORT);
    guest.settle();
    assert_eq!(guest.state(), Some(INVALID));
    let at = room(100);
    guest.put(at, &unmap(7, FIRST..FIRST + 1));
    guest.clear(100);
    guest.offer(100, &[(at + ANSWER, 4, WRITE), (at, 28, 0)]);
    guest.sent.push_back((100, 4));
    guest.settle();
    assert_eq!(guest.state(), Some(INVALID), "what comes after the answer is no request");
}

#[test]
fn broken_rules_are_faults_and_end_the_service() {
    type Break = fn(&mut Guest);
    const BEGIN: u64 = START + ROOMS;
    const END: u64 = BEGIN + ANSWER;
    let breaks: [(&str, &[Piece], Break); 11] = [
        ("no answer", &[(BEGIN, 36, 0)], |_| {}),
        ("an answer that is too short", &[(BEGIN, 36, 0), (END, 3, WRITE)], |_| {}),
        ("a probe with the answer of others", &[(BEGIN, 72, 0), (END, 27, WRITE)], |guest| {
            guest.put(BEGIN, &probe(endpoint(3)));
        }),
        ("an answer that is not memory", &[(BEGIN, 36, 0), (START - 8, 4, WRITE)], |_| {}),
        ("a request that is not memory", &[(START - 8, 36, 0), (END, 4, WRITE)], |_| {}),
        ("a loop of requests", &[(BEGIN, 0, NEXT)], |guest| guest.put(START + 14, &[0, 0])),
        ("a loop of answers", &[(BEGIN, 36, 0), (END, 4, WRITE | NEXT)], |guest| {
            guest.put(START + 30, &[1, 0]);
        }),
        ("a descriptor that there is not", &[(BEGIN, 36, NEXT)], |guest| guest.put(START + 14, &[0, 1])),
        ("an indirect table", &[(BEGIN, 16, INDIRECT)], |_| {}),
        ("a head that there is not", &[], |guest| guest.put(START + DRIVER + 6, &256_u16.to_le_bytes())),
        ("more than there are", &[], |guest| guest.put(START + DRIVER + 2, &258_u16.to_le_bytes())),
    ];
    for (what, buffers, broken) in breaks {
        let mut guest = Guest::attached();
        guest.put(BEGIN, &map(7, FIRST..FIRST + 1, 0));
        guest.offer(0, buffers);
        broken(&mut guest);
        assert_eq!(guest.serve(), Err(Fault), "{what}");
        assert_eq!(guest.device.break_down(), Changes::CONFIGURATION);
        assert!(guest.device.status().contains(Status::NEEDS_RESET));
        assert_eq!(guest.serve(), Ok(Served::default()), "{what}: nothing more is looked at");
        guest.reset();
        while guest.iommu.leave(&mut guest.behind) {}
        assert_eq!(guest.behind.reach, Reach::new(), "{what}: the request may have been carried out");
        guest.start();
        assert_eq!(guest.ask(&attach(7, endpoint(3))), DONE, "{what}: a reset mends it");
    }
}

#[test]
fn a_mapping_of_all_addresses_is_refused_where_all_are_known() {
    let mut guest = Guest::new();
    guest.iommu = Iommu::new(0..=u64::MAX);
    guest.ask(&attach(7, endpoint(3)));
    assert_eq!(guest.ask(&map_exactly(7, [0, u64::MAX, 0], 3)), OUT_OF_RANGE);
}
