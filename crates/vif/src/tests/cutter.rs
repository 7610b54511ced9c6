//! What a card makes of a packet that it is to finish, done as naively as can be.

use super::offloads::sum;
use sluice_nic::Offload;
use sluice_nic::offload::{Checksum, Segments};
use std::vec::Vec;

fn put_sum(frame: &mut [u8], sums: Option<Checksum>) {
    let Some(Checksum { start, offset, end }) = sums else { return };
    let end = if end == 0 { frame.len() } else { usize::from(end) + 1 };
    let value = !sum(&frame[usize::from(start)..end]);
    frame[usize::from(offset)..][..2].copy_from_slice(&value.to_be_bytes());
}

/// The frames that it puts on the wire.
pub fn cut(packet: &[u8], offload: &Offload) -> Vec<Vec<u8>> {
    let Some(Segments { header, payload, ip, transport, ipv4, tcp }) = offload.segments else {
        let mut frame = packet.to_vec();
        put_sum(&mut frame, offload.transport);
        put_sum(&mut frame, offload.ip);
        return vec![frame];
    };
    assert!(tcp);
    let (headers, all) = packet.split_at(header.into());
    let (ip, transport) = (usize::from(ip), usize::from(transport));
    let parts: Vec<&[u8]> = all.chunks(payload.into()).collect();
    let make = |nth: usize| {
        let mut frame = [headers, parts[nth]].concat();
        let mut add = |at: usize, value: usize| {
            let old = u16::from_be_bytes([frame[at], frame[at + 1]]);
            let sum = u32::from(old) + value as u32;
            frame[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
            sum >> 16
        };
        let len = headers.len() + parts[nth].len();
        if ipv4 {
            assert_eq!(add(ip + 2, len - ip), 0);
            add(ip + 4, nth);
        } else {
            assert_eq!(add(ip + 4, len - ip - 40), 0);
        }
        let carry = add(transport + 6, (nth * usize::from(payload)) & 0xffff);
        add(transport + 4, ((nth * usize::from(payload)) >> 16) + carry as usize);
        let carry = add(transport + 16, len - transport);
        add(transport + 16, carry as usize);
        if nth + 1 < parts.len() {
            frame[transport + 13] &= !0x09;
        }
        put_sum(&mut frame, offload.transport);
        put_sum(&mut frame, offload.ip);
        frame
    };
    (0..parts.len()).map(make).collect()
}
