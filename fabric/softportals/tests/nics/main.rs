//! Interfaces with agents: waiting, and peers that start and end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec};

use ripstop_fabric::random::SeededRandom;
use ripstop_softportals::{
    AckRequest, EventKind, NiCommand, NiFail, SoftCtValue, SoftError,
    process::{SoftNicMode, wait_count_among},
    transport::SoftTransportConfig,
};

mod over_udp;
mod process;

use process::{HALF, Process, start, start_in, start_on};

#[test]
fn data_is_right_at_every_size_without_calls_at_the_target() {
    for mode in [SoftNicMode::Offload, SoftNicMode::Generic] {
        data_is_right(mode);
    }
}

fn data_is_right(mode: SoftNicMode) {
    let network = format!("sizes-{mode:?}");
    let (a, b) = (start_in(&network, 1, mode), start_in(&network, 2, mode));
    let mut random = SeededRandom::new(4);
    for size in [0, 1, 8, 4096, 32 << 10, (32 << 10) + 1, 1 << 20, HALF] {
        random.fill(&mut a.ram.0.lock().expect("whole")[HALF..]);
        a.put(2, size as u64, AckRequest::Full);
        assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok), "{size} bytes");
        let sent = a.ram.0.lock().expect("whole")[HALF..HALF + size].to_vec();
        assert!(
            b.ram.0.lock().expect("whole")[..size] == sent,
            "{size} bytes"
        );
        a.ram.0.lock().expect("whole")[HALF..].fill(0);
        a.start(NiCommand::Get, 2, size as u64);
        assert_eq!(a.event(), (EventKind::Reply, NiFail::Ok), "{size} bytes");
        assert!(
            a.ram.0.lock().expect("whole")[HALF..HALF + size] == sent,
            "{size} bytes"
        );
    }
}

#[test]
fn one_can_send_to_oneself() {
    let a = start("self", 1);
    a.ram.0.lock().expect("whole")[HALF..].fill(7);
    a.put(1, HALF as u64, AckRequest::Full);
    let mut ends = [a.event(), a.event()];
    ends.sort_by_key(|end| end.0 == EventKind::Ack);
    assert_eq!(
        ends,
        [(EventKind::Put, NiFail::Ok), (EventKind::Ack, NiFail::Ok)]
    );
    assert!(
        a.ram.0.lock().expect("whole")[..HALF]
            .iter()
            .all(|byte| *byte == 7)
    );
}

#[test]
fn a_descriptor_may_be_released_after_the_put_event_of_a_message_to_itself() {
    for round in 0..50 {
        let a = start("himself", 1);
        a.put(1, round * 100, AckRequest::Full);
        // The acknowledgment may have arrived first.
        while a.event() != (EventKind::Put, NiFail::Ok) {}
        let released = a.nic.release(|interface| interface.md_release(a.md));
        assert_eq!(released, Ok(()), "round {round}");
    }
}

const PUTS: u32 = 8;

/// Sets the flag on drop, so that threads end when a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// While a thread waits for the lock, a call handles one packet at a time, but the descriptor needs one acknowledgment per put.
#[test]
fn a_descriptor_may_be_released_after_a_put_to_itself_while_other_threads_call() {
    for round in 0..50 {
        let a = start("pestered", 1);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    // One of the two threads holds the lock, and the other waits for it.
                    while !over.load(Relaxed) {
                        a.nic
                            .call(|_| (0..1000).for_each(|_| std::hint::spin_loop()));
                    }
                });
            }
            let _over = Over(&over);
            (0..PUTS).for_each(|_| a.put(1, 8, AckRequest::Full));
            let mut heard = 0;
            while heard < PUTS {
                heard += u32::from(a.event() == (EventKind::Put, NiFail::Ok));
            }
            let released = a.nic.release(|interface| interface.md_release(a.md));
            assert_eq!(released, Ok(()), "round {round}");
        });
    }
}

