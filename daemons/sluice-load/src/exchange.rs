//! Small messages over TCP, there and back, while other pairs of guests do the same: all begin when a line is typed, and each notes how long every trip took.
//!
//! Nothing is printed while others may still be at it: a console's bytes are exits.

use crate::line::{WARM, connect, trip};
use crate::mark::{Part, marked};
use anyhow::{Context, Result};
use std::io::{BufRead, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long it is silent when it has done its part.
const SILENCE: Duration = Duration::from_secs(2);
/// Times on a line.
const ON_A_LINE: usize = 50;

/// Exchanges so many messages with who listens and takes no data.
pub fn exchange(to: SocketAddr, count: usize) -> Result<()> {
    let mut stream = connect(to)?;
    let mut line = String::new();
    let took = trips(&mut stream, count, || {
        println!("SLUICE-RESULT ready=yes");
        std::io::stdin().lock().read_line(&mut line).context("nobody says when to begin").map(drop)
    })?;
    std::thread::sleep(SILENCE);
    for times in took.chunks(ON_A_LINE) {
        let texts: Vec<String> = times.iter().map(|time| time.as_micros().to_string()).collect();
        println!("SLUICE-RESULT trips_us={}", texts.join(","));
    }
    println!("SLUICE-RESULT exchanged=ok");
    Ok(())
}

/// How long each of so many trips took, which begin when `begin` returns.
fn trips(stream: &mut TcpStream, count: usize, begin: impl FnOnce() -> Result<()>) -> Result<Vec<Duration>> {
    // That all of no data have come, and that they are right.
    stream.read_exact(&mut [0; 2])?;
    stream.set_nodelay(true)?;
    (0..WARM).try_for_each(|number| trip(stream, number))?;
    begin()?;
    let mut took = vec![Duration::ZERO; count];
    marked(Part::Trips, || {
        took.iter_mut().enumerate().try_for_each(|(number, took)| {
            let before = Instant::now();
            trip(stream, number)?;
            *took = before.elapsed();
            anyhow::Ok(())
        })
    })?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::answer;
    use std::net::TcpListener;

    #[test]
    fn every_trip_has_a_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let listening = std::thread::spawn(move || answer(&listener, 0));
        let took = trips(&mut stream, 20, || Ok(())).unwrap();
        assert!(took.len() == 20 && took.iter().all(|time| !time.is_zero()));
        drop(stream);
        listening.join().unwrap().unwrap();
    }
}
