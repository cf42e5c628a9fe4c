//! When things happen, against closed formulas.

use super::stage::Stage;
use crate::sim::{HostModel, Model, NetworkModel, NicModel, NodeModel};

/// Every constant differs, so that none can stand for another.
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

/// LogGP, from the start of the post to the end of the receiver's turn of progress, in picoseconds.
fn one_way(model: &Model, len: u64, asleep: bool) -> u64 {
    let (host, nic, network) = (&model.host, &model.nic, &model.network);
    let wake = if asleep { host.wake_ns } else { 0 };
    let fixed = host.send_ns + nic.command_ns + network.latency_ns + network.hop_ns;
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
