//! Tests of when things happen, compared with closed formulas.

use super::stage::{Heard, Stage};
use crate::{
    driver::{CommandToken, Driver, DriverCommand, WorldRank},
    sim::{HostModel, Model, NetworkModel, NicModel, NodeModel, Noise, Topology},
};

/// Returns a model in which every constant differs, so that none can be mistaken for another.
pub(super) fn odd_model() -> Model {
    Model {
        name: "odd".to_owned(),
        host: HostModel {
            send_ns: 101,
            recv_ns: 203,
            detect_ns: 37,
            wake_ns: 5000,
            copy_byte_ps: 30,
            ..HostModel::default()
        },
        nic: NicModel {
            command_ns: 307,
            gap_ns: 53,
            byte_ps: 80,
            match_ns: 29,
            ..NicModel::default()
        },
        network: NetworkModel {
            latency_ns: 701,
            hop_ns: 109,
            failure_ns: 1_000_000,
            ..NetworkModel::default()
        },
        node: NodeModel {
            latency_ns: 211,
            gap_ns: 17,
            byte_ps: 20,
            ..NodeModel::default()
        },
        ..Model::default()
    }
}

/// Returns the LogGP time from the start of the post to the end of the receiver's turn of progress, in picoseconds.
fn one_way(model: &Model, len: u64, asleep: bool) -> u64 {
    let (host, nic, network) = (&model.host, &model.nic, &model.network);
    let wake = if asleep { host.wake_ns } else { 0 };
    let way = network.latency_ns + network.hop_ns + nic.match_ns;
    let fixed = host.send_ns + nic.command_ns + way;
    let at_the_end = host.detect_ns + wake + host.recv_ns;
    1000 * (fixed + at_the_end) + len * (nic.byte_ps + 2 * host.copy_byte_ps)
}

#[test]
fn ping_pong_takes_the_time_of_the_formula() {
    const HITS: u64 = 100;
    for len in [8, 4096] {
        let mut stage = Stage::new(odd_model(), 2);
        let (ball, mut hits) = (vec![7; len], 0);
        stage.run(|rank| {
            let serves = rank.me == 0 && hits == 0;
            if serves || rank.heard.pop().is_some() && hits < HITS {
                rank.send(1 - rank.me, &ball);
                hits += 1;
            }
            None
        });
        let expected = HITS * one_way(&odd_model(), len as u64, true) / 1000;
        assert_eq!(stage.now(), expected, "{len} bytes");
    }
}

#[test]
fn a_message_takes_the_time_of_the_formula() {
    for polls in [false, true] {
        for body in [vec![], vec![1; 8], vec![1; 1000], vec![1; 64 << 10]] {
            let mut model = odd_model();
            model.host.polls = polls;
            let expected = one_way(&model, body.len() as u64, !polls) / 1000;
            let mut stage = Stage::new(model, 2);
            let mut heard_at = 0;
            stage.run(|rank| {
                match rank.me {
                    0 if rank.now() == 0 => rank.send(1, &body),
                    _ if rank.messages() > 0 => heard_at = rank.now(),
                    _ => {}
                }
                None
            });
            assert_eq!(heard_at, expected, "{} bytes, polls: {polls}", body.len());
        }
    }
}

#[test]
fn an_agent_that_sleeps_while_its_application_computes_has_to_be_woken() {
    for polls in [false, true] {
        let mut model = odd_model();
        (model.host.polls, model.host.agent) = (polls, true);
        let expected = one_way(&model, 8, true) / 1000;
        let mut stage = Stage::new(model, 2);
        let (mut computes, mut heard_at) = (false, None);
        stage.run(|rank| {
            match rank.me {
                0 if rank.now() == 0 => rank.send(1, &[1; 8]),
                1 if !std::mem::replace(&mut computes, true) => {
                    rank.cluster.compute(1, std::time::Duration::from_millis(1));
                }
                1 if rank.messages() > 0 && heard_at.is_none() => {
                    assert!(rank.computing, "the agent takes it");
                    heard_at = Some(rank.now());
                }
                _ => {}
            }
            None
        });
        assert_eq!(heard_at, Some(expected), "polls: {polls}");
    }
}

/// Returns when the last byte of all flows is taken. Each flow is 64 messages of 64 KiB, for which the queues have room.
fn flows_end_at(model: &Model, ranks: u32, flows: &[(u32, u32)]) -> u64 {
    let mut stage = Stage::new(model.clone(), ranks);
    let (mut started, mut last) = (vec![false; ranks as usize], 0);
    stage.run(|rank| {
        let me = rank.me;
        let out = flows.iter().filter(|(from, _)| *from == me);
        if !std::mem::replace(&mut started[rank.me as usize], true) {
            out.for_each(|(_, to)| (0..MESSAGES).for_each(|_| rank.send(*to, &[1; 64 << 10])));
        }
        if rank.messages() > 0 {
            last = last.max(rank.now());
        }
        None
    });
    last
}

