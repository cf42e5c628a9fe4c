//! Messages over a fabric that loses, repeats, delays and reorders them.
#![expect(clippy::unwrap_used, reason = "a failure is the test's")]
#![expect(clippy::print_stdout, reason = "a failing test shows its seed")]

#[path = "support/faulty.rs"]
mod faulty;

use ripstop::{Comm, Source, Tag, fabric::hook::HookFaults};

/// Runs `rank` on two ranks whose messages pass through these faults.
fn with_faults(faults: &HookFaults, rank: impl AsyncFn(&Comm) + Send + Sync + 'static) {
    println!("faults: {faults:?}");
    faulty::run(2, faults, move |runtime| {
        let world = runtime.world();
        runtime.block_on(rank(&world));
        drop(world);
        runtime.close().unwrap();
    });
}

fn every_mix() -> Vec<HookFaults> {
    let none = HookFaults::default();
    vec![
        HookFaults {
            drop: 0.3,
            seed: 1,
            ..none.clone()
        },
        HookFaults {
            duplicate: 0.3,
            seed: 2,
            ..none.clone()
        },
        HookFaults {
            reorder: 64,
            seed: 3,
            ..none.clone()
        },
        HookFaults {
            delay: 0..5,
            seed: 4,
            ..none.clone()
        },
        HookFaults {
            full: 0.3,
            seed: 5,
            ..none.clone()
        },
        HookFaults {
            drop: 0.2,
            duplicate: 0.2,
            reorder: 16,
            delay: 0..4,
            full: 0.1,
            seed: 6,
        },
    ]
}

#[test]
fn short_messages_arrive_once_and_in_order() {
    for faults in every_mix() {
        with_faults(&faults, async |world: &Comm| {
            let peer = 1 - world.rank();
            let sends: Vec<_> = (0..2000_u32)
                .map(|n| world.send(peer, n % 3, vec![n; n as usize % 50]))
                .collect();
            let mut next = [0, 1, 2];
            for _ in 0..2000 {
                let (got, status) = world.recv::<u32>(Source::Any, Tag::Any).await.unwrap();
                let n = next[status.tag as usize];
                assert_eq!(got, vec![n; n as usize % 50]);
                next[status.tag as usize] += 3;
            }
            for send in sends {
                send.await.unwrap();
            }
        });
    }
}

#[test]
fn long_messages_arrive_whole() {
    for faults in every_mix() {
        with_faults(&faults, async |world: &Comm| {
            let peer = 1 - world.rank();
            for len in [5_000_u64, 20_000, 300_000] {
                let send = world.send(peer, 0, (0..len).collect::<Vec<_>>());
                let (got, _) = world.recv::<u64>(peer, 0).await.unwrap();
                assert!(got.into_iter().eq(0..len));
                send.await.unwrap();
            }
        });
    }
}
