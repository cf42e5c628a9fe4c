//! Tests of turns: which rank gets one and when, and what happens to ranks that compute, pause, close and die.

use std::time::Duration;

use super::{
    stage::{Heard, Rank, Stage},
    times::odd_model,
};
use crate::{
    driver::{AtomicOp, CommandToken, DownCause, Driver, DriverCommand, TaskLists, WorldRank},
    memory::MemoryRegion,
    offload::{CounterCondition, LocalCounters, PutTarget, TaskAction, TriggeredTask},
    sim::{Cluster, ClusterConfig, ClusterStep, Model},
};

/// Returns what rank 0 records in its turns while each other rank sends to it once, at `sends_at` (in nanoseconds): when it had a
/// turn, whether for the agent, and what it received.
fn turns_while_computing(agent: bool, sends_at: u64) -> Vec<(u64, bool, usize)> {
    let mut model = Model::default();
    model.host.agent = agent;
    let mut stage = Stage::new(model, 2);
    let mut turns = Vec::new();
    stage.run(|rank| {
        if rank.me == 1 {
            if rank.now() >= sends_at {
                rank.send(0, b"look");
                return None;
            }
            return Some(sends_at);
        }
        if turns.is_empty() {
            rank.cluster.compute(0, Duration::from_micros(100));
        }
        turns.push((rank.now(), rank.computing, rank.messages()));
        None
    });
    turns
}

#[test]
fn without_an_agent_an_arrival_waits_for_the_end_of_the_computation() {
    let turns = turns_while_computing(false, 20_000);
    assert_eq!(turns, [(0, false, 0), (100_001, false, 1)]);
}

#[test]
fn an_agent_makes_a_turn_at_the_arrival_and_the_application_at_the_end() {
    let turns = turns_while_computing(true, 20_000);
    assert_eq!(
        turns,
        [(0, false, 0), (21_000, true, 1), (100_001, false, 1)]
    );
}

#[test]
fn an_adapter_that_interrupts_makes_a_computation_longer() {
    let end = |interrupts: bool| {
        let mut model = Model::default();
        (model.host.interrupts, model.host.wake_ns) = (interrupts, 2000);
        let mut stage = Stage::new(model, 2);
        let (mut begun, mut ended) = (false, 0);
        stage.run(|rank| {
            if rank.me == 1 && !std::mem::replace(&mut begun, true) {
                (0..5).for_each(|_| rank.send(0, b"look"));
            }
            if rank.me == 0 && rank.now() == 0 {
                rank.cluster.compute(0, Duration::from_micros(100));
            } else if rank.me == 0 {
                ended = rank.now();
                assert_eq!(rank.messages(), 5);
            }
            None
        });
        ended
    };
    assert_eq!(end(true), end(false) + 5 * 2000);
}

#[test]
fn a_deadline_is_kept_and_the_latest_one_counts() {
    let cluster = Cluster::new(ClusterConfig::new(1)).unwrap();
    let _driver = cluster.driver(0);
    cluster.wake(0);
    let turn = ClusterStep::Turn {
        rank: 0,
        computing: false,
    };
    assert_eq!(cluster.advance(), turn);
    cluster.end_turn(0, Some(500));
    cluster.wake(0);
    assert_eq!(cluster.advance(), turn);
    cluster.end_turn(0, Some(900));
    assert_eq!(cluster.advance(), turn);
    assert_eq!(
        cluster.clock().load(std::sync::atomic::Ordering::Relaxed),
        900
    );
    cluster.end_turn(0, None);
    assert_eq!(cluster.advance(), ClusterStep::Quiet);
}

#[test]
fn a_rank_that_wakes_itself_in_its_turn_gets_another_and_time_passes() {
    let mut turns = Vec::new();
    Stage::new(Model::default(), 1).run(|rank| {
        turns.push(rank.now());
        if turns.len() < 4 {
            rank.cluster.wake(0);
        }
        None
    });
    assert_eq!(turns, [0, 1, 2, 3]);
}

#[test]
fn a_paused_host_hears_late_and_loses_nothing() {
    let mut stage = Stage::new(Model::default(), 2);
    let mut heard_at = None;
    let mut first = true;
    stage.run(|rank| {
        if std::mem::replace(&mut first, false) {
            rank.send(1, b"patience");
            rank.cluster.pause(1, Duration::from_micros(300));
        }
        if rank.messages() > 0 {
            heard_at = Some(rank.now());
        }
        None
    });
    assert_eq!(heard_at, Some(300_000));
}

