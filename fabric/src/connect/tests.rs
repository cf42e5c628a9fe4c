#![expect(clippy::print_stdout, reason = "the sizes of the checks are printed")]

use proptest::prelude::*;

use super::{
    ConnectAction, ConnectConfig, ConnectContext, ConnectEvent, ConnectFailure, ConnectFrame,
    ConnectFrameError, ConnectKind, ConnectLimits, ConnectMessage, ConnectState, PeerConnection,
    QpAddress, QpAddressList, RankIncarnation, RejectReason,
    model::{Scenario, Step, Visited, explore},
};
use crate::driver::WorldRank;

fn real(connection: &mut PeerConnection, event: ConnectEvent, cx: &mut ConnectContext<'_>) {
    connection.handle(event, cx);
}

/// Explores a scenario, and prints the number of states.
fn holds(what: &str, scenario: Scenario) {
    match explore(scenario, real) {
        Ok(Visited {
            states,
            transitions,
            ends,
        }) => println!("{what}: {states} states, {transitions} transitions, {ends} ends"),
        Err(why) => panic!("{what}: {why}"),
    }
}

#[test]
fn one_side_connects() {
    holds(
        "one starts",
        Scenario {
            sends: [1, 0],
            faults: 3,
            ..Scenario::default()
        },
    );
    holds(
        "the client starts",
        Scenario {
            sends: [0, 1],
            faults: 3,
            ..Scenario::default()
        },
    );
}

#[test]
fn both_sides_connect_at_once() {
    holds(
        "both start",
        Scenario {
            sends: [1, 1],
            faults: 3,
            ..Scenario::default()
        },
    );
}

#[test]
fn one_side_evicts_while_the_other_sends() {
    for (sends, evicts) in [([0, 1], [1, 0]), ([1, 0], [0, 1]), ([2, 0], [1, 0])] {
        let scenario = Scenario {
            sends,
            evicts,
            faults: 3,
            ..Scenario::default()
        };
        holds("eviction", scenario);
    }
}

#[test]
fn both_sides_evict_at_once() {
    let scenario = Scenario {
        sends: [1, 0],
        evicts: [1, 1],
        faults: 2,
        ..Scenario::default()
    };
    holds("two evictions", scenario);
}

#[test]
fn a_side_without_queue_pairs_is_asked_again() {
    for shortages in [[1, 0], [0, 1]] {
        let scenario = Scenario {
            sends: [1, 1],
            shortages,
            faults: 1,
            ..Scenario::default()
        };
        holds("shortage", scenario);
    }
}

#[test]
fn a_peer_that_restarts_is_met_anew() {
    for (sends, restarts) in [([1, 0], [1, 0]), ([1, 0], [0, 1]), ([2, 0], [0, 1])] {
        let scenario = Scenario {
            sends,
            restarts,
            faults: 1,
            ..Scenario::default()
        };
        holds("restart", scenario);
    }
}

/// Each side binds its end at any time, and a device gives up at any time.
#[test]
fn sides_that_know_each_other_from_the_start_connect_or_ask() {
    for (sends, shortages) in [
        ([0, 0], [1, 0]),
        ([1, 0], [0, 0]),
        ([1, 0], [1, 0]),
        ([1, 0], [0, 1]),
        ([1, 1], [0, 0]),
    ] {
        let scenario = Scenario {
            sends,
            shortages,
            faults: 2,
            ..BOUND
        };
        holds("known from the start", scenario);
    }
}

#[test]
fn sides_that_know_each_other_from_the_start_evict_and_restart_as_others_do() {
    for (sends, evicts, restarts) in [
        ([0, 1], [1, 0], [0, 0]),
        ([1, 0], [0, 1], [0, 0]),
        ([1, 0], [0, 0], [1, 0]),
        ([1, 0], [0, 0], [0, 1]),
    ] {
        let scenario = Scenario {
            sends,
            evicts,
            restarts,
            ..BOUND
        };
        holds("known from the start, and what comes later", scenario);
    }
}

