//! The tests of interfaces over datagrams that are lost, duplicated, reordered and refused.

use std::{net::Ipv4Addr, time::Duration};

use ripstop_fabric::random::SeededRandom;
use ripstop_softportals::{
    AckRequest, EventKind, NiCommand, NiFail,
    process::SoftNicMode,
    transport::{DatagramFaults, MediumKind, SoftTransportConfig},
};

use crate::process::{HALF, Process, start_over};

/// Uses addresses of this test process alone; all of 127/8 is this machine.
fn wires(faults: &str) -> SoftTransportConfig {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    SoftTransportConfig {
        medium: MediumKind::Udp {
            host: Ipv4Addr::new(127, a | 1, b, c | 1),
            faults: DatagramFaults::parse(faults).expect("right"),
        },
        ..SoftTransportConfig::default()
    }
}

fn start(pid: u32, faults: &str) -> Process {
    start_over("udp", pid, SoftNicMode::Offload, wires(faults))
}

#[test]
fn data_is_right_at_every_size_in_bad_weather() {
    let faults = "drop=0.02,duplicate=0.05,reorder=0.05,exhaust=0.02";
    for (mode, pid) in [(SoftNicMode::Offload, 10), (SoftNicMode::Generic, 20)] {
        let seeds = [1, 2].map(|seed| wires(&format!("{faults},seed={seed}")));
        let [a, b] = seeds.map(|wires| wires);
        let a = start_over("udp", pid, mode, a);
        let b = start_over("udp", pid + 1, mode, b);
        let mut random = SeededRandom::new(4);
        for size in [0, 1, 8, 4096, 8192, 8193, 100_000, 1 << 20] {
            random.fill(&mut a.ram.0.lock().expect("whole")[HALF..]);
            a.put(pid + 1, size as u64, AckRequest::Full);
            assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok), "{size} bytes");
            let sent = a.ram.0.lock().expect("whole")[HALF..HALF + size].to_vec();
            assert!(
                b.ram.0.lock().expect("whole")[..size] == sent,
                "{size} bytes"
            );
            a.ram.0.lock().expect("whole")[HALF..].fill(0);
            a.start(NiCommand::Get, pid + 1, size as u64);
            assert_eq!(a.event(), (EventKind::Reply, NiFail::Ok), "{size} bytes");
            assert!(
                a.ram.0.lock().expect("whole")[HALF..HALF + size] == sent,
                "{size} bytes"
            );
        }
    }
}

#[test]
fn a_flood_from_many_is_counted_to_the_last() {
    let target = start(30, "");
    let senders: Vec<Process> = (31..35)
        .map(|pid| start(pid, &format!("drop=0.01,seed={pid}")))
        .collect();
    std::thread::scope(|scope| {
        for sender in &senders {
            scope.spawn(|| (0..500).for_each(|size| sender.put(30, size, AckRequest::No)));
        }
    });
    let all = [(target.ct, 2000)];
    let waited = target.nic.wait_count(&all, Some(Duration::from_secs(60)));
    assert_eq!(waited.map(|(count, _)| count.success), Ok(2000));
}

#[test]
fn a_put_to_an_absent_or_dead_process_is_undeliverable() {
    let (a, b) = (start(40, ""), start(41, ""));
    a.put(42, 8, AckRequest::Full);
    assert_eq!(a.event(), (EventKind::Ack, NiFail::Undeliverable));
    a.put(41, 8, AckRequest::Full);
    assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok));
    drop(b);
    a.put(41, 8, AckRequest::Full);
    assert_eq!(a.event(), (EventKind::Ack, NiFail::Undeliverable));
    let _again = start(41, "");
    a.put(41, 8, AckRequest::Full);
    assert_eq!(
        a.event(),
        (EventKind::Ack, NiFail::Ok),
        "its successor is there"
    );
}

#[test]
fn an_ending_process_sends_the_acknowledgments_that_its_peers_await() {
    for seed in 0..24 {
        let a = start(60, &format!("drop=0.3,seed={seed}"));
        let b = start(61, &format!("drop=0.3,seed={}", seed + 100));
        a.put(61, 8, AckRequest::Full);
        assert_eq!(b.event(), (EventKind::Put, NiFail::Ok));
        b.nic.linger(Duration::from_secs(3));
        drop(b);
        assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok), "seed {seed}");
    }
}

#[test]
fn a_rail_carries_no_more_than_it_can() {
    for wires in [SoftTransportConfig::default(), wires("")] {
        let wires = SoftTransportConfig {
            rate: Some(20_000_000),
            ..wires
        };
        let a = start_over("rate", 50, SoftNicMode::Offload, wires.clone());
        let _b = start_over("rate", 51, SoftNicMode::Offload, wires);
        a.put(51, 8, AckRequest::Full);
        assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok));
        let start = crate::now();
        a.put(51, HALF as u64, AckRequest::Full);
        assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok));
        // 4 MiB at 20 MB/s take 210 ms, and longer on slow machines.
        assert!(start.elapsed() >= Duration::from_millis(180));
    }
}
