//! More messages than one receiver can take.

use std::sync::{Arc, Mutex};

use ripstop::{
    Result, Source, Tag,
    sim::{Report, Simulation, now},
};

/// 64 ranks send to one that has room for `faults` at a time. Returns bytes per microsecond, and how even the shares were.
fn flood(faults: &str) -> (f64, f64) {
    const EACH: u64 = 50;
    let found = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&found);
    let report: Report<Result<()>> = Simulation::new(65)
        .seed(5)
        .fabric("seastar")
        .faults(faults)
        .run(move |world| {
            let tell = Arc::clone(&tell);
            async move {
                if world.rank() > 0 {
                    for number in 0..EACH {
                        world.send(0, 1, vec![number; 256]).await?;
                    }
                    return Ok(());
                }
                let (mut next, mut at_half) = (vec![0; 65], Vec::new());
                for nth in 0..64 * EACH {
                    let (got, status) = world.recv::<u64>(Source::Any, Tag::Any).await?;
                    assert_eq!(
                        got,
                        vec![next[status.source]; 256],
                        "from {}",
                        status.source
                    );
                    next[status.source] += 1;
                    if nth == 32 * EACH {
                        at_half = next[1..].to_vec();
                    }
                }
                let bytes = (64 * EACH * 256 * 8) as f64;
                let rate = bytes / (now(&world).as_secs_f64() * 1e6);
                *tell.lock().unwrap() = Some((rate, jain(&at_half)));
                Ok(())
            }
        })
        .unwrap();
    report
        .results
        .into_iter()
        .for_each(|result| result.unwrap().unwrap());
    let found = found.lock().unwrap().take();
    found.expect("rank 0 came to its end")
}

/// Returns Jain's index of fairness.
fn jain(counts: &[u64]) -> f64 {
    let sum: u64 = counts.iter().sum();
    let squares: u64 = counts.iter().map(|count| count * count).sum();
    (sum * sum) as f64 / (counts.len() as u64 * squares) as f64
}

#[test]
fn sixty_four_senders_share_a_receiver_with_two_slots_evenly_and_lose_nothing() {
    let (unlimited, _) = flood("");
    let (limited, fairness) = flood("slots=2");
    println!("unlimited {unlimited:.0} bytes/µs, two slots {limited:.0}, fairness {fairness:.3}");
    assert!(fairness >= 0.9, "Jain's index is {fairness:.3}");
    assert!(
        limited >= 0.5 * unlimited,
        "{limited:.0} of {unlimited:.0} bytes/µs"
    );
}

/// The message that is received first was sent last, behind more messages than the receiver has room for.
#[test]
fn a_message_behind_a_full_store_is_found() {
    for before in [15_usize, 16, 17, 10_000] {
        let report = Simulation::new(2)
            .fabric("bxi")
            .set("RIPSTOP_UNEXPECTED_MESSAGES", "16")
            .run(move |world| async move {
                if world.rank() == 0 {
                    let sends: Vec<_> = (0..before).map(|n| world.send(1, 1, [n as u64])).collect();
                    world.send_synchronous(1, 2, [77_u64]).await?;
                    for send in sends {
                        send.await?;
                    }
                } else {
                    assert_eq!(world.recv::<u64>(0, 2).await?.0, [77]);
                    for n in 0..before {
                        assert_eq!(world.recv::<u64>(0, 1).await?.0, [n as u64]);
                    }
                }
                crate::well()
            })
            .unwrap_or_else(|error| panic!("{before} messages before it: {error}"));
        report
            .results
            .into_iter()
            .for_each(|result| result.unwrap().unwrap());
    }
}