#[test]
fn a_killed_rank_makes_no_more_turns_and_everybody_is_told_once() {
    let mut stage = Stage::new(odd_model(), 4);
    let mut turns_of_dead = 0;
    stage.run(|rank| {
        match rank.me {
            0 if rank.now() == 0 => rank.send(1, b"to the living"),
            1 if rank.messages() == 1 && rank.cluster.is_alive(0) => {
                rank.cluster.kill(0);
                rank.send(0, b"to the dead");
            }
            _ => {}
        }
        turns_of_dead += usize::from(!rank.cluster.is_alive(rank.me));
        None
    });
    assert_eq!(turns_of_dead, 0);
    for observer in 1..4 {
        let told = stage
            .heard(observer)
            .iter()
            .filter(|heard| matches!(heard, Heard::Down(..)));
        assert!(
            told.eq([&Heard::Down(0, DownCause::Failed)]),
            "rank {observer}"
        );
    }
    assert!(stage.heard(0).is_empty());
}

#[test]
fn a_rank_that_closes_is_reported_to_those_it_had_to_do_with() {
    let mut stage = Stage::new(odd_model(), 3);
    let greet = |rank: &mut Rank| {
        if rank.me == 0 && rank.now() == 0 {
            rank.send(1, b"hello");
        }
        None
    };
    stage.run(greet);
    stage.close(0);
    stage.go_on(|_| None);
    assert_eq!(
        stage.heard(1).last(),
        Some(&Heard::Down(0, DownCause::Finished))
    );
    assert!(stage.heard(2).is_empty());
    // A rank without contact learns of the end when it tries to communicate.
    let mut asked = false;
    stage.run(|rank| {
        if rank.me == 2 && !std::mem::replace(&mut asked, true) {
            rank.send(0, b"anybody?");
        }
        None
    });
    assert_eq!(stage.heard(2), [Heard::Down(0, DownCause::Finished)]);
}

/// Has all ranks send to all others, some of them at the same time.
fn chatter(seed: u64) -> (u64, u64) {
    let config = ClusterConfig {
        model: odd_model(),
        seed,
        ..ClusterConfig::new(5)
    };
    let mut stage = Stage::of(config);
    stage.run(|rank| {
        if rank.messages() < 20 {
            (0..5).for_each(|to| rank.send(to, &[1; 100]));
        }
        None
    });
    (stage.cluster.digest(), stage.cluster.stats().events)
}

#[test]
fn the_same_program_and_seed_give_the_same_digest() {
    assert_eq!(chatter(3), chatter(3));
    assert_ne!(chatter(3).0, chatter(4).0);
}

#[test]
fn an_impossible_number_of_ranks_is_refused_with_its_field() {
    let error = Cluster::new(ClusterConfig::new(0)).unwrap_err();
    assert_eq!(error.field(), "ranks");
    let error = Cluster::new(ClusterConfig::new(u32::MAX)).unwrap_err();
    assert!(
        error.to_string().starts_with("ranks: 4294967295 take"),
        "{error}"
    );
}

/// Has rank 0 put 1 MiB into memory of rank 1 and get the same amount from it. After 1 µs something happens to one of them.
/// Returns the stage, and rank 1's memory, which the put fills with ones.
fn interrupted(happens: impl Fn(&Cluster)) -> (Stage, MemoryRegion) {
    const LEN: usize = 1 << 20;
    let mut model = odd_model();
    model.network.failure_ns = 1000;
    let mut stage = Stage::new(model, 3);
    let target = stage.ranks[1].as_mut().unwrap();
    let region = target.driver.allocate(LEN).unwrap();
    let key = target.driver.expose(region.range()).unwrap();
    let origin = stage.ranks[0]
        .as_mut()
        .unwrap()
        .driver
        .allocate(2 * LEN)
        .unwrap();
    origin.write(0, &[1; LEN]);
    let (source, sink) = (origin.range().slice(0, LEN), origin.range().slice(LEN, LEN));
    let (mut posted, mut done) = (false, false);
    stage.run(|rank| match rank.me {
        0 if !std::mem::replace(&mut posted, true) => {
            let (to, into, from) = (WorldRank(1), key, key);
            rank.post(DriverCommand::Put {
                to,
                from: source,
                into,
                count: None,
                token: CommandToken(1),
            });
            rank.post(DriverCommand::Get {
                to,
                from,
                into: sink,
                token: CommandToken(2),
            });
            None
        }
        2 if rank.now() < 1000 => Some(1000),
        2 if !std::mem::replace(&mut done, true) => {
            happens(&rank.cluster);
            None
        }
        _ => None,
    });
    drop(origin);
    (stage, region)
}