/// Only a message of the side that could not bind its queue pair tells the other.
#[test]
fn a_side_that_cannot_bind_what_the_other_knows_asks_and_is_heard() {
    for unbound in [[true, false], [false, true], [true, true]] {
        for (sends, patient) in [
            ([0, 0], true),
            ([1, 0], true),
            ([0, 1], true),
            ([1, 0], false),
        ] {
            let scenario = Scenario {
                unbound,
                patient,
                sends,
                faults: 2,
                ..BOUND
            };
            holds("a side that cannot bind asks", scenario);
        }
    }
}

/// Checks that a state machine with a mistake in it is caught in a scenario.
fn caught(mutant: Step, scenario: Scenario) {
    let found = explore(scenario, mutant);
    let why = found.expect_err("the check is blind to this mistake");
    println!("{}", &why[..why.len().min(200)]);
}

const BOTH: Scenario = Scenario {
    sends: [1, 1],
    evicts: [0, 0],
    restarts: [0, 0],
    shortages: [0, 0],
    faults: 3,
    bound: false,
    unbound: [false, false],
    patient: false,
};

const BOUND: Scenario = Scenario {
    faults: 1,
    bound: true,
    ..BOTH
};

const EVICTING: Scenario = Scenario {
    sends: [2, 0],
    evicts: [1, 0],
    ..BOTH
};

fn request(event: ConnectEvent) -> Option<ConnectMessage> {
    match event {
        ConnectEvent::Message(message) if message.kind == ConnectKind::Request => Some(message),
        _ => None,
    }
}

#[test]
fn mutant_the_client_accepts_a_crossing_request_too() {
    let mutant: Step = |connection, event, cx| {
        if let Some(message) = request(event)
            && connection.state == ConnectState::ReqSent
        {
            return connection.accept(&message, cx);
        }
        connection.handle(event, cx);
    };
    caught(mutant, BOTH);
}

#[test]
fn mutant_neither_side_accepts_a_crossing_request() {
    let mutant: Step = |connection, event, cx| {
        if request(event).is_none() || connection.state != ConnectState::ReqSent {
            connection.handle(event, cx);
        }
    };
    caught(mutant, BOTH);
}

#[test]
fn mutant_a_repeated_request_makes_a_second_connection() {
    let mutant: Step = |connection, event, cx| {
        if request(event).is_some_and(|message| message.id == connection.attempt)
            && connection.state == ConnectState::RepSent
        {
            connection.state = ConnectState::Idle;
        }
        connection.handle(event, cx);
    };
    caught(mutant, BOTH);
}

#[test]
fn mutant_a_late_request_revives_a_connection() {
    let mutant: Step = |connection, event, cx| {
        if request(event).is_some() && connection.state == ConnectState::Idle {
            connection.met = false;
        }
        connection.handle(event, cx);
    };
    caught(mutant, EVICTING);
}

#[test]
fn mutant_a_reply_is_not_repeated() {
    let mutant: Step = |connection, event, cx| {
        let late = connection.state == ConnectState::RepSent && event == ConnectEvent::Timeout;
        let again = request(event).is_some() && connection.state == ConnectState::RepSent;
        if !late && !again {
            connection.handle(event, cx);
        }
    };
    caught(mutant, BOTH);
}

#[test]
fn mutant_a_drained_side_does_not_say_so_again() {
    let mutant: Step = |connection, event, cx| {
        let drain =
            matches!(event, ConnectEvent::Message(message) if message.kind == ConnectKind::Drain);
        if !drain || connection.has_lanes() {
            connection.handle(event, cx);
        }
    };
    caught(mutant, EVICTING);
}

#[test]
fn mutant_a_side_drains_before_its_data_arrived() {
    let mutant: Step = |connection, event, cx| {
        connection.handle(event, cx);
        if event == ConnectEvent::Evict {
            connection.handle(ConnectEvent::Quiesced, cx);
        }
    };
    caught(mutant, EVICTING);
}

