//! Tests of what faults do to a cluster, and of what they must not do.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use super::stage::{Heard, Rank, Stage};
use crate::{
    connect::ConnectPolicy,
    driver::{DownCause, Driver, DriverCommand, PostResult, WorldRank},
    sim::{Cluster, ClusterConfig, Model, Stats, Transport},
};

/// Returns a model with 1 µs from end to end, and a processor that takes half of that per message.
fn model() -> Model {
    let mut model = Model::default();
    (model.host.send_ns, model.host.recv_ns) = (100, 500);
    (model.nic.gap_ns, model.nic.byte_ps) = (50, 80);
    model
}

fn stage(model: Model, ranks: u32, faults: &str, seed: u64) -> Stage {
    Stage::of(ClusterConfig {
        model,
        faults: faults.parse().unwrap(),
        seed,
        ..ClusterConfig::new(ranks)
    })
}

/// Returns these seeds, plus as many fresh ones as `RIPSTOP_SIM_SEEDS` says.
fn seeds(fixed: &[u64]) -> Vec<u64> {
    let fresh = std::env::var("RIPSTOP_SIM_SEEDS").map_or(0, |count| count.parse().unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = u64::from(now.subsec_nanos()) << 20;
    fixed.iter().copied().chain(first..first + fresh).collect()
}

/// Messages that a rank has to send, and those it received from each peer.
#[derive(Default)]
struct Traffic {
    sent: BTreeMap<(u32, u32), u64>,
    heard: BTreeMap<(u32, u32), u64>,
}

impl Traffic {
    /// Sends numbers to a peer up to `count`, as far as there is room.
    fn send(&mut self, rank: &mut Rank, to: u32, count: u64, body: usize) {
        let sent = self.sent.entry((rank.me, to)).or_default();
        while *sent < count {
            let mut bytes = vec![0; body.max(8)];
            bytes[..8].copy_from_slice(&sent.to_le_bytes());
            let command = DriverCommand::Message {
                to: WorldRank(to),
                header: b"",
                body: &bytes,
            };
            if let PostResult::Full(_) = rank.driver.post(command) {
                return;
            }
            *sent += 1;
        }
    }

    /// Takes the messages that a rank received, and checks that the numbers of each peer are in order, complete and unique.
    fn hear(&mut self, rank: &mut Rank) {
        for heard in rank.heard.drain(..) {
            if let Heard::Message(from, body) = heard {
                let number = u64::from_le_bytes(body[..8].try_into().unwrap());
                let next = self.heard.entry((from, rank.me)).or_default();
                assert_eq!(number, *next, "from rank {from} to rank {}", rank.me);
                *next += 1;
            } else {
                panic!("{heard:?} at rank {}", rank.me);
            }
        }
    }

    fn all_heard(&self, count: u64) -> bool {
        self.heard.len() == self.sent.len() && self.heard.values().all(|heard| *heard == count)
    }
}

fn check_that_nothing_is_left(cluster: &Cluster) {
    let world = cluster.lock();
    let wire = world.wire.as_ref().map_or(0, |wire| wire.in_flight());
    assert_eq!((world.packets.len(), wire), (0, 0), "something leaked");
    assert!(world.heap.is_empty());
}

/// Exchanges `count` numbers between all pairs of ranks.
fn exchange(stage: Stage, ranks: u32, count: u64, body: usize) -> Stats {
    let others = |me| (0..ranks).filter(move |to| *to != me);
    exchange_with(stage, others, count, body)
}

/// Exchanges numbers like `exchange`, but each rank sends only to the peers that `peers_of` returns.
fn exchange_with<I: Iterator<Item = u32>>(
    mut stage: Stage,
    peers_of: impl Fn(u32) -> I,
    count: u64,
    body: usize,
) -> Stats {
    let mut traffic = Traffic::default();
    stage.run(|rank| {
        traffic.hear(rank);
        for to in peers_of(rank.me) {
            traffic.send(rank, to, count, body);
        }
        None
    });
    assert!(traffic.all_heard(count), "{:?}", traffic.heard);
    check_that_nothing_is_left(&stage.cluster);
    stage.cluster.stats()
}

#[test]
fn a_million_messages_with_thirty_percent_loss_leak_no_slot() {
    // A debug build is about twenty times as slow, and smaller numbers show the same.
    let count = if cfg!(debug_assertions) {
        25_000
    } else {
        500_000
    };
    for seed in seeds(&[1]) {
        println!("seed {seed}");
        let faults = "drop=0.3,dup=0.1,reorder=64";
        let stats = exchange(stage(model(), 2, faults, seed), 2, count, 8);
        println!("{stats:?}");
        assert!(stats.drops > count / 2 && stats.duplicates > count / 8);
        assert!(stats.retransmissions > count / 2);
    }
}

#[test]
fn streams_of_all_sizes_survive_every_mix_of_faults() {
    let mixes = [
        "drop=0.3",
        "dup=0.5",
        "reorder=64",
        "delay=0.3:5us",
        "corrupt=0.3",
        "drop=0.1,dup=0.1,corrupt=0.1,delay=0.1:20us,reorder=16",
        "drop=0.2,slots=2",
        "slots=1",
        "slow-rail=0/10,drop=#0,dup=#1",
        "drop=1@20us+100us",
    ];
    for (seed, faults) in seeds(&[3, 4])
        .into_iter()
        .flat_map(|seed| mixes.map(|mix| (seed, mix)))
    {
        println!("seed {seed}: {faults}");
        exchange(stage(model(), 4, faults, seed), 4, 60, 8);
        exchange(stage(model(), 3, faults, seed), 3, 20, 5000);
    }
}

#[test]
fn flipped_bits_are_found_and_counted() {
    let stats = exchange(stage(model(), 2, "corrupt=0.5", 5), 2, 500, 100);
    assert!(stats.corruptions > 300, "{stats:?}");
    assert_eq!(stats.corruptions, stats.drops);
}

#[test]
fn nothing_costs_anything_where_nothing_goes_wrong() {
    for faults in ["", "pause=0@1us+1us"] {
        let stats = exchange(stage(model(), 3, faults, 1), 3, 100, 8);
        assert_eq!((stats.packets, stats.retransmissions), (600, 0), "{faults}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let digest = |seed| {
        let mut stage = stage(model(), 3, "drop=0.3,dup=0.2,reorder=8", seed);
        let mut traffic = Traffic::default();
        stage.run(|rank| {
            traffic.hear(rank);
            traffic.send(rank, (rank.me + 1) % 3, 100, 8);
            None
        });
        stage.cluster.digest()
    };
    assert_eq!(digest(8), digest(8));
    assert_ne!(digest(8), digest(9));
}

/// Returns how many messages rank 0 got from each of 64 peers within 5 ms.
fn flood(faults: &str, body: usize, seed: u64) -> Vec<u64> {
    let mut stage = stage(model(), 65, faults, seed);
    let mut traffic = Traffic::default();
    stage.run(|rank| {
        if rank.now() > 5_000_000 {
            rank.heard.clear();
            return None;
        }
        traffic.hear(rank);
        if rank.me > 0 {
            traffic.send(rank, 0, u64::MAX, body);
        }
        None
    });
    (1..65)
        .map(|from| traffic.heard.get(&(from, 0)).copied().unwrap_or(0))
        .collect()
}

/// Returns Jain's fairness index, which is 1 if all shares are equal.
fn fairness(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn sixty_four_senders_share_two_slots_at_half_of_the_full_speed_or_more() {
    for (seed, body) in seeds(&[1, 2])
        .into_iter()
        .flat_map(|seed| [(seed, 8), (seed, 4096)])
    {
        let unlimited: u64 = flood("", body, seed).iter().sum();
        let shares = flood("slots=2", body, seed);
        let goodput = shares.iter().sum::<u64>() as f64 / unlimited as f64;
        let fairness = fairness(&shares);
        println!(
            "seed {seed}, {body} bytes: goodput {goodput:.3} of {unlimited}, fairness {fairness:.4}"
        );
        assert!(fairness >= 0.9 && goodput >= 0.5);
    }
}

#[test]
fn a_flood_into_two_slots_arrives_whole_even_with_loss() {
    for faults in ["slots=2", "slots=2,drop=0.2,dup=0.1"] {
        let mut stage = stage(model(), 65, faults, 3);
        let mut traffic = Traffic::default();
        stage.run(|rank| {
            traffic.hear(rank);
            if rank.me > 0 {
                traffic.send(rank, 0, 30, 8);
            }
            None
        });
        assert!(traffic.all_heard(30), "{faults}: {:?}", traffic.heard);
        check_that_nothing_is_left(&stage.cluster);
    }
}

#[test]
fn a_rail_that_dies_takes_nothing_with_it() {
    let mut model = model();
    model.nic.rails = 2;
    let stats = exchange(stage(model, 4, "kill-rail=1@5us", 1), 4, 100, 1000);
    assert!(stats.drops > 0 && stats.retransmissions > 0, "{stats:?}");
}

/// Has ranks 0 and 1 send to each other every 100 µs for 10 ms. Returns which rank was notified of which end, and when in µs.
fn lives_under(faults: &str) -> (Vec<(u32, Heard, u64)>, u64) {
    let mut stage = stage(model(), 2, faults, 1);
    let (mut said, mut messages) = (Vec::new(), 0);
    stage.run(|rank| {
        for heard in rank.heard.drain(..).collect::<Vec<_>>() {
            match heard {
                Heard::Message(..) => messages += 1,
                heard => said.push((rank.me, heard, rank.now() / 1000)),
            }
        }
        let down = said.iter().any(|(me, ..)| *me == rank.me);
        if rank.now() > 10_000_000 || down {
            return None;
        }
        rank.send(1 - rank.me, &[1; 8]);
        Some(rank.now() + 100_000)
    });
    (said, messages)
}

#[test]
fn a_short_partition_heals_and_a_long_one_ends_both_sides() {
    let (said, messages) = lives_under("partition=0|1@1ms+500us");
    assert_eq!((said, messages > 200), (Vec::new(), true), "{messages}");
    let (said, _) = lives_under("partition=0|1@1ms");
    let ended = |rank: u32| said.iter().find(|(me, ..)| *me == rank).expect("told");
    for rank in 0..2 {
        let (_, heard, at) = ended(rank);
        assert_eq!(*heard, Heard::Down(1 - rank, DownCause::Failed));
        // The model's detection interval is 1 ms.
        assert!((2000..=3000).contains(at), "at {at} us");
    }
}

#[test]
fn a_paused_rank_is_not_given_up_and_a_killed_rank_is() {
    for faults in [
        "pause=1@1ms+3ms",
        "pause=1@1ms+3ms,drop=0.3",
        "pause=1@1ms+3ms,slots=2",
    ] {
        let (said, messages) = lives_under(faults);
        assert_eq!(said, [], "{faults}");
        assert!(messages > 150, "{faults}: {messages}");
    }
    for faults in ["kill=1@1ms", "kill=1@1ms,drop=0.3", "kill=1@1ms,slots=1"] {
        let (said, _) = lives_under(faults);
        let [(0, Heard::Down(1, DownCause::Failed), at)] = said[..] else {
            panic!("{faults}: {said:?}")
        };
        assert!((1900..=3000).contains(&at), "{faults}: at {at} us");
    }
}

#[test]
fn datagrams_are_lost_doubled_and_overtaken_and_their_room_comes_back() {
    let faults = "drop=0.3,dup=0.1,reorder=16,corrupt=0.05";
    let mut stage = Stage::of(ClusterConfig {
        model: model(),
        faults: faults.parse().unwrap(),
        seed: 6,
        transport: Transport::Datagram,
        ..ClusterConfig::new(2)
    });
    let mut traffic = Traffic::default();
    stage.run(|rank| {
        traffic.send(rank, 1 - rank.me, 5000, 8);
        None
    });
    let stats = stage.cluster.stats();
    let heard: Vec<u64> = (0..2)
        .flat_map(|rank| stage.heard(rank).to_vec())
        .map(|heard| match heard {
            Heard::Message(_, body) => u64::from_le_bytes(body.try_into().unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = 10_000 - stats.drops + stats.duplicates;
    assert_eq!(heard.len() as u64, expected, "{stats:?}");
    assert!(stats.drops > 3000 && stats.duplicates > 500 && stats.corruptions > 300);
    assert!(heard.windows(2).any(|pair| pair[0] > pair[1] + 1));
    assert!(
        traffic.sent.values().all(|sent| *sent == 5000),
        "room was lost"
    );
    check_that_nothing_is_left(&stage.cluster);
}

#[test]
fn datagrams_that_find_no_slot_are_lost_and_a_rank_reaches_itself() {
    for (transport, all) in [(Transport::Datagram, false), (Transport::Reliable, true)] {
        let mut stage = Stage::of(ClusterConfig {
            model: model(),
            faults: "slots=2".parse().unwrap(),
            transport,
            ..ClusterConfig::new(2)
        });
        let mut traffic = Traffic::default();
        stage.run(|rank| {
            traffic.send(rank, 0, 50, 8);
            None
        });
        let from = |rank: u32| {
            let heard = stage.heard(0).iter();
            heard
                .filter(|heard| matches!(heard, Heard::Message(from, _) if *from == rank))
                .count()
        };
        let lost = usize::try_from(stage.cluster.stats().drops).unwrap();
        assert_eq!((from(0), from(1)), (50, 50 - lost));
        assert_eq!(lost == 0, all, "{lost}");
        check_that_nothing_is_left(&stage.cluster);
    }
}

/// Has all ranks send two numbers to all others at the same instant. Returns the statistics.
fn connect_all(ranks: u32, faults: &str, seed: u64) -> Stats {
    let all = |me| (0..ranks).filter(move |to| *to != me);
    let stage = stage(Model::preset("qdr").unwrap(), ranks, faults, seed);
    exchange_with(stage, all, 2, 8)
}

#[test]
fn ranks_that_all_connect_at_once_get_one_connection_for_each_pair() {
    for seed in seeds(&[1]) {
        println!("seed {seed}");
        let ranks: u32 = if cfg!(debug_assertions) { 96 } else { 256 };
        let stats = connect_all(ranks, "drop=0.2,dup=0.2", seed);
        println!("{stats:?}");
        let ends = u64::from(ranks) * u64::from(ranks - 1);
        assert_eq!((stats.connections, stats.queue_pairs), (ends, ends));
    }
}

/// A large job's number of ranks, each with as many peers as the test has time for. `benches/sim_connect` connects all pairs.
#[test]
fn four_thousand_ranks_that_connect_at_once_get_one_connection_for_each_pair() {
    let ranks = 4096;
    let peers: u32 = if cfg!(debug_assertions) { 8 } else { 64 };
    for seed in seeds(&[2]) {
        println!("seed {seed}");
        // Near and far peers. The relation is symmetric.
        let step = |number: u32| 1 + number * number;
        let steps = (0..peers / 2).flat_map(|number| [step(number), ranks - step(number)]);
        let steps: Vec<u32> = steps.collect();
        let stage = stage(
            Model::preset("qdr").unwrap(),
            ranks,
            "drop=0.2,dup=0.2",
            seed,
        );
        let peers_of = |me| steps.iter().map(move |step| (me + step) % ranks);
        let stats = exchange_with(stage, peers_of, 2, 8);
        println!("{stats:?}");
        let ends = u64::from(ranks) * u64::from(peers);
        assert_eq!((stats.connections, stats.queue_pairs), (ends, ends));
    }
}

/// Returns when the last of the first messages is received, in nanoseconds, if one rank of two sends, or both do.
fn first_contact(senders: u32) -> u64 {
    let mut model = Model::preset("qdr").unwrap();
    model.node.ranks = 1;
    let (mut stage, mut last) = (stage(model, 2, "", 1), 0);
    stage.run(|rank| {
        if rank.now() == 0 && rank.me < senders {
            rank.send(1 - rank.me, b"hello");
        }
        if rank.messages() > 0 {
            last = rank.now();
        }
        None
    });
    last
}

#[test]
fn a_first_message_waits_for_the_queue_pairs_of_both_sides() {
    let cost = Model::preset("qdr").unwrap().nic.connect_ns;
    // A rank that is asked makes its queue pair then; two ranks that ask each other make theirs at the same time.
    for (senders, creations) in [(1, 2), (2, 1)] {
        let last = first_contact(senders);
        let made = creations * cost;
        assert!(
            (made..made + 20_000).contains(&last),
            "{senders} senders: {last} ns"
        );
    }
}

/// Returns ranks on hardware with queue pairs, two ranks per node, with a limit of queue pairs per node.
fn scarce(ranks: u32, queue_pairs_max: u32, faults: &str, seed: u64) -> Stage {
    let mut model = Model::preset("qdr").unwrap();
    model.node.ranks = 2;
    Stage::of(ClusterConfig {
        model,
        faults: faults.parse().unwrap(),
        seed,
        scheme: ConnectPolicy::OnDemand,
        queue_pairs_max,
        ..ClusterConfig::new(ranks)
    })
}

#[test]
fn all_pairs_speak_though_only_a_few_can_be_connected_at_a_time() {
    let others = |ranks: u32| move |me| (0..ranks).filter(move |to| *to != me);
    for seed in seeds(&[1, 2, 3]) {
        for (ranks, max, faults) in [
            (24, 2, ""),
            (24, 4, ""),
            (24, 10, ""),
            (24, 10, "drop=0.2,dup=0.2,delay=0.2:1ms"),
            (4, 4, "drop=0.2,dup=0.2,delay=0.3:20ms"),
        ] {
            println!("seed {seed}: {ranks} ranks, {max} for each node, {faults}");
            let stats = exchange_with(scarce(ranks, max, faults, seed), others(ranks), 20, 8);
            println!("{stats:?}");
            // All pairs except those within a node.
            let pairs = u64::from(ranks * (ranks - 2));
            let most = u64::from((max / 2).max(2) * ranks);
            assert!(stats.queue_pairs >= pairs && stats.evictions >= (pairs - most) / 2);
        }
    }
}

/// Exchanges numbers between all ranks while rank 3 is killed. From 20 ms on each rank has more peers than before. The other
/// ranks must receive all of each other's messages.
fn survive(faults: &str, seed: u64) {
    let (ranks, count, killed) = (8_u32, 20, 3);
    let mut stage = scarce(ranks, 4, faults, seed);
    let mut traffic = Traffic::default();
    stage.run(|rank| {
        let is_end = |heard: &Heard| matches!(heard, Heard::Down(dead, _) if *dead == killed);
        rank.heard.retain(|heard| !is_end(heard));
        traffic.hear(rank);
        let (me, later) = (rank.me, rank.now() >= 20_000_000);
        for to in (0..ranks).filter(|to| *to != me && (later || (to + 2) % ranks == me)) {
            traffic.send(rank, to, count, 8);
        }
        (!later).then_some(20_000_000)
    });
    let survivors = || (0..ranks).filter(|rank| *rank != killed);
    for (from, to) in survivors().flat_map(|from| survivors().map(move |to| (from, to))) {
        let heard = traffic.heard.get(&(from, to)).copied().unwrap_or(0);
        assert!(from == to || heard == count, "{heard} from {from} at {to}");
    }
}

#[test]
fn a_rank_killed_with_all_its_queue_pairs_in_use_stops_no_peer() {
    for seed in seeds(&[1]) {
        // Also kill it between the moment when its host posts to a new peer and the moment when the message leaves.
        let close = (0..40).map(|step| 20_000_000 + step * 100);
        for at in (0..40).map(|step| step * 1_000_000).chain(close) {
            println!("seed {seed}: at {at} ns");
            survive(&format!("kill=3@{at}ns"), seed);
        }
    }
}

#[test]
fn what_a_dead_peer_never_took_does_not_keep_its_connection() {
    for seed in seeds(&[1]) {
        for at in (0..60).step_by(2) {
            println!("seed {seed}: at {at} ms");
            survive(&format!("kill=3@{at}ms,drop=0.01"), seed);
        }
    }
}

#[test]
fn neighbors_keep_their_connections_where_these_are_few() {
    let neighbors = |me: u32| [(me + 31) % 32, (me + 1) % 32].into_iter();
    let stats = exchange_with(scarce(32, 4, "", 1), neighbors, 100, 8);
    assert_eq!((stats.queue_pairs, stats.evictions), (32, 0));
}

#[test]
fn what_is_connected_at_the_start_waits_for_both_ends_and_for_nothing_else() {
    let mut model = Model::preset("qdr").unwrap();
    model.node.ranks = 2;
    let cost = model.nic.connect_ns;
    let config = |connect_threads, queue_pairs_max| ClusterConfig {
        model: model.clone(),
        scheme: ConnectPolicy::AllToAll,
        connect_threads,
        queue_pairs_max,
        ..ClusterConfig::new(4)
    };
    for threads in [1, 3] {
        let (mut stage, mut last) = (Stage::of(config(threads, 6)), [0; 4]);
        stage.run(|rank| {
            if rank.now() == 0 && rank.me < 2 {
                rank.send(rank.me ^ 2, b"hello");
                rank.send(rank.me ^ 2, b"again");
            }
            if rank.messages() == 2 {
                last[rank.me as usize] = rank.now();
            }
            None
        });
        // Each rank makes two queue pairs, and the second rank of a node starts after the first.
        for (rank, turn) in [(2, 1), (3, 2)] {
            let made = 2 * turn * cost / u64::from(threads);
            assert!((made..made + 20_000).contains(&last[rank]), "{last:?}");
        }
        let hello = |from| [b"hello", b"again"].map(|body| Heard::Message(from, body.to_vec()));
        assert_eq!(
            (stage.heard(2), stage.heard(3)),
            (&hello(0)[..], &hello(1)[..])
        );
        assert_eq!(
            (
                stage.cluster.stats().queue_pairs,
                stage.cluster.stats().connections
            ),
            (8, 0)
        );
    }
    for (config, field) in [
        (config(1, 5), "queue_pairs_max"),
        (config(0, 6), "connect_threads"),
    ] {
        assert_eq!(Cluster::new(config).unwrap_err().field(), field);
    }
}

/// Covers all pairs of ranks, with few queue pairs per node, and with short messages that need none.
#[test]
fn short_messages_wait_for_no_queue_pairs_and_keep_their_order_when_there_are_some() {
    let hybrid = |ranks, queue_pairs_max, faults: &str, seed| {
        Stage::of(ClusterConfig {
            model: Model::preset("qdr").unwrap(),
            faults: faults.parse().unwrap(),
            seed,
            scheme: ConnectPolicy::Hybrid,
            queue_pairs_max,
            ..ClusterConfig::new(ranks)
        })
    };
    let others = |me| (0..6).filter(move |to| *to != me);
    // A few messages are not worth a connection.
    let few = exchange_with(hybrid(6, u32::MAX, "", 1), others, 15, 8);
    assert_eq!((few.queue_pairs, few.connections), (0, 0));
    assert!(few.time_ns < Model::preset("qdr").unwrap().nic.connect_ns);
    for seed in seeds(&[1, 2, 3, 4]) {
        for faults in ["", "drop=0.2,dup=0.2,delay=0.2:1ms"] {
            println!("seed {seed}: {faults}");
            for len in [8, 3000, 60_000] {
                let many = exchange_with(hybrid(6, u32::MAX, faults, seed), others, 200, len);
                assert_eq!((many.connections, many.evictions), (30, 0), "{len} bytes");
            }
            let scarce = exchange_with(hybrid(6, 2, faults, seed), others, 200, 8);
            assert!(scarce.connections > 0, "{scarce:?}");
        }
    }
}

#[test]
fn connections_under_faults_lose_and_reorder_nothing() {
    for seed in seeds(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]) {
        println!("seed {seed}");
        connect_all(2, "drop=0.4,dup=0.4,delay=0.3:20ms", seed);
        connect_all(4, "drop=0.2,dup=0.2,corrupt=0.2,slots=1", seed);
    }
}

#[test]
fn a_peer_that_cannot_be_reached_is_down_and_what_waited_is_dropped() {
    let mut model = Model::preset("qdr").unwrap();
    model.node.ranks = 1;
    let mut stage = stage(model, 2, "partition=0|1", 1);
    stage.run(|rank| {
        if rank.me == 0 && rank.now() == 0 {
            rank.send(1, b"nobody");
        }
        None
    });
    assert_eq!(stage.heard(0), [Heard::Down(1, DownCause::Failed)]);
    assert!(
        (20..40).contains(&(stage.now() / 1_000_000_000)),
        "after 30 s"
    );
    check_that_nothing_is_left(&stage.cluster);
}

#[test]
fn a_plan_that_names_a_missing_rank_or_rail_is_refused() {
    let refused = |faults: &str| {
        let config = ClusterConfig {
            faults: faults.parse().unwrap(),
            ..ClusterConfig::new(4)
        };
        Cluster::new(config).expect_err("refused").to_string()
    };
    assert_eq!(
        refused("kill=4@1us"),
        "faults.kill.rank: rank 4 does not exist on a cluster of 4: give 0 to 3"
    );
    assert_eq!(
        refused("kill-rail=1@1us"),
        "faults.kill-rail.rail: rail 1 does not exist on a cluster of 1: give 0 to 0"
    );
}