#[test]
fn what_one_has_sent_to_oneself_is_let_go_of_however_often_one_asks() {
    for mode in [SoftNicMode::Offload, SoftNicMode::Generic] {
        for round in 0..50 {
            let a = start_in(&format!("oneself-{mode:?}"), 1, mode);
            a.put(1, round * 1000, AckRequest::Full);
            // No event has been taken yet. A thread that polls without pause must still leave the lock to the agent and the host.
            let asked = |result| matches!(result, Err(SoftError::InUse));
            while asked(a.nic.release(|interface| interface.md_release(a.md))) {}
            while asked(a.nic.release(|interface| interface.unlink(a.entry))) {}
            let mut ends = [a.event(), a.event()];
            ends.sort_by_key(|end| end.0 == EventKind::Ack);
            let told = [(EventKind::Put, NiFail::Ok), (EventKind::Ack, NiFail::Ok)];
            assert_eq!(ends, told, "{mode:?}, round {round}");
        }
    }
}

#[test]
fn a_flood_from_many_is_counted_to_the_last() {
    let target = start("flood", 1);
    let senders: Vec<Process> = (2..6).map(|pid| start("flood", pid)).collect();
    std::thread::scope(|scope| {
        for sender in &senders {
            scope.spawn(|| (0..1000).for_each(|size| sender.put(1, size, AckRequest::No)));
        }
    });
    let waited = target
        .nic
        .wait_count(&[(target.ct, 4000)], Some(Duration::from_secs(60)));
    assert_eq!(waited.map(|(count, _)| count.success), Ok(4000));
}

#[test]
fn a_put_to_an_absent_process_is_undeliverable() {
    let a = start("nobody", 1);
    a.put(2, 8, AckRequest::Full);
    assert_eq!(a.event(), (EventKind::Ack, NiFail::Undeliverable));
}

#[test]
fn a_put_that_the_target_took_is_never_reported_undeliverable() {
    for mode in [SoftNicMode::Offload, SoftNicMode::Generic] {
        let network = format!("late-{mode:?}");
        let a = start_in(&network, 1, mode);
        for round in 0..40 {
            let (tell, told) = mpsc::channel();
            let network = &network;
            std::thread::scope(|scope| {
                let late = scope.spawn(move || {
                    told.recv().expect("it is told");
                    start_in(network, 2, mode)
                });
                let mut asked = 0;
                loop {
                    if asked == round % 5 {
                        tell.send(()).expect("it listens");
                    }
                    asked += 1;
                    a.put(2, 8, AckRequest::Full);
                    match a.event() {
                        (EventKind::Ack, NiFail::Ok) => break,
                        // The other process may have started, with its list still empty.
                        (kind, _) => assert_eq!(kind, EventKind::Ack),
                    }
                }
                let b = late.join().expect("it starts");
                let count = b.nic.wait_count(&[(b.ct, 1)], None);
                assert_eq!(count.map(|(count, _)| count.success), Ok(1), "{mode:?}");
            });
        }
    }
}

#[test]
fn a_process_that_dies_before_it_answers_is_detected() {
    let (a, b) = (start("dies", 1), start("dies", 2));
    a.put(2, 8, AckRequest::Full);
    assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok));
    // A message that is begun and never finished keeps the target's entry busy until its sender is known to be dead.
    let silent = start("dies", 3);
    silent.put(1, 8, AckRequest::No);
    assert_eq!(a.event(), (EventKind::Put, NiFail::Ok));
    drop((b, silent));
    a.put(2, 8, AckRequest::Full);
    a.put(3, HALF as u64, AckRequest::Full);
    for _ in 0..2 {
        assert_eq!(a.event(), (EventKind::Ack, NiFail::Undeliverable));
    }
    let again = start("dies", 2);
    a.put(2, 8, AckRequest::Full);
    assert_eq!(
        a.event(),
        (EventKind::Ack, NiFail::Ok),
        "a new process can be reached at the old address"
    );
    drop(again);
}

#[test]
fn what_was_sent_before_the_end_arrives_before_it() {
    for mode in [SoftNicMode::Offload, SoftNicMode::Generic] {
        for turn in 0..20 {
            let network = format!("ends-{mode:?}-{turn}");
            let (a, b) = (start_in(&network, 1, mode), start_in(&network, 2, mode));
            a.put(2, 8, AckRequest::Full);
            assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok));
            for _ in 0..8 {
                b.put(1, 20_000, AckRequest::No);
            }
            b.nic.linger(Duration::from_secs(20));
            drop(b);
            a.put(2, 8, AckRequest::Full);
            let mut ends: Vec<_> = (0..9).map(|_| a.event()).collect();
            ends.retain(|end| *end != (EventKind::Put, NiFail::Ok));
            assert_eq!(ends, [(EventKind::Ack, NiFail::Undeliverable)], "{mode:?}");
        }
    }
}