const MESSAGES: u64 = 64;

/// Returns a ring of eight nodes, in which only links and adapters cost time.
fn ring() -> Model {
    let mut model = Model::default();
    model.network.topology = Topology::Torus { size: [8, 1, 1] };
    (model.nic.byte_ps, model.network.link_byte_ps) = (100, 100);
    model.nic.queue_bytes = 1 << 30;
    model
}

#[test]
fn two_flows_over_one_link_take_twice_the_time_and_apart_they_do_not() {
    let model = ring();
    let bytes = MESSAGES << 16;
    let transfer = bytes / 10;
    let alone = flows_end_at(&model, 8, &[(0, 2)]);
    assert_eq!(alone, transfer + 1000);
    assert_eq!(flows_end_at(&model, 8, &[(0, 1), (2, 3)]), alone);
    assert_eq!(
        flows_end_at(&model, 8, &[(0, 2), (2, 0)]),
        alone,
        "a link has two directions"
    );
    // Both flows cross the link from node 1 to node 2.
    assert_eq!(
        flows_end_at(&model, 8, &[(0, 2), (1, 3)]),
        2 * transfer + 1000
    );
    // Both flows end at node 2's adapter, from two sides.
    assert_eq!(
        flows_end_at(&model, 8, &[(1, 2), (3, 2)]),
        2 * transfer + 1000
    );
}

#[test]
fn an_incast_takes_the_receivers_gap_for_each_message() {
    let mut model = Model::default();
    model.nic.gap_ns = 50;
    let mut stage = Stage::new(model, 65);
    stage.run(|rank| {
        if rank.me > 0 && rank.now() == 0 {
            rank.send(0, b"8 bytes!");
        }
        None
    });
    assert_eq!(stage.heard(0).len(), 64);
    assert_eq!(stage.now(), 1000 + 63 * 50);
}

#[test]
fn ranks_of_a_node_talk_by_the_nodes_constants() {
    let mut model = odd_model();
    model.node.ranks = 2;
    let inside = |model: &Model, len: u64| {
        let fixed = model.host.send_ns + model.nic.command_ns + model.node.latency_ns;
        let at_the_end = model.host.detect_ns + model.host.wake_ns + model.host.recv_ns;
        fixed + at_the_end + len * (model.node.byte_ps + 2 * model.host.copy_byte_ps) / 1000
    };
    for (to, expected) in [
        (1, inside(&model, 1000)),
        (2, one_way(&model, 1000, true) / 1000),
    ] {
        let mut stage = Stage::new(model.clone(), 4);
        stage.run(|rank| {
            if rank.me == 0 && rank.now() == 0 {
                rank.send(to, &[1; 1000]);
            }
            None
        });
        assert_eq!(stage.now(), expected, "to rank {to}");
    }
}

#[test]
fn within_a_node_the_origins_processor_copies_what_is_put_or_got() {
    const LEN: usize = 64 << 10;
    let mut model = odd_model();
    (model.node.ranks, model.node.access_ns) = (2, 83);
    model.host.copy_byte_ps = 0;
    let (host, nic, node) = (&model.host, &model.nic, &model.node);
    let copies = LEN as u64 * node.byte_ps / 1000;
    let posts = host.send_ns + node.access_ns;
    let mut stage = Stage::new(model.clone(), 2);
    let target = stage.ranks[1].as_mut().unwrap();
    let region = target.driver.allocate(LEN).unwrap();
    let key = target.driver.expose(region.range()).unwrap();
    let source = target.driver.allocate(LEN).unwrap();
    let (from, to, into, token) = (source.range(), WorldRank(1), key, CommandToken(9));
    let (mut posted, mut done_at) = (false, 0);
    stage.run(|rank| {
        if rank.me == 0 && !std::mem::replace(&mut posted, true) {
            rank.post(DriverCommand::Put {
                to,
                from,
                into,
                count: None,
                token,
            });
            assert_eq!(rank.now(), posts + copies, "and then it is free again");
        } else if rank.me == 0 && rank.heard.contains(&Heard::Complete(9)) {
            done_at = rank.now();
        }
        None
    });
    // The copy is the transfer, so its time counts once.
    let way = nic.command_ns + 2 * node.latency_ns;
    let told = host.detect_ns + host.wake_ns + host.recv_ns;
    assert_eq!(done_at, posts + copies + way + told);
    for is_put in [true, false] {
        let (within, _) = one_sided_ends_at(&model, LEN, is_put);
        assert!(within >= posts + copies, "put: {is_put}, {within}");
    }
}

