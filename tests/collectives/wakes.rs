//! How often a collective by task lists wakes its host: over Portals, with ranks as processes of `cargo xtask portals`, and
//! over verbs, in the virtual machine.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ripstop::{Runtime, prelude::*};

use crate::ranks;

const RANKS: u32 = 8;

#[test]
fn an_all_to_all_wakes_its_host_once_a_list_and_at_its_end_while_the_host_computes() {
    if fabric().is_none() {
        return;
    }
    let settings = [
        ("RIPSTOP_COLLECTIVES", "lists"),
        ("RIPSTOP_PROGRESS", "thread"),
        ("RIPSTOP_ALLTOALL", "pairwise"),
    ];
    ranks::run(RANKS, &settings, |runtime: Runtime| {
        let world = runtime.world();
        // The first collective makes what all later ones use.
        runtime.block_on(all_to_all(&world));
        let start = runtime.counters();
        for _ in 0..ROUNDS {
            let before = runtime.counters();
            runtime.block_on(all_to_all(&world));
            let words = (runtime.counters() - before).list_words;
            assert!(words > 0, "it did not go by lists");
            assert!(
                words <= bound(),
                "{words} wakes, and {} are allowed",
                bound()
            );
        }
        if fabric() == Some("verbs") {
            let events = (runtime.counters() - start).events;
            // Other ranks may be a round behind at the start, and one ahead at the end.
            let most = EVENTS * u64::from(RANKS - 1) * (ROUNDS as u64 + 1);
            assert!(events <= most, "{events} events of {most}");
        }
    });
}

#[test]
fn an_all_reduce_of_integers_wakes_its_host_for_lists_and_its_end_and_not_for_reductions() {
    let is_short_of_room = std::env::var("RIPSTOP_PORTALS_LIMITS").is_ok();
    if fabric() != Some("portals") || is_short_of_room {
        return;
    }
    let settings = [
        ("RIPSTOP_COLLECTIVES", "lists"),
        ("RIPSTOP_PROGRESS", "thread"),
        ("RIPSTOP_ALLREDUCE", "recursive_doubling"),
    ];
    ranks::run(RANKS, &settings, |runtime: Runtime| {
        let world = runtime.world();
        // The first collective makes what all later ones use.
        runtime.block_on(world.all_reduce([0_u64], Sum)).unwrap();
        for round in 0..ROUNDS as u64 {
            let words = words(&runtime, async {
                let sum = world.all_reduce([round; 100], Max);
                compute();
                assert_eq!(sum.await.unwrap(), [round; 100]);
            });
            assert_eq!(words, 2, "the list, and the end");
            let words = words_of_floats(&runtime, &world);
            assert_eq!(words, 2 + u64::from(RANKS.ilog2()), "and the reductions");
        }
    });
}

/// Wake-ups of a reduction of floating-point numbers, which the host reduces.
fn words_of_floats(runtime: &Runtime, world: &Comm) -> u64 {
    words(runtime, async {
        let sum = world.all_reduce([1.0_f64; 100], Sum);
        compute();
        assert_eq!(sum.await.unwrap(), [f64::from(RANKS); 100]);
    })
}

/// Returns the notices of the adapter to its host meanwhile.
fn words(runtime: &Runtime, collective: impl Future<Output = ()>) -> u64 {
    let before = runtime.counters();
    runtime.block_on(collective);
    (runtime.counters() - before).list_words
}

async fn all_to_all(world: &Comm) {
    let (me, size) = (world.rank() as u64, world.size());
    let mine: Vec<u64> = (0..size as u64 * BLOCK).map(|at| at ^ me << 32).collect();
    let exchange = world.all_to_all(mine);
    compute();
    let mut exchange = Polls::of(exchange);
    let got = (&mut exchange).await.unwrap();
    assert!(
        exchange.polls <= 2,
        "woken {} times before its end",
        exchange.polls - 2
    );
    let from = |at: u64| (me * BLOCK + at % BLOCK) ^ (at / BLOCK) << 32;
    assert!((0..).zip(&got).all(|(at, word)| *word == from(at)));
}

/// Counts the polls of a future: the first one, and one after each wake.
struct Polls<F> {
    inner: Pin<Box<F>>,
    polls: u64,
}

impl<F: Future> Polls<F> {
    fn of(inner: F) -> Self {
        Self {
            inner: Box::pin(inner),
            polls: 0,
        }
    }
}

impl<F: Future> Future for Polls<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.polls += 1;
        self.inner.as_mut().poll(cx)
    }
}

/// Sleeps without a call to the library.
#[expect(clippy::disallowed_methods, reason = "the test is about real time")]
fn compute() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
}

/// Returns the fabric of the ranks, if its driver runs lists and counts its notices about them.
fn fabric() -> Option<&'static str> {
    let fabric = std::env::var("RIPSTOP_FABRIC").ok()?;
    ["portals", "verbs"]
        .into_iter()
        .find(|name| *name == fabric)
}

/// Bound: one for each list of G exchanges, and one at the end. A list is half of the tasks that the driver can hold.
fn bound() -> u64 {
    let limits = std::env::var("RIPSTOP_PORTALS_LIMITS").unwrap_or_default();
    let mut limits = limits.split(',');
    let held = limits.find_map(|limit| limit.strip_prefix("max_triggered_ops="));
    let tasks = match held.map(|number| number.parse().unwrap()) {
        Some(few @ 8..64) => few.min(8),
        Some(many) => many / 4,
        None if fabric() == Some("verbs") => 128,
        None => 512,
    };
    u64::from(RANKS - 1).div_ceil(tasks / 2) + 1
}

const ROUNDS: usize = 5;
/// Bound of a device's notices for an exchange. There the agent begins tasks, and each event can end one of its sleeps: of its
/// own commands, the ends of an offer, a put and a read of the offer's place; of the peer's, counted arrivals; and in both
/// directions the messages that close memory. The application sleeps through all of them. Seven to nine were counted; without
/// chained puts, thirteen and more.
const EVENTS: u64 = 9;
/// Notices allowed for each rank.
const BLOCK: u64 = 4096;