fn first_byte(region: &MemoryRegion) -> u8 {
    let mut byte = [0];
    region.read(0, &mut byte);
    byte[0]
}

#[test]
fn commands_that_nothing_interrupts_complete() {
    let (stage, region) = interrupted(|_| {});
    assert_eq!(stage.heard(0), [Heard::Complete(1), Heard::Complete(2)]);
    assert_eq!(first_byte(&region), 1);
}

#[test]
fn what_a_killed_rank_takes_back_or_watches_is_nothing_any_more() {
    let mut stage = Stage::new(Model::default(), 1);
    let rank = stage.ranks[0].as_mut().unwrap();
    let counters = LocalCounters::for_tasks(&mut rank.driver, 2).unwrap();
    let (counter, token) = (counters.at(0), CommandToken(7));
    let task = TriggeredTask {
        condition: CounterCondition {
            counter: counter.clone(),
            threshold: 0,
        },
        second_condition: None,
        action: TaskAction::Count {
            to: WorldRank(0),
            counter: counters.remote().at(1).unwrap(),
            by: 1,
        },
    };
    assert!(rank.driver.post_list(&[task], token));
    // Its adapter has the task in flight now.
    stage.cluster.kill(0);
    let rank = stage.ranks[0].as_mut().unwrap();
    rank.driver.cancel_lists(token);
    rank.post(DriverCommand::Watch {
        counter: &counter,
        threshold: 1,
        token,
    });
    assert_eq!(stage.cluster.advance(), ClusterStep::Quiet);
    let world = stage.cluster.lock();
    assert!(world.hosts[0].lists.is_none() && world.hosts[0].watches.is_none());
    drop(world);
    assert_eq!(counters.at(1).value(), 0);
}

#[test]
fn commands_for_a_rank_that_is_killed_fail_and_touch_nothing() {
    let (stage, region) = interrupted(|cluster| cluster.kill(1));
    let mut heard = stage.heard(0).to_vec();
    heard.sort_by_key(|heard| matches!(heard, Heard::Down(..)));
    let down = Heard::Down(1, DownCause::Failed);
    assert_eq!(heard, [Heard::Failed(1), Heard::Failed(2), down]);
    assert_eq!(first_byte(&region), 0);
}

#[test]
fn commands_of_a_rank_that_ends_are_forgotten() {
    let (stage, region) = interrupted(|cluster| cluster.kill(0));
    assert!(stage.heard(0).is_empty());
    assert_eq!(first_byte(&region), 0);
}

#[test]
fn of_a_list_with_several_puts_to_a_killed_rank_its_owner_hears_once() {
    const LEN: usize = 1 << 20;
    let mut stage = Stage::new(odd_model(), 3);
    let target = stage.ranks[1].as_mut().unwrap();
    let region = target.driver.allocate(LEN).unwrap();
    let key = target.driver.expose(region.range()).unwrap();
    let origin = stage.ranks[0].as_mut().unwrap();
    let source = origin.driver.allocate(LEN).unwrap();
    let counters = LocalCounters::for_tasks(&mut origin.driver, 1).unwrap();
    let put = || TriggeredTask {
        condition: CounterCondition {
            counter: counters.at(0).clone(),
            threshold: 0,
        },
        second_condition: None,
        action: TaskAction::Put {
            to: WorldRank(1),
            from: source.range(),
            target: PutTarget::Known {
                into: key,
                count: None,
            },
            done: None,
        },
    };
    assert!(
        origin
            .driver
            .post_list(&[put(), put(), put()], CommandToken(7))
    );
    let mut done = false;
    stage.run(|rank| match rank.me {
        2 if rank.now() < 2000 => Some(2000),
        2 if !std::mem::replace(&mut done, true) => {
            assert_eq!(rank.cluster.lock().ops.len(), 3);
            rank.cluster.kill(1);
            None
        }
        _ => None,
    });
    let failed = |heard: &&Heard| matches!(heard, Heard::Failed(7));
    assert_eq!(stage.heard(0).iter().filter(failed).count(), 1);
    assert_eq!(stage.cluster.lock().ops.len(), 0);
    assert_eq!(first_byte(&region), 0);
}