/// Returns when a put or a get of `len` bytes between ranks 0 and 1 is complete at rank 0, and when short messages that rank 0
/// sends to rank 1 every 10 µs meanwhile are taken.
fn one_sided_ends_at(model: &Model, len: usize, is_put: bool) -> (u64, Vec<u64>) {
    let mut stage = Stage::new(model.clone(), 2);
    let target = stage.ranks[1].as_mut().unwrap();
    let region = target.driver.allocate(len).unwrap();
    let key = target.driver.expose(region.range().slice(0, len)).unwrap();
    let source = target.driver.allocate(len).unwrap();
    let local = source.range().slice(0, len);
    let (to, token) = (WorldRank(1), CommandToken(9));
    let (mut posted, mut done_at, mut heard_at) = (false, None, Vec::new());
    stage.run(|rank| {
        if rank.me == 1 {
            (heard_at.len()..rank.messages()).for_each(|_| heard_at.push(rank.now()));
            return None;
        }
        if !std::mem::replace(&mut posted, true) {
            rank.post(if is_put {
                let (from, into) = (local, key);
                DriverCommand::Put {
                    to,
                    from,
                    into,
                    count: None,
                    token,
                }
            } else {
                let (from, into) = (key, local);
                DriverCommand::Get {
                    to,
                    from,
                    into,
                    token,
                }
            });
        } else if rank.heard.contains(&Heard::Complete(9)) {
            let now = rank.now();
            done_at = done_at.or(Some(now));
        } else if rank.now() >= 10_000 {
            rank.send(1, b"me too");
        }
        done_at.is_none().then_some(rank.now() + 10_000)
    });
    (done_at.unwrap(), heard_at)
}

#[test]
fn puts_and_gets_take_the_time_of_the_formula() {
    let model = odd_model();
    let (host, nic) = (&model.host, &model.nic);
    let distance = model.network.latency_ns + model.network.hop_ns + nic.match_ns;
    let ends = host.send_ns + host.detect_ns + host.wake_ns + host.recv_ns;
    for len in [8_usize, 4096] {
        let transfer = len as u64 * nic.byte_ps / 1000;
        let put = ends + nic.command_ns + 2 * distance + transfer;
        assert_eq!(
            one_sided_ends_at(&model, len, true).0,
            put,
            "a put of {len} bytes"
        );
        let get = ends + 2 * nic.command_ns + 2 * distance + transfer;
        assert_eq!(
            one_sided_ends_at(&model, len, false).0,
            get,
            "a get of {len} bytes"
        );
    }
}

#[test]
fn bulk_uses_all_rails() {
    let mut model = Model::default();
    model.nic.byte_ps = 80;
    for rails in 1..=8 {
        model.nic.rails = rails;
        for is_put in [true, false] {
            let (ends, _) = one_sided_ends_at(&model, 64 << 20, is_put);
            let ideal = (64 << 20) * 80 / 1000 / u64::from(rails) + 2000;
            assert!(
                (ideal..ideal + ideal / 50).contains(&ends),
                "{rails} rails: {ends} against {ideal}"
            );
        }
    }
}

#[test]
fn short_messages_wait_for_one_chunk_of_bulk_at_most() {
    let mut model = Model::default();
    model.nic.byte_ps = 80;
    let (ends, heard) = one_sided_ends_at(&model, 16 << 20, true);
    let chunk = (64 << 10) * 80 / 1000;
    assert!(heard.len() as u64 > ends / 12_000, "{heard:?}");
    for (nth, at) in (1..).zip(&heard) {
        // Message number n was sent after n times 10 µs, plus some turns of a nanosecond.
        let sent = nth * 10_000;
        assert!(
            (sent + 1000..sent + 1100 + chunk).contains(at),
            "{nth}: {at}"
        );
    }
}

#[test]
fn noise_makes_turns_and_computations_longer() {
    let computed = |noise| {
        let mut model = Model::default();
        model.host.noise = noise;
        let mut stage = Stage::new(model, 1);
        let mut first = true;
        stage.run(|rank| {
            if std::mem::replace(&mut first, false) {
                rank.cluster
                    .compute(0, std::time::Duration::from_millis(10));
            }
            None
        });
        stage.now()
    };
    let (every_ns, detour_ns) = (100_000, 10_000);
    assert_eq!(computed(Noise::None), 10_000_001);
    let fixed = computed(Noise::Fixed {
        every_ns,
        detour_ns,
    });
    // One ninth is added, give or take one detour.
    assert!((11_100_000..11_122_000).contains(&fixed), "{fixed}");
    assert!(
        computed(Noise::Exponential {
            every_ns,
            detour_ns
        }) > 10_500_000
    );
}
