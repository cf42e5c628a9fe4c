use proptest::prelude::*;

use super::{
    BitDamage, FaultHits, FaultKind, FaultRule, FaultScope, FaultTiming, Faults, FlowKind,
    HostFault, PacketCrossing, PacketFate, Probability, RankRanges,
};

const US: u64 = 1_000_000;
const MS: u64 = 1000 * US;

fn line(text: &str) -> Faults {
    text.parse().expect("a good line")
}

fn crossing(from: u32, to: u32, nth: u64) -> PacketCrossing {
    PacketCrossing {
        from,
        to,
        rail: 0,
        flow: FlowKind::Packets,
        nth,
        at: 0,
        spacing: 100,
    }
}

fn fates(faults: &Faults, count: u64, seed: u64) -> Vec<PacketFate> {
    (0..count)
        .map(|nth| faults.judge(&crossing(0, 1, nth), seed))
        .collect()
}

#[test]
fn a_rank_that_is_silent_for_longer_than_retransmissions_last_must_be_pinged() {
    for silent in [
        "kill=1@1ms",
        "partition=0|1",
        "drop=1",
        "drop=0.6",
        "corrupt=1@1ms+1ms",
    ] {
        assert!(line(silent).silences(), "{silent}");
    }
    for heard in [
        "",
        "drop=0.5",
        "drop=#0",
        "corrupt=0.1",
        "dup=1",
        "delay=1:1ms",
        "slots=1",
    ] {
        assert!(!line(heard).silences(), "{heard}");
    }
}

#[test]
fn a_line_says_all_that_a_fault_can_be() {
    let faults = line(
        "drop=0.3,dup=0.1,reorder=64,delay=0.1:5us,kill=3@2ms,partition=0-3|4-7@1ms+500us,pause=2@1ms+300us,\
         kill-rail=1@1ms,slow-rail=0@1ms/4,slots=2, corrupt=#7@1.5us",
    );
    let what: Vec<_> = faults.list.iter().map(|fault| fault.kind).collect();
    let expected = [
        FaultKind::Drop,
        FaultKind::Duplicate,
        FaultKind::Reorder(64),
        FaultKind::Delay(5 * US),
        FaultKind::KillRank,
        FaultKind::Partition,
        FaultKind::Pause,
        FaultKind::KillRail,
        FaultKind::SlowRail(4),
        FaultKind::Slots(2),
        FaultKind::Corrupt,
    ];
    assert_eq!(what, expected);
    let partition = &faults.list[5];
    assert_eq!(partition.scope.from, RankRanges::new(0..=3));
    assert_eq!(partition.scope.to, RankRanges::new(4..=7));
    assert_eq!(
        (partition.timing.at, partition.timing.lasting),
        (MS, 500 * US)
    );
    assert_eq!(faults.list[10].timing.hits, FaultHits::Nth(7));
    assert_eq!(faults.list[10].timing.at, 3 * US / 2);
    let hosts: Vec<_> = faults.host_faults().collect();
    let (killed, paused) = (Some(300 * US), None);
    let at = |at, rank, pause| HostFault { at, rank, pause };
    assert_eq!(hosts, [at(2 * MS, 3, paused), at(MS, 2, killed)]);
}

#[test]
fn a_file_gives_the_same_faults_and_their_scopes() {
    let file = r#"
        [[fault]]
        what = "drop"
        chance = 0.25
        from = [0, "2-3"]
        to = 1
        rail = 0
        at = "1ms"
        for = "2ms"
        [[fault]]
        what = "slow-rail"
        rail = 1
        factor = 3
    "#;
    let faults = Faults::from_toml(file).expect("a good file");
    let drop = FaultRule {
        kind: FaultKind::Drop,
        timing: FaultTiming {
            at: MS,
            lasting: 2 * MS,
            hits: FaultHits::Chance(Probability::new(0.25).expect("a probability")),
        },
        scope: FaultScope {
            from: RankRanges(vec![0..=0, 2..=3]),
            to: RankRanges::new(1..=1),
            rank: None,
            rail: Some(0),
        },
    };
    assert_eq!(faults.list[0], drop);
    assert_eq!(faults.list[1], line("slow-rail=1/3").list[0]);
    assert_eq!(Faults::from_toml(""), Ok(Faults::default()));
}