#[test]
fn a_rank_that_was_given_up_reaches_no_memory_of_the_others() {
    // Like a partition: rank 1 is notified that rank 0 has failed, and may free memory that rank 0 was accessing.
    let (mut stage, region) =
        interrupted(|cluster| cluster.lock().report_peer_down(1, 0, DownCause::Failed));
    assert_eq!(stage.heard(0), [Heard::Failed(1), Heard::Failed(2)]);
    assert_eq!(stage.heard(1), [Heard::Down(0, DownCause::Failed)]);
    assert_eq!(first_byte(&region), 0);
    let key = stage.ranks[1]
        .as_mut()
        .unwrap()
        .driver
        .expose(region.range());
    let (at, mut posted) = (key.unwrap().slice(0, 8).unwrap(), false);
    stage.run(|rank| {
        if rank.me == 0 && !std::mem::replace(&mut posted, true) {
            let (to, op, token) = (WorldRank(1), AtomicOp::Add(1), CommandToken(3));
            rank.post(DriverCommand::Atomic { to, at, op, token });
        }
        None
    });
    assert_eq!(stage.heard(0).last(), Some(&Heard::Failed(3)));
    assert_eq!(first_byte(&region), 0);
}

/// Has rank 0 put bytes that begin with `put` into memory of rank 1, and get other memory of it, which begins with `got`. Returns
/// the digest, and the bytes that are then at the targets of the put and of the get.
fn carried(put: u8, got: u8, hash_from: u64) -> (u64, u8, u8) {
    const LEN: usize = 100_000;
    let mut stage = Stage::of(ClusterConfig {
        hash_from,
        ..ClusterConfig::new(2)
    });
    let [origin, target] = [0, 1].map(|rank: usize| {
        let rank = stage.ranks[rank].as_mut().unwrap();
        rank.driver.allocate(2 * LEN).unwrap()
    });
    origin.write(0, &[put]);
    target.write(LEN, &[got]);
    let owner = stage.ranks[1].as_mut().unwrap();
    let [into, from] = [0, LEN].map(|at| {
        let range = target.range().slice(at, LEN);
        owner.driver.expose(range).unwrap()
    });
    let [source, sink] = [0, LEN].map(|at| origin.range().slice(at, LEN));
    let mut posted = false;
    stage.run(|rank| {
        if rank.me == 0 && !std::mem::replace(&mut posted, true) {
            let to = WorldRank(1);
            rank.post(DriverCommand::Put {
                to,
                from: source,
                into,
                token: CommandToken(1),
                count: None,
            });
            rank.post(DriverCommand::Get {
                to,
                from,
                into: sink,
                token: CommandToken(2),
            });
        }
        None
    });
    assert_eq!(stage.heard(0), [Heard::Complete(1), Heard::Complete(2)]);
    let mut arrived = [0];
    origin.read(LEN, &mut arrived);
    (stage.cluster.digest(), first_byte(&target), arrived[0])
}

#[test]
fn the_digest_depends_on_what_puts_and_gets_carry() {
    for hash_from in [u64::MAX, 1000] {
        let digest = |put, got| carried(put, got, hash_from).0;
        assert_eq!(digest(3, 4), digest(3, 4));
        assert_ne!(digest(3, 4), digest(5, 4));
        assert_ne!(digest(3, 4), digest(3, 5));
    }
}

#[test]
fn what_is_hashed_stays_where_it_is() {
    let (copied, hashed) = (carried(3, 4, 100_001), carried(3, 4, 100_000));
    assert_eq!((copied.1, copied.2), (3, 4));
    assert_eq!((hashed.1, hashed.2), (0, 0));
    assert_eq!(
        copied.0, hashed.0,
        "the same run, as far as an observer can tell"
    );
}
