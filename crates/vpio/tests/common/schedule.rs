//! Who runs when, and when frames arrive.

use super::World;
use super::driver::{Driver, Shared};

/// Frames under way to each client.
pub const WINDOW: usize = 30;

/// Senders with windows, as TCP has them: no client is owed more than it could queue.
pub fn offer(world: &mut World, drivers: &[Driver]) {
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
pub fn drive(
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
            eprintln!("{:?}", world.monitor.device_counters());
            for client in &world.clients {
                eprintln!("dropped {:?}", world.monitor.counters(*client).map(|c| c.rx_dropped));
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