#[test]
fn mutant_any_reply_is_taken() {
    let mutant: Step = |connection, event, cx| {
        if let ConnectEvent::Message(message) = event
            && message.kind == ConnectKind::Reply
            && connection.state == ConnectState::ReqSent
        {
            connection.attempt = message.id;
        }
        connection.handle(event, cx);
    };
    caught(mutant, EVICTING);
}

#[test]
fn mutant_a_greeting_alone_opens() {
    let mutant: Step = |connection, event, cx| {
        connection.answered |= event == ConnectEvent::GreetingArrived;
        connection.handle(event, cx);
    };
    caught(mutant, BOUND);
}

#[test]
fn mutant_an_acknowledged_greeting_alone_opens() {
    let mutant: Step = |connection, event, cx| {
        connection.heard |= event == ConnectEvent::GreetingAcked;
        connection.handle(event, cx);
    };
    caught(mutant, BOUND);
}

#[test]
fn mutant_an_unacknowledged_greeting_fails_the_connection() {
    let mutant: Step = |connection, event, cx| {
        if event == ConnectEvent::Broken && connection.state == ConnectState::Bound {
            return connection.fail(ConnectFailure::Broken, cx);
        }
        connection.handle(event, cx);
    };
    caught(mutant, BOUND);
}

#[test]
fn mutant_a_bound_connection_has_no_deadline() {
    let mutant: Step = |connection, event, cx| {
        connection.handle(event, cx);
        if connection.state == ConnectState::Bound {
            connection.deadline = super::NEVER;
        }
    };
    caught(
        mutant,
        Scenario {
            sends: [0, 1],
            shortages: [1, 0],
            ..BOUND
        },
    );
}

#[test]
fn mutant_a_side_that_cannot_bind_asks_without_its_queue_pairs() {
    for unbound in [[true, false], [false, true]] {
        let mutant: Step = |connection, event, cx| {
            if event == ConnectEvent::Connect && connection.state == ConnectState::Idle {
                *connection = PeerConnection::new(connection.peer);
            }
            connection.handle(event, cx);
        };
        let scenario = Scenario {
            unbound,
            patient: true,
            ..BOUND
        };
        caught(mutant, scenario);
    }
}

#[test]
fn a_prewired_connection_opens_after_a_greeting_and_an_acknowledgment() {
    let (mut connection, local) = (PeerConnection::bound(WorldRank(1), 1), local(0));
    assert_eq!(connection.next_timeout(), None);
    assert!(act(&mut connection, &local, ConnectEvent::Connect, 0).is_empty());
    assert_eq!(
        act(&mut connection, &local, ConnectEvent::GreetingArrived, 0),
        [ConnectAction::Greet]
    );
    assert!(act(&mut connection, &local, ConnectEvent::GreetingArrived, 0).is_empty());
    assert_eq!(
        act(&mut connection, &local, ConnectEvent::GreetingAcked, 0),
        [ConnectAction::Open]
    );

    let mut connection = PeerConnection::bound(WorldRank(1), 1);
    assert!(act(&mut connection, &local, ConnectEvent::GreetingAcked, 0).is_empty());
    let due = connection.next_timeout().expect("it waits for a greeting");
    assert_eq!(
        act(&mut connection, &local, ConnectEvent::Timeout, due),
        [ConnectAction::Greet]
    );
    assert_eq!(
        act(&mut connection, &local, ConnectEvent::GreetingArrived, 0),
        [ConnectAction::Open]
    );
    assert_eq!(connection.state(), ConnectState::Ready);
}

