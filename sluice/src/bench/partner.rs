//! A server that guests talk to line by line: it echoes what they say. The first line of a connection is echoed
//! when as many connections as take part have said theirs, so that guests can begin together.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Who waits longer for the others is told so by the end of its connection.
const PATIENCE: Duration = Duration::from_secs(500);

/// How many connections have arrived.
#[derive(Default)]
struct Arrivals {
    count: Mutex<usize>,
    changed: Condvar,
}

/// The server; it ends with the process.
pub struct Partner {
    /// Its TCP port on 127.0.0.1.
    pub port: u16,
}

impl Partner {
    /// Starts to listen for groups of so many.
    pub fn start(group: usize) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("could not listen")?;
        let port = listener.local_addr()?.port();
        let arrivals = Arc::new(Arrivals::default());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let arrivals = Arc::clone(&arrivals);
                std::thread::spawn(move || talk(&stream, &arrivals, group));
            }
        });
        Ok(Self { port })
    }
}

impl Arrivals {
    /// Waits until the group is complete; false if it takes too long.
    fn meet(&self, group: usize) -> bool {
        let Ok(mut count) = self.count.lock() else { return false };
        let complete = (*count / group + 1) * group;
        *count += 1;
        self.changed.notify_all();
        let all = self.changed.wait_timeout_while(count, PATIENCE, |count| *count < complete);
        all.is_ok_and(|(_, late)| !late.timed_out())
    }
}

fn talk(stream: &TcpStream, arrivals: &Arrivals, group: usize) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    if !arrivals.meet(group) {
        return None;
    }
    while !line.is_empty() {
        writer.write_all(line.as_bytes()).ok()?;
        line.clear();
        reader.read_line(&mut line).ok()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_waits_for_the_others() {
        let port = Partner::start(2).unwrap().port;
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let (mut first, mut second) = (connect(), connect());
        let mut line = String::new();
        first.write_all(b"here\n").unwrap();
        first.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(BufReader::new(&first).read_line(&mut line).is_err());
        second.write_all(b"here\n").unwrap();
        first.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut reader = BufReader::new(&first);
        reader.read_line(&mut line).unwrap();
        (&first).write_all(b"again\n").unwrap();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "here\nagain\n");
    }
}