#[test]
fn waiting_ends_with_the_time_with_what_is_waited_for_and_with_the_interface() {
    let a = start("waits", 1);
    let short = Some(Duration::from_millis(20));
    assert_eq!(
        a.nic.wait_event(&[a.eq], short).err(),
        Some(SoftError::EqEmpty)
    );
    assert_eq!(
        a.nic.wait_event(&[a.eq], Some(Duration::ZERO)).err(),
        Some(SoftError::EqEmpty)
    );
    let never = [(a.ct, 1)];
    assert_eq!(
        a.nic.wait_count(&never, short).err(),
        Some(SoftError::CtNoneReached)
    );
    std::thread::scope(|scope| {
        let on_event = scope.spawn(|| a.nic.wait_event(&[a.eq], None).err());
        let on_count = scope.spawn(|| a.nic.wait_count(&never, None).err());
        while a.nic.waiters() < 2 {
            std::thread::yield_now();
        }
        a.nic
            .call(|interface| interface.eq_free(a.eq))
            .expect("there");
        assert_eq!(
            on_event.join().expect("no panic"),
            Some(SoftError::Interrupted)
        );
        assert!(!on_count.is_finished());
        a.nic.interrupt();
        assert_eq!(
            on_count.join().expect("no panic"),
            Some(SoftError::Interrupted)
        );
    });
    assert_eq!(
        a.nic.wait_event(&[a.eq], None).err(),
        Some(SoftError::ArgInvalid("eq"))
    );
}

#[test]
fn a_wait_without_a_timeout_returns_present_events_after_an_abort() {
    let a = start("aborted", 1);
    a.put(1, 8, AckRequest::Full);
    let ended = [a.event(), a.event()];
    assert!(ended.contains(&(EventKind::Ack, NiFail::Ok)));
    a.nic.abort();
    let now = Some(Duration::ZERO);
    let aborted = Some(SoftError::Aborted);
    assert_eq!(a.nic.wait_event(&[a.eq], now).err(), aborted);
    assert_eq!(a.nic.wait_event(&[a.eq], None).err(), aborted);
    assert_eq!(a.nic.wait_count(&[(a.ct, 2)], now).err(), aborted);
    let counted = a.nic.wait_count(&[(a.ct, 1)], now);
    assert!(counted.is_ok(), "what is there is given");
}

#[test]
fn a_failure_ends_a_wait_for_successes() {
    let failure = SoftCtValue {
        success: 0,
        failure: 1,
    };
    let (a, b) = (start("fails", 1), start("fails", 2));
    let counters = [(Arc::clone(&a.nic), a.ct, 9), (Arc::clone(&b.nic), b.ct, 9)];
    std::thread::scope(|scope| {
        let one = scope.spawn(|| a.nic.wait_count(&[(a.ct, 9)], None));
        let all = scope.spawn(|| wait_count_among(&counters, None));
        while a.nic.waiters() < 1 {
            std::thread::yield_now();
        }
        let counted = a.nic.call(|interface| interface.ct_inc(a.ct, failure));
        counted.expect("there");
        assert_eq!(one.join().expect("no panic"), Ok((failure, 0)));
        assert_eq!(all.join().expect("no panic"), Ok((failure, 0)));
    });
}

#[test]
fn a_message_interrupts_the_host_twice_once_or_never() {
    for (mode, size, interrupts) in [
        (SoftNicMode::Generic, HALF as u64, 2),
        (SoftNicMode::Generic, 129, 2),
        (SoftNicMode::Generic, 128, 1),
        (SoftNicMode::Generic, 0, 1),
        (SoftNicMode::Offload, 0, 0),
        (SoftNicMode::Offload, HALF as u64, 0),
    ] {
        let network = format!("interrupts-{mode:?}-{size}");
        let (a, b) = (start_in(&network, 1, mode), start_in(&network, 2, mode));
        for _ in 0..20 {
            a.put(2, size, AckRequest::No);
            assert_eq!(b.event(), (EventKind::Put, NiFail::Ok));
            // A packet that arrives while the host still works would need no interrupt of its own.
            while b.nic.host_is_busy() {
                std::thread::yield_now();
            }
        }
        let seen = b.nic.interrupts();
        let expected = (mode == SoftNicMode::Generic).then_some(20 * interrupts);
        assert_eq!(seen, expected, "{mode:?}, {size} bytes");
    }
}