/// The peer's device acknowledges, so the peer lives, and its host may be busy for long.
#[test]
fn an_acknowledged_side_waits_for_a_greeting_as_long_as_the_device_answers() {
    let (mut connection, local) = (PeerConnection::bound(WorldRank(1), 1), local(0));
    act(&mut connection, &local, ConnectEvent::GreetingAcked, 0);
    for _ in 0..1000 {
        let due = connection.next_timeout().expect("it asks again");
        let again = act(&mut connection, &local, ConnectEvent::Timeout, due);
        assert_eq!(again, [ConnectAction::Greet], "after {due} ps");
        act(&mut connection, &local, ConnectEvent::GreetingAcked, due);
    }
    assert_eq!(
        act(&mut connection, &local, ConnectEvent::GreetingArrived, 0),
        [ConnectAction::Open]
    );
}

/// No side posts anything but a greeting before it has opened.
#[test]
fn data_over_what_is_known_from_the_start_says_that_the_greeting_was_taken() {
    for before in [
        &[][..],
        &[ConnectEvent::GreetingArrived],
        &[ConnectEvent::GreetingAcked],
    ] {
        let (mut connection, local) = (PeerConnection::bound(WorldRank(1), 1), local(0));
        for event in before {
            act(&mut connection, &local, *event, 0);
        }
        assert_eq!(connection.state(), ConnectState::Bound);
        assert_eq!(
            act(&mut connection, &local, ConnectEvent::Data, 0),
            [ConnectAction::Open]
        );
        assert!(act(&mut connection, &local, ConnectEvent::GreetingAcked, 0).is_empty());
        assert_eq!(connection.state(), ConnectState::Ready);
    }
}

fn local(rank: u32) -> ConnectConfig {
    ConnectConfig {
        end: RankIncarnation {
            rank: WorldRank(rank),
            incarnation: 1,
        },
        limits: ConnectLimits::default(),
        seed: 7,
    }
}

fn act(
    connection: &mut PeerConnection,
    local: &ConnectConfig,
    event: ConnectEvent,
    now: u64,
) -> Vec<ConnectAction> {
    let mut actions = Vec::new();
    let mut cx = ConnectContext {
        local,
        now,
        actions: &mut actions,
    };
    connection.handle(event, &mut cx);
    actions
}

#[test]
fn a_peer_that_never_answers_is_unreachable_after_thirty_seconds() {
    let (tries, seconds) = never_answered(local(0));
    assert_eq!(tries, 64);
    assert!((22..=30).contains(&seconds), "{seconds} s");
}

#[test]
fn a_peer_that_never_answers_is_waited_for_as_long_as_asked_for() {
    for patience in [1, 20, 100, 600] {
        let mut local = local(0);
        local.limits = local.limits.patient(patience * 1_000_000_000_000);
        let (tries, seconds) = never_answered(local);
        assert!(tries >= 64 && seconds >= patience, "{seconds} s");
        assert!(seconds <= 30.max(patience * 4 / 3 + 1), "{seconds} s");
    }
    let ages = ConnectLimits::default().patient(u64::MAX);
    assert_eq!(ages.tries_max, u16::MAX);
}

/// Returns the tries and seconds until the peer counts as unreachable.
fn never_answered(local: ConnectConfig) -> (u32, u64) {
    let mut connection = PeerConnection::new(WorldRank(1));
    act(&mut connection, &local, ConnectEvent::Connect, 0);
    let (mut now, mut tries) = (0, 1);
    let ended = loop {
        let due = connection.next_timeout().expect("it waits for an answer");
        assert!(due > now && due - now <= local.limits.retry_max);
        now = due;
        let actions = act(&mut connection, &local, ConnectEvent::Timeout, now);
        match actions[..] {
            [ConnectAction::Send(again)] => assert_eq!(again.kind, ConnectKind::Request),
            _ => break actions,
        }
        tries += 1;
    };
    assert!(
        ended.contains(&ConnectAction::Fail(ConnectFailure::Unreachable)),
        "{ended:?}"
    );
    assert_eq!(connection.state(), ConnectState::Failed);
    let late = act(&mut connection, &local, ConnectEvent::Connect, now);
    assert_eq!(late, [ConnectAction::Fail(ConnectFailure::Down)]);
    (tries, now / 1_000_000_000_000)
}

