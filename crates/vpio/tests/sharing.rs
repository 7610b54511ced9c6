//! Clients that share a card with drivers like Linux's: every frame arrives at the right client
//! once and in order, whatever the interleaving.

mod common;

use common::driver::{Driver, Shared};
use common::{OUTSIDE, TIMING, World, frame, mac, mark, number};
use proptest::prelude::*;

/// Frames under way to each client.
const WINDOW: usize = 30;

/// Senders with windows, as TCP has them: no client is owed more than it could queue.
fn offer(world: &mut World, drivers: &[Driver]) {
    let received: Vec<_> = drivers.iter().map(|driver| driver.mail.borrow().received.len()).collect();
    for index in 0..drivers.len() {
        while let Some(next) = world.source[index].front() {
            let all = next[0] == 0xff;
            let mut targets = (0..drivers.len()).filter(|&to| all || to == index);
            if targets.any(|to| world.offered[to] >= received[to] + WINDOW) {
                break;
            }
            for to in (0..drivers.len()).filter(|&to| all || to == index) {
                world.offered[to] += 1;
            }
            let next = world.source[index].pop_front();
            world.hw.arriving.extend(next);
        }
    }
}

/// Steps drivers in a pseudo-random order with bursts until `done`.
fn drive(
    world: &Shared,
    drivers: &mut [Driver],
    seed: u64,
    limit: u64,
    done: impl Fn(&World, &[Driver]) -> bool,
) {
    let mut random = seed | 1;
    let mut roll = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let mut steps = 0;
    while !done(&world.borrow(), drivers) {
        let which = roll(drivers.len() as u64) as usize;
        // A time slice; sometimes a single access, sometimes as long as a scheduler's.
        let slice = if roll(4) == 0 { 1 } else { 1 + roll(120) };
        for _ in 0..slice {
            drivers[which].step();
            steps += 1;
        }
        offer(&mut world.borrow_mut(), drivers);
        if drivers.iter().all(|driver| driver.mail.borrow().idle) {
            world.borrow_mut().pass(5_000);
        }
        if steps > limit {
            let world = world.borrow();
            for driver in drivers.iter() {
                let mail = driver.mail.borrow();
                eprintln!(
                    "sent {} received {} left {} errors {:?}",
                    mail.sent,
                    mail.received.len(),
                    mail.to_send.len(),
                    mail.errors
                );
            }
            panic!(
                "stuck at {}: {:?} {:x?} waiting {} hooks {:x?}",
                world.now,
                world.monitor.holder(),
                world.hw.nic.regs,
                world.hw.arriving.len(),
                world.hooks
            );
        }
    }
}

fn start(count: usize, seed: u64) -> (Shared, Vec<Driver>) {
    let world = World::new(count, seed, TIMING);
    let mut drivers: Vec<_> = (0..count).map(|index| Driver::new(&world, index)).collect();
    drive(&world, &mut drivers, seed, 1_000_000, |_, drivers| {
        drivers.iter().all(|driver| driver.mail.borrow().started)
    });
    (world, drivers)
}