#[test]
fn a_processor_of_its_own_moves_what_callers_start_and_look_for() {
    let alone = |pid| {
        let wires = SoftTransportConfig::default();
        start_on("core", pid, SoftNicMode::Offload, wires, Some(0))
    };
    let (a, b) = (alone(1), alone(2));
    for nth in 1..=20 {
        a.put(2, HALF as u64 / 64, AckRequest::No);
        let started = now();
        let looked = || b.nic.wait_event(&[b.eq], Some(Duration::ZERO));
        let event = loop {
            match looked() {
                Err(SoftError::EqEmpty) => std::thread::yield_now(),
                got => break got.expect("an event").0.event,
            }
            assert!(now() - started < Duration::from_secs(20), "put {nth}");
        };
        assert_eq!((event.kind, event.fail), (EventKind::Put, NiFail::Ok));
    }
    // Agents do not wake for packets that callers take.
    assert!(a.nic.wakes() > 0 && b.nic.wakes() > 0);
}

#[expect(
    clippy::disallowed_methods,
    reason = "hang guards, and the least that a rate takes"
)]
fn now() -> Instant {
    Instant::now()
}

#[test]
fn news_can_be_waited_for_with_poll() {
    let (a, b) = (start("poll", 1), start("poll", 2));
    let readable = |timeout_ms: i64| {
        let fd = b.nic.arm();
        let mut fds = [PollFd::new(&*fd, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: timeout_ms / 1000,
            tv_nsec: timeout_ms % 1000 * 1_000_000,
        };
        rustix::event::poll(&mut fds, Some(&timeout)).expect("a descriptor") == 1
    };
    assert!(!readable(20) && !b.nic.disarm());
    a.put(2, 8, AckRequest::No);
    assert!(readable(20_000), "a sleeper is woken");
    assert!(
        b.nic.disarm() && readable(0),
        "an event that no call takes stays pending"
    );
    assert_eq!(b.event(), (EventKind::Put, NiFail::Ok));
    assert!(!b.nic.disarm() && !readable(20), "it was taken");
    a.put(2, 8, AckRequest::Full);
    assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok));
    assert!(readable(0), "what came before it was armed counts");
    b.nic.interrupt();
    assert!(b.nic.disarm() && readable(0), "an end wakes, and stays");
}

#[test]
fn an_idle_agent_sleeps() {
    let (a, b) = (start("idle", 1), start("idle", 2));
    a.put(2, 8, AckRequest::Full);
    assert_eq!(a.event(), (EventKind::Ack, NiFail::Ok));
    let quiet = || (a.nic.wakes(), b.nic.wakes());
    // Twice the interval after which agents probe peers that owe an answer, then once more as long.
    let pause = |millis| {
        let waited = a
            .nic
            .wait_event(&[a.eq], Some(Duration::from_millis(millis)));
        assert_eq!(waited.err(), Some(SoftError::EqEmpty));
    };
    pause(1200);
    let before = quiet();
    pause(1200);
    assert_eq!(quiet(), before);
}

#[test]
fn one_can_wait_for_several_interfaces_at_once() {
    let (a, b, c) = (start("among", 1), start("among", 2), start("among", 3));
    let [b_nic, c_nic] = [&b, &c].map(|process| Arc::clone(&process.nic));
    let counters = [(b_nic, b.ct, 2), (c_nic, c.ct, 1)];
    let short = Some(Duration::from_millis(20));
    assert_eq!(
        wait_count_among(&counters, short).err(),
        Some(SoftError::CtNoneReached)
    );
    std::thread::scope(|scope| {
        let counter = scope.spawn(|| wait_count_among(&counters, None).map(|(_, which)| which));
        a.put(3, 8, AckRequest::No);
        assert_eq!(counter.join().expect("no panic"), Ok(1));
        let never = [&b, &c].map(|process| (Arc::clone(&process.nic), process.ct, 9));
        let gone = scope.spawn(move || wait_count_among(&never, None).err());
        b.nic.interrupt();
        assert_eq!(gone.join().expect("no panic"), Some(SoftError::Interrupted));
    });
}
