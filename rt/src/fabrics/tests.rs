use std::{
    fmt,
    sync::{Arc, Mutex},
    thread,
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::{
    boot::{self, Boot, Node},
    error::Result,
    runtime::{Builder, Runtime},
};

type RankSettings = Vec<(&'static str, &'static str)>;
type Lines = Arc<Mutex<Vec<(Level, String)>>>;

/// Records what one thread says, without spans.
struct LineRecorder(Lines);

impl Subscriber for LineRecorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "ripstop::fabric"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = MessageText::default();
        event.record(&mut text);
        let line = (*event.metadata().level(), text.0);
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct MessageText(String);

impl Visit for MessageText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// What a rank found out: its fabric and why, or its error; and what it has logged at its start.
struct RankStart {
    fabric: Result<(&'static str, String)>,
    lines: Vec<(Level, String)>,
}

impl RankStart {
    fn lines(&self, level: Level) -> Vec<&str> {
        let lines = self.lines.iter();
        lines
            .filter(|line| line.0 == level)
            .map(|line| line.1.as_str())
            .collect()
    }

    fn refusal(&self) -> String {
        self.fabric.as_ref().unwrap_err().to_string()
    }
}

/// Settings with which only TCP can be used, and that between ranks of this machine.
const ONLY_TCP: [(&str, &str); 4] = [
    ("RIPSTOP_FABRIC", "auto"),
    ("RIPSTOP_VERBS_DEVICE", "nothing0"),
    ("RIPSTOP_PORTALS_LIBRARY", "/nowhere/libportals.so"),
    ("RIPSTOP_TCP_IFACE", "lo"),
];

/// Starts ranks as threads, which talk to each other if they can. `settings` returns what a rank changes.
fn start(boots: Vec<Boot>, settings: fn(u32) -> RankSettings) -> Vec<RankStart> {
    all_at_once(boots, |boot| {
        let lines = Lines::default();
        let recorder = LineRecorder(Arc::clone(&lines));
        let builder = builder(settings(boot.rank)).boot(boot);
        let runtime = tracing::subscriber::with_default(recorder, || builder.init());
        let lines = lines.lock().unwrap().clone();
        let fabric = runtime.map(|runtime| {
            talk(&runtime);
            let choices = runtime.choices();
            runtime.close().unwrap();
            (choices.fabric, choices.fabric_why)
        });
        RankStart { fabric, lines }
    })
}

fn all_at_once<T: Send>(boots: Vec<Boot>, rank: impl Fn(Boot) -> T + Sync) -> Vec<T> {
    let rank = &rank;
    thread::scope(|scope| {
        let ranks = boots
            .into_iter()
            .map(|boot| scope.spawn(move || rank(boot)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn builder(settings: RankSettings) -> Builder {
    let settings = settings.into_iter();
    settings.fold(Runtime::builder(), |builder, (name, value)| {
        builder.set(name, value)
    })
}

/// Sends a short and a long message to each rank, and receives those of the others.
fn talk(runtime: &Runtime) {
    let world = runtime.world();
    let (me, size) = (world.rank(), world.size());
    runtime.block_on(async {
        for len in [1, 100_000] {
            for step in 0..size {
                let (to, from) = ((me + step) % size, (me + size - step) % size);
                let inbox = world.recv::<u64>(from, 5);
                let sent = world.send(to, 5, vec![me as u64; len]);
                assert_eq!(inbox.await.unwrap().0, vec![from as u64; len]);
                sent.await.unwrap();
            }
        }
    });
}

/// Returns four ranks on two nodes, each with a board of its own.
fn on_two_nodes() -> Vec<Boot> {
    let mut boots = boot::threads(4);
    for boot in &mut boots {
        let first = boot.rank / 2 * 2;
        boot.node = Node {
            ranks: vec![first, first + 1],
            each: Some(2),
            most: 2,
        };
    }
    boots
}

fn only_tcp(_rank: u32) -> RankSettings {
    ONLY_TCP.to_vec()
}

/// Returns what errors call a rank whose host is this one.
fn called(rank: u32) -> String {
    let host = rustix::system::uname();
    format!("rank {rank} on host {}", host.nodename().to_str().unwrap())
}

#[track_caller]
fn assert_shm_and_tcp(ranks: &[RankStart]) {
    for rank in ranks {
        let (fabric, why) = rank.fabric.as_ref().unwrap();
        assert_eq!(*fabric, "shm+tcp");
        for part in ["shm+tcp: ", "verbs on rank", "portals on rank"] {
            assert!(why.contains(part), "{part} in: {why}");
        }
    }
    let is_choice = |line: &&str| line.starts_with("shm+tcp: ");
    let says_choice = |rank: &RankStart| {
        rank.lines(Level::INFO)
            .iter()
            .filter(|line| is_choice(line))
            .count()
    };
    let said: Vec<_> = ranks.iter().map(says_choice).collect();
    assert_eq!(said, [1, 0, 0, 0], "one line in the job, by rank 0");
}

#[test]
fn ranks_of_several_nodes_choose_tcp_where_nothing_better_can_run() {
    let ranks = start(on_two_nodes(), only_tcp);
    assert_shm_and_tcp(&ranks);
    // Users expect adapters to work for which they have set something.
    for (rank, warnings) in [(0, 2), (1, 0), (2, 2), (3, 0)] {
        let said = ranks[rank].lines(Level::WARN);
        assert_eq!(said.len(), warnings, "once on each node: {said:?}");
        assert!(
            said.iter().all(|line| line.contains("is not offered")),
            "{said:?}"
        );
    }
}

#[test]
fn parts_of_a_node_are_nodes_for_the_choice() {
    let parts = |_| [&ONLY_TCP[..], &[("RIPSTOP_SHM_RANKS", "2")]].concat();
    assert_shm_and_tcp(&start(boot::threads(4), parts));
    let epoll = |_| {
        let more = [("RIPSTOP_SHM_RANKS", "3"), ("RIPSTOP_REACTOR", "epoll")];
        [&ONLY_TCP[..], &more].concat()
    };
    assert_shm_and_tcp(&start(boot::threads(4), epoll));
}

#[test]
fn ranks_of_one_node_share_memory_and_ask_for_no_network() {
    let all: fn(u32) -> RankSettings = |_| {
        vec![
            ("RIPSTOP_FABRIC", "auto"),
            ("RIPSTOP_TCP_IFACE", "nothing0"),
        ]
    };
    let enough: fn(u32) -> RankSettings = |_| {
        vec![
            ("RIPSTOP_TCP_IFACE", "nothing0"),
            ("RIPSTOP_SHM_RANKS", "4"),
        ]
    };
    for settings in [all, enough] {
        for rank in start(boot::threads(4), settings) {
            let (fabric, why) = rank.fabric.as_ref().unwrap();
            assert_eq!(
                (*fabric, why.as_str()),
                ("shm", "shm: all ranks share memory")
            );
            let about: Vec<_> = rank
                .lines
                .iter()
                .filter(|line| line.1.contains("tcp"))
                .collect();
            assert!(about.is_empty(), "{about:?}");
        }
    }
}

#[test]
fn every_rank_hears_why_there_is_no_common_network() {
    let settings = |rank| {
        let mut all = ONLY_TCP.to_vec();
        all.extend((rank == 3).then_some(("RIPSTOP_TCP_IFACE", "nothing0")));
        all
    };
    for rank in start(on_two_nodes(), settings) {
        let why = rank.refusal();
        for part in [
            &format!(
                "tcp: not by {} (RIPSTOP_TCP_IFACE names nothing0",
                called(3)
            ),
            "verbs: ",
            "portals: ",
        ] {
            assert!(why.contains(part), "{part} in: {why}");
        }
    }
}

#[test]
fn a_fabric_that_was_named_is_not_replaced() {
    let verbs = |_| {
        let mut all = ONLY_TCP.to_vec();
        all.push(("RIPSTOP_FABRIC", "shm+verbs"));
        all
    };
    for rank in start(on_two_nodes(), verbs) {
        let why = rank.refusal();
        assert!(!why.contains("tcp"), "{why}");
    }
    let shm = |_| vec![("RIPSTOP_FABRIC", "shm")];
    for rank in start(on_two_nodes(), shm) {
        let why = rank.refusal();
        for part in ["RIPSTOP_FABRIC=shm ", "unset RIPSTOP_FABRIC", "shm+tcp"] {
            assert!(why.contains(part), "{part} in: {why}");
        }
    }
}

#[test]
fn ranks_with_another_setting_of_the_fabric_are_named() {
    let settings = |rank| {
        let mut all = ONLY_TCP.to_vec();
        all.extend((rank == 2).then_some(("RIPSTOP_FABRIC", "shm+tcp")));
        all
    };
    // Rank 2 joins without waiting for the others, which then cannot be reached.
    let init = |boot: Boot| builder(settings(boot.rank)).boot(boot).init().map(drop);
    let ranks = all_at_once(on_two_nodes(), init);
    for rank in [0, 1, 3] {
        let why = ranks[rank].as_ref().unwrap_err().to_string();
        let what = format!("what {} has published", called(2));
        assert!(why.contains(&what), "{why}");
    }
}