fn exchange(count: usize, seed: u64, frames: u32, len: impl Fn(u32) -> usize) -> (Shared, Vec<Driver>) {
    let (world, mut drivers) = start(count, seed);
    for n in 0..frames {
        for index in 0..count {
            let out = frame(OUTSIDE, mac(index), n, mark(index), len(n));
            drivers[index].mail.borrow_mut().to_send.push_back(out);
            let inward = frame(mac(index), OUTSIDE, n, mark(index), len(n + 1));
            world.borrow_mut().source[index].push_back(inward);
        }
        if n % 5 == 0 {
            world.borrow_mut().source[0].push_back(frame([0xff; 6], OUTSIDE, n, 0xbb, 60));
        }
    }
    drive(&world, &mut drivers, seed, 3_000_000, |world, drivers| {
        world.hw.arriving.is_empty()
            && world.source.iter().all(|source| source.is_empty())
            && drivers.iter().all(|driver| {
                let mail = driver.mail.borrow();
                mail.sent == u64::from(frames)
                    && mail.received.len() >= (frames + frames.div_ceil(5)) as usize
            })
    });
    for (index, driver) in drivers.iter().enumerate() {
        let mail = driver.mail.borrow();
        assert!(mail.errors.is_empty(), "{index}: {:?}", mail.errors);
        let own: Vec<_> = mail.received.iter().filter(|frame| frame[0] != 0xff).collect();
        assert_eq!(own.len(), frames as usize);
        for (n, got) in (0u32..).zip(own) {
            let want = frame(mac(index), OUTSIDE, n, mark(index), len(n + 1).max(60));
            assert_eq!(number(got), n);
            assert_eq!(got[..len(n + 1)], want[..len(n + 1)]);
        }
        let all: Vec<_> = mail.received.iter().filter(|frame| frame[0] == 0xff).map(|f| number(f)).collect();
        assert_eq!(all, (0..frames).step_by(5).collect::<Vec<_>>());
        let world = world.borrow();
        let sent: Vec<_> = world.hw.sent.iter().filter(|(who, _)| *who == index).map(|(_, f)| f).collect();
        assert_eq!(sent.len(), frames as usize);
        for (n, sent) in (0u32..).zip(sent) {
            assert_eq!(sent[..len(n)], frame(OUTSIDE, mac(index), n, mark(index), len(n))[..]);
        }
    }
    (world, drivers)
}

#[test]
fn one_client_has_the_card_undivided() {
    let (world, _) = exchange(1, 7, 200, |n| 60 + (n as usize * 37) % 1454);
    let world = world.borrow();
    assert_eq!(world.monitor.device_counters().handoffs, 0);
    assert!(world.tallies[0].hooked_elements_percent() < 3.0, "{:?}", world.tallies[0]);
}

#[test]
fn two_clients_share() {
    let (world, _) = exchange(2, 11, 300, |n| 60 + (n as usize * 37) % 1454);
    let world = world.borrow();
    let counters = world.monitor.device_counters();
    assert!(counters.handoffs > 5, "{counters:?}");
    assert_eq!(counters.ring_overruns, 0);
}

#[test]
fn four_clients_share_and_none_starves() {
    let (world, drivers) = exchange(4, 13, 100, |_| 1514);
    let world = world.borrow();
    for (index, client) in world.clients.iter().enumerate() {
        let counters = world.monitor.counters(*client).unwrap();
        assert!(counters.held_ns > 0 && counters.rx_dropped == 0, "{index} {counters:?}");
    }
    drop(drivers);
}

#[test]
fn closing_returns_the_card_undivided_to_the_other() {
    let (world, mut drivers) = exchange(2, 17, 50, |n| 60 + n as usize);
    drivers[1].mail.borrow_mut().stop = true;
    drive(&world, &mut drivers, 3, 1_000_000, |_, drivers| !drivers[1].mail.borrow().started);
    let before = drivers[0].mail.borrow().received.len();
    world.borrow_mut().pass(2 * TIMING.settle);
    // Traffic brings the remaining client to rest, after which it holds the card undivided.
    for n in 0..60 {
        let mut world = world.borrow_mut();
        world.source[0].push_back(frame(mac(0), OUTSIDE, 50 + n, mark(0), 700));
        drivers[0].mail.borrow_mut().to_send.push_back(frame(OUTSIDE, mac(0), 50 + n, mark(0), 700));
    }
    drive(&world, &mut drivers, 5, 4_000_000, |world, drivers| {
        world.source[0].is_empty()
            && drivers[0].mail.borrow().sent == 110
            && drivers[0].mail.borrow().received.len() == before + 60
    });
    assert!(drivers[0].mail.borrow().errors.is_empty(), "{:?}", drivers[0].mail.borrow().errors);
    let world = world.borrow();
    assert!(world.hooks[0].ports().count_ones() < 16, "still shared: {:?}", world.hooks[0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 8, ..ProptestConfig::default() })]
    #[test]
    fn any_interleaving_loses_nothing(
        count in 2usize..=4, seed in any::<u64>(), stride in 1u32..1400, pace in 1u64..60, tick in 100u64..20_000,
    ) {
        let world = World::new(1, 1, TIMING);
        drop(world);
        let len = move |n: u32| 60 + (n.wrapping_mul(stride) % 1455) as usize;
        let _ = (pace, tick);
        exchange(count, seed, 40, len);
    }
}