#[test]
fn waits_double_up_to_the_longest_and_differ_between_seeds() {
    let limits = ConnectLimits::default();
    for tries in 0..64 {
        let longest = (limits.retry_first << tries.min(10)).min(limits.retry_max);
        let wait = limits.wait(tries, 1);
        assert!(
            wait <= longest && wait > longest / 4 * 3 - 4,
            "{tries}: {wait}"
        );
    }
    assert!((0..20).any(|seed| limits.wait(3, seed) != limits.wait(3, seed + 1)));
}

#[test]
fn a_refusal_for_good_fails_and_one_for_now_waits() {
    let local = local(0);
    let answer = |kind, connection: &mut PeerConnection| {
        let asked = act(connection, &local, ConnectEvent::Connect, 0);
        let Some(ConnectAction::Send(request)) = asked.last() else {
            panic!("{asked:?}")
        };
        let message = ConnectMessage {
            kind,
            id: request.id,
            from: RankIncarnation {
                rank: WorldRank(1),
                incarnation: 1,
            },
            to: local.end,
        };
        act(connection, &local, ConnectEvent::Message(message), 5)
    };
    let mut connection = PeerConnection::new(WorldRank(1));
    assert!(
        answer(
            ConnectKind::Reject(RejectReason::NoQueuePair),
            &mut connection
        )
        .is_empty()
    );
    assert_eq!(connection.state(), ConnectState::ReqSent);
    assert_eq!(connection.next_timeout(), Some(5 + local.limits.retry_max));

    let mut connection = PeerConnection::new(WorldRank(1));
    let actions = answer(ConnectKind::Reject(RejectReason::Policy), &mut connection);
    let why = ConnectFailure::Rejected(RejectReason::Policy);
    assert_eq!(actions, [ConnectAction::Destroy, ConnectAction::Fail(why)]);
}

#[test]
fn a_broken_queue_pair_fails_both_sides() {
    let mut connection = PeerConnection::new(WorldRank(1));
    connection.state = ConnectState::Ready;
    let actions = act(&mut connection, &local(0), ConnectEvent::Broken, 0);
    let [
        ConnectAction::Send(told),
        ConnectAction::Destroy,
        ConnectAction::Fail(ConnectFailure::Broken),
    ] = actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!(told.kind, ConnectKind::Reject(RejectReason::PeerFailed));
    let mut peer = PeerConnection::new(WorldRank(0));
    (peer.state, peer.attempt, peer.incarnation) = (ConnectState::Ready, told.id, 1);
    let heard = ConnectMessage {
        to: local(1).end,
        ..told
    };
    let actions = act(&mut peer, &local(1), ConnectEvent::Message(heard), 0);
    let why = ConnectFailure::Rejected(RejectReason::PeerFailed);
    assert_eq!(actions, [ConnectAction::Destroy, ConnectAction::Fail(why)]);
}

fn any_kind() -> impl Strategy<Value = ConnectKind> {
    prop_oneof![
        Just(ConnectKind::Request),
        Just(ConnectKind::Reply),
        Just(ConnectKind::Ready),
        Just(ConnectKind::Busy),
        Just(ConnectKind::Drain),
        Just(ConnectKind::Drained),
        any_reason().prop_map(ConnectKind::Reject),
    ]
}

fn any_reason() -> impl Strategy<Value = RejectReason> {
    prop_oneof![
        Just(RejectReason::NoQueuePair),
        Just(RejectReason::Version),
        Just(RejectReason::Policy),
        Just(RejectReason::Unknown),
        Just(RejectReason::PeerFailed),
        Just(RejectReason::Restarted),
    ]
}