#[test]
fn what_is_wrong_is_named_with_what_is_allowed() {
    let wrong = |text: &str| text.parse::<Faults>().expect_err("a bad line").to_string();
    let said = [
        (
            "drop",
            "faults: \"drop\" has no value: write for example drop=0.3",
        ),
        (
            "drop=1.3",
            "faults.drop.chance: \"1.3\" is wrong: give a probability from 0 to 1",
        ),
        (
            "drop=0.1@5",
            "faults.drop.at: \"5\" is wrong: give a time with its unit: ps, ns, us, ms or s",
        ),
        (
            "pause=1@5us",
            "faults.pause.for: missing: give the time that the rank pauses",
        ),
        (
            "partition=0-3",
            "faults.partition.to: \"\" is wrong: give ranks as in 0-3, 6",
        ),
        ("slow-rail=1", "faults.slow-rail.factor: missing"),
        (
            "slots=0",
            "faults.slots.slots: \"0\" is wrong: give a number from 1",
        ),
        (
            "kill=1@1us+2us",
            "faults.kill.for: is not a field of this fault: its fields are rank, at",
        ),
    ];
    for (text, expected) in said {
        assert_eq!(wrong(text), expected);
    }
    assert!(
        wrong("flood=1")
            .starts_with("faults.flood.what: \"flood\" is not a fault: the faults are drop, dup,")
    );
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_its_table() {
    let wrong = |text: &str| Faults::from_toml(text).expect_err("a bad file").to_string();
    assert_eq!(
        wrong("[[fault]]\nwhat = \"drop\"\n[[fault]]\nwhat = \"dup\"\nchanse = 0.1"),
        "fault[1].chanse: is not a field of this fault: its fields are at, for, chance, nth, from, to, rail"
    );
    assert_eq!(
        wrong("[[fault]]\nchance = 0.1"),
        "fault[0].what: missing: name the kind of fault"
    );
    assert_eq!(
        wrong("[[fault]]\nwhat = \"drop\"\nchance = true"),
        "fault[0].chance: a value of type boolean is not allowed here"
    );
    assert_eq!(
        wrong("[[fault]]\nwhat = \"drop\"\nchance = 0.1\nnth = 3"),
        "fault[0].nth: given beside `chance`: give one of them"
    );
    assert!(wrong("faults = 3").starts_with("faults: is not allowed here"));
    assert!(wrong("[[fault]").starts_with("faults: "));
}

#[test]
fn ranks_and_rails_that_do_not_exist_are_errors() {
    let wrong = |text: &str| line(text).check(4, 2).expect_err("not there").to_string();
    assert_eq!(
        wrong("kill=4@1us"),
        "faults.kill.rank: rank 4 does not exist on a cluster of 4: give 0 to 3"
    );
    assert_eq!(
        wrong("partition=0-1|2-9"),
        "faults.partition.to: rank 9 does not exist on a cluster of 4: give 0 to 3"
    );
    assert_eq!(
        wrong("kill-rail=2@1us"),
        "faults.kill-rail.rail: rail 2 does not exist on a cluster of 2: give 0 to 1"
    );
    assert!(
        line("kill=3@1us,kill-rail=1@1us,partition=0-1|2-3")
            .check(4, 2)
            .is_ok()
    );
}

#[test]
fn a_fault_built_in_code_must_name_its_rank_too() {
    for (what, field) in [
        (FaultKind::KillRank, "kill.rank"),
        (FaultKind::Pause, "pause.rank"),
        (FaultKind::SlowRail(2), "slow-rail.rail"),
        (FaultKind::Slots(0), "slots.slots"),
    ] {
        let fault = FaultRule {
            kind: what,
            timing: FaultTiming::ALWAYS,
            scope: FaultScope::default(),
        };
        let faults = Faults { list: vec![fault] };
        let why = faults
            .check(4, 1)
            .expect_err("a fault without a rank")
            .to_string();
        assert_eq!(why, format!("faults.{field}: missing"));
    }
}

#[test]
fn chance_comes_as_often_as_it_says_and_is_the_same_for_the_same_seed() {
    let faults = line("drop=0.3,dup=0.1");
    let first = fates(&faults, 100_000, 7);
    let lost = first.iter().filter(|fate| fate.lost).count();
    let twice = first
        .iter()
        .filter(|fate| fate.copy_delay.is_some())
        .count();
    assert!((29_000..31_000).contains(&lost), "{lost}");
    assert!((9_400..10_600).contains(&twice), "{twice}");
    let both = first
        .iter()
        .filter(|fate| fate.lost && fate.copy_delay.is_some())
        .count();
    assert!(
        (2_600..3_400).contains(&both),
        "they are independent: {both}"
    );
    assert_eq!(first, fates(&faults, 100_000, 7));
    assert_ne!(first, fates(&faults, 100_000, 8));
    let never = line("drop=0,dup=0");
    assert!(
        fates(&never, 1000, 7)
            .iter()
            .all(|fate| *fate == PacketFate::default())
    );
    assert!(fates(&line("drop=1"), 1000, 7).iter().all(|fate| fate.lost));
}

#[test]
fn the_nth_packet_of_every_flow_is_hit_once() {
    let faults = line("drop=#5");
    for (from, to) in [(0, 1), (1, 0), (3, 3)] {
        let lost = |nth: &u64| faults.judge(&crossing(from, to, *nth), 1).lost;
        assert_eq!((0..100).filter(lost).collect::<Vec<_>>(), [5]);
    }
}

#[test]
fn no_packet_is_overtaken_by_more_than_the_window() {
    let faults = line("reorder=64");
    let spacing = 100;
    let arrivals: Vec<u64> = (0..10_000)
        .map(|nth| nth * spacing + faults.judge(&crossing(0, 1, nth), 3).delay)
        .collect();
    let overtaken = (0..arrivals.len()).map(|at| {
        let later = &arrivals[at + 1..];
        later
            .iter()
            .take(200)
            .filter(|arrival| **arrival < arrivals[at])
            .count()
    });
    let most = overtaken.max().expect("packets");
    assert!((30..=64).contains(&most), "{most}");
}

#[test]
fn a_partition_cuts_both_directions_for_its_time_only() {
    let faults = line("partition=0-1|2-3@1ms+500us");
    let lost = |from, to, at| {
        let packet = PacketCrossing {
            at,
            ..crossing(from, to, 0)
        };
        faults.judge(&packet, 1).lost
    };
    assert!(lost(0, 2, MS) && lost(3, 1, MS + 500 * US - 1));
    assert!(!lost(0, 1, MS) && !lost(2, 3, MS));
    assert!(!lost(0, 2, MS - 1) && !lost(0, 2, MS + 500 * US));
}

#[test]
fn rails_and_slots_are_as_they_are_at_a_time() {
    let faults = line("kill-rail=1@1ms+1ms,slow-rail=0@1ms/4,slots=2@1ms,slots=1@2ms+1ms");
    assert!(
        !faults.rail_is_dead(1, 0) && faults.rail_is_dead(1, MS) && !faults.rail_is_dead(1, 2 * MS)
    );
    assert!(!faults.rail_is_dead(0, MS));
    assert_eq!([0, MS].map(|now| faults.slowness(0, now)), [1, 4]);
    assert_eq!(
        [0, MS, 2 * MS, 3 * MS].map(|now| faults.slots(5, now)),
        [None, Some(2), Some(1), Some(2)]
    );
    let dead = PacketCrossing {
        rail: 1,
        at: MS,
        ..crossing(0, 1, 0)
    };
    assert!(
        faults.judge(&dead, 1).lost,
        "what leaves on a dead rail is lost"
    );
}

#[test]
fn only_what_loses_or_reorders_disturbs() {
    for calm in [
        "",
        "kill=1@1us",
        "pause=1@1us+1us",
        "slow-rail=0/2",
        "slots=2",
    ] {
        assert!(!line(calm).disturbs(), "{calm}");
    }
    for fault in [
        "drop=0.1",
        "dup=#1",
        "reorder=2",
        "delay=5us",
        "corrupt=0.1",
        "kill-rail=0",
    ] {
        assert!(line(fault).disturbs(), "{fault}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_plan_or_an_error(text in "[a-z0-9=.@+|:/,# -]{0,40}") {
        let _ = text.parse::<Faults>();
    }

    #[test]
    fn any_file_is_a_plan_or_an_error(
        what in "what = \"(drop|kill|slots|delay)\"", rest in "((rank|nth|chance|at|by|from) = [0-9.\"a-z-]{0,6}\n){0,8}"
    ) {
        let _ = Faults::from_toml(&format!("[[fault]]\n{what}\n{rest}"));
    }

    #[test]
    fn damage_changes_bytes(bits in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 16..200)) {
        let mut damaged = bytes.clone();
        BitDamage(bits).apply(&mut damaged);
        // Two flips can hit the same bit; three cannot cancel each other out.
        prop_assert!(damaged != bytes || bits % 3 == 1);
        BitDamage(bits).apply(&mut damaged);
        prop_assert_eq!(damaged, bytes);
    }
}