/// Makes messages of a peer that sends anything, mostly close to valid ones.
fn any_event() -> impl Strategy<Value = ConnectEvent> {
    let id = prop_oneof![0..8_u32, any::<u32>()];
    let message = (any_kind(), id, 0..4_u32, 0..3_u32).prop_map(|(kind, id, from, to)| {
        let [from, to] = [(1, from), (0, to)].map(|(rank, incarnation)| RankIncarnation {
            rank: WorldRank(rank),
            incarnation,
        });
        ConnectEvent::Message(ConnectMessage { kind, id, from, to })
    });
    prop_oneof![
        6 => message,
        1 => Just(ConnectEvent::Connect),
        1 => Just(ConnectEvent::Timeout),
        1 => Just(ConnectEvent::Data),
        1 => Just(ConnectEvent::GreetingArrived),
        1 => Just(ConnectEvent::Evict),
        1 => Just(ConnectEvent::Quiesced),
        1 => Just(ConnectEvent::Broken),
    ]
}

fn any_lane() -> impl Strategy<Value = QpAddress> {
    (0..1_u32 << 24, 0..1_u32 << 24).prop_map(|(qpn, psn)| QpAddress { qpn, psn })
}

fn any_frame() -> impl Strategy<Value = ConnectFrame> {
    let lanes = prop::collection::vec(any_lane(), 1..=8);
    let ends = (any::<u32>(), 1..u32::MAX, any::<u32>(), 1..u32::MAX);
    (any_kind(), any::<u32>(), ends, any::<u32>(), lanes).prop_map(
        |(kind, id, (rank, incarnation, to_rank, to_incarnation), caps, lanes)| {
            let lanes = if matches!(kind, ConnectKind::Request | ConnectKind::Reply) {
                QpAddressList::new(&lanes).expect("at most 8")
            } else {
                QpAddressList::default()
            };
            let message = ConnectMessage {
                kind,
                id,
                from: RankIncarnation {
                    rank: WorldRank(rank),
                    incarnation,
                },
                to: RankIncarnation {
                    rank: WorldRank(to_rank),
                    incarnation: to_incarnation,
                },
            };
            ConnectFrame {
                message,
                caps,
                lanes,
            }
        },
    )
}

proptest! {
    /// Whatever the peer sends, queue pairs are made and destroyed in turn, and there is always a way to an end.
    #[test]
    fn arbitrary_events_never_break_the_order_of_actions(events in prop::collection::vec(any_event(), 0..60)) {
        let (mut connection, local) = (PeerConnection::new(WorldRank(1)), local(0));
        let (mut lanes, mut now) = (false, 0);
        for event in events {
            now = connection.next_timeout().filter(|_| event == ConnectEvent::Timeout).unwrap_or(now);
            for action in act(&mut connection, &local, event, now) {
                match action {
                    ConnectAction::Create => prop_assert!(!std::mem::replace(&mut lanes, true)),
                    ConnectAction::Destroy => prop_assert!(std::mem::replace(&mut lanes, false)),
                    ConnectAction::Bind | ConnectAction::Open | ConnectAction::Quiesce => prop_assert!(lanes),
                    _ => {}
                }
            }
            prop_assert_eq!(lanes, connection.has_lanes());
            let waits = matches!(connection.state(), ConnectState::ReqSent | ConnectState::RepSent);
            prop_assert!(!waits || connection.next_timeout().is_some());
        }
    }

    #[test]
    fn a_frame_survives_the_wire(frame in any_frame()) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        prop_assert_eq!(ConnectFrame::parse(&bytes), Ok(frame));
    }

    #[test]
    fn any_bytes_are_a_frame_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        if let Ok(frame) = ConnectFrame::parse(&bytes) {
            let mut again = Vec::new();
            frame.encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn a_frame_with_another_byte_or_length_is_never_the_same(
        frame in any_frame(), at in any::<prop::sample::Index>(), flip in 1..=255_u8
    ) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let shorter = ConnectFrame::parse(&bytes[..bytes.len() - 1]);
        prop_assert_eq!(shorter, Err(ConnectFrameError::Length(bytes.len() - 1)));
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert_ne!(ConnectFrame::parse(&bytes), Ok(frame));
    }
}
