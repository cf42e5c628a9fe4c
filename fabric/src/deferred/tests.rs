use std::{
    io,
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::DeferredDriver;
use crate::{
    driver::{
        AbilitySummary, ArmResult, Caps, CommandFailure, CommandToken, ConnectAhead, DownCause,
        DownEvidence, Driver, DriverAbilities, DriverCommand, FailureWatch, ListLimits,
        PayloadView, PostResult, PreparedEndpoint, Sink, WakeSource, WorldRank,
    },
    lacks_abilities,
    loopback::{LoopbackDriver, world},
    memory::MemoryRegion,
    passes_methods,
};

/// A driver that only needs to be released, and that records some calls.
#[derive(Debug)]
struct Noted {
    driver: LoopbackDriver,
    notes: Notes,
}

impl PreparedEndpoint for Noted {
    fn address(&self) -> Vec<u8> {
        vec![1]
    }

    fn caps(&self) -> &Caps {
        self.driver.caps()
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        self.driver.wait_on()
    }

    fn abilities(&self) -> AbilitySummary {
        AbilitySummary {
            lists: Some(ListLimits::default()),
            connects: true,
            ..AbilitySummary::default()
        }
    }

    fn connect(self: Box<Self>, _addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        Ok(self)
    }
}

impl Driver for Noted {
    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<WorldRank>) {
        let note = format!("expect {:?}", awaited());
        self.notes.lock().unwrap().push(note);
    }

    fn give_up(&mut self, peer: WorldRank, how: Option<DownCause>) -> DownCause {
        self.notes
            .lock()
            .unwrap()
            .push(format!("give up {peer:?} {how:?}"));
        how.unwrap_or(DownCause::Failed)
    }

    passes_methods! { driver: caps, post, progress, arm, wait_on, allocate, expose }
}

impl DriverAbilities for Noted {
    fn connect_ahead(&mut self) -> Option<&mut dyn ConnectAhead> {
        Some(self)
    }

    lacks_abilities! {
        event_counters, task_lists, tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths,
        failure_watch, guarded_memory,
    }
}

impl ConnectAhead for Noted {
    fn connect_many(&mut self, peers: &[WorldRank]) {
        self.notes
            .lock()
            .unwrap()
            .push(format!("connect {peers:?}"));
    }
}

#[derive(Default)]
struct Heard {
    messages: Vec<Vec<u8>>,
    failed: Vec<(CommandToken, CommandFailure)>,
    down: Vec<(WorldRank, DownCause)>,
}

impl Sink for Heard {
    fn message(&mut self, _: WorldRank, header: &[u8], _: PayloadView<'_>) {
        self.messages.push(header.to_vec());
    }

    fn complete(&mut self, _: CommandToken) {
        panic!("nothing is put here");
    }

    fn fetched(&mut self, _: CommandToken, _: u64) {
        panic!("nothing is fetched here");
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.failed.push((token, why));
    }

    fn reached(&mut self, _: CommandToken) {
        panic!("nothing is watched here");
    }

    fn triggered(&mut self, _: CommandToken) {
        panic!("no list is posted here");
    }

    fn peer_down(&mut self, peer: WorldRank, how: DownCause) {
        self.down.push((peer, how));
    }
}

type Word = io::Result<()>;
type Notes = Arc<Mutex<Vec<String>>>;

/// Returns rank 0 of three, which joins when it gets a word; the sender of that word; the notes of its driver; and the other
/// ranks.
fn late() -> (DeferredDriver, Sender<Word>, Notes, Vec<LoopbackDriver>) {
    let mut others = world(3);
    let notes = Notes::default();
    let noted = Noted {
        driver: others.remove(0),
        notes: Arc::clone(&notes),
    };
    let (tell, told): (_, Receiver<Word>) = mpsc::channel();
    let join = move |prepared: Box<dyn PreparedEndpoint>| {
        told.recv().map_err(io::Error::other)??;
        prepared.connect(&[])
    };
    let late = DeferredDriver::open(Box::new(noted), (WorldRank(0), 3), join).unwrap();
    (late, tell, notes, others)
}

fn message(to: u32) -> DriverCommand<'static> {
    DriverCommand::Message {
        to: WorldRank(to),
        header: b"hello",
        body: b"",
    }
}

/// Sleeps until one of the descriptors is readable.
fn sleep_on(late: &DeferredDriver) -> bool {
    let waits = late.wait_on();
    let fds = waits.iter().map(|wait| match wait {
        WakeSource::Fd(fd) => PollFd::new(&**fd, PollFlags::IN),
        other => panic!("{other:?}"),
    });
    let guard = Timespec::try_from(Duration::from_secs(60)).unwrap();
    poll(&mut fds.collect::<Vec<_>>(), Some(&guard)).unwrap() > 0
}

fn why_down(late: &mut DeferredDriver) -> String {
    match late.evidence(WorldRank(1)) {
        DownEvidence::Reported(why) => why,
        evidence => panic!("{evidence:?}"),
    }
}

/// Sleeps until it has joined, or has failed to, and no longer.
fn end_at(late: &mut DeferredDriver, heard: &mut Heard) {
    while !late.knows_peers() {
        if late.arm() == ArmResult::Ready {
            assert!(sleep_on(late), "no thread rang");
        }
        let _turn = late.progress(9, heard);
    }
}

fn end(late: &mut DeferredDriver, heard: &mut Heard) {
    end_at(late, heard);
    let _turn = late.progress(9, heard);
}

#[test]
fn messages_wait_until_the_others_are_known() {
    let (mut late, tell, _, mut others) = late();
    let mut heard = Heard::default();
    assert!(matches!(late.post(message(1)), PostResult::Full(_)));
    assert_eq!(late.arm(), ArmResult::Ready);
    assert_eq!(late.progress(9, &mut heard).events, 0);
    let waits = late.wait_on().len();
    tell.send(Ok(())).unwrap();
    end(&mut late, &mut heard);
    assert!(matches!(late.post(message(1)), PostResult::Posted));
    let _turn = others[0].progress(9, &mut heard);
    assert_eq!(heard.messages, [b"hello"]);
    assert_eq!(late.arm(), ArmResult::Ready, "the bell was heard");
    assert_eq!(late.wait_on().len(), waits);
}

#[test]
fn memory_for_peers_is_waited_for() {
    let (mut late, tell, ..) = late();
    let plain = MemoryRegion::anonymous(100).unwrap();
    assert!(late.expose(plain.range()).is_none(), "a key for no peer");
    let teller = thread::spawn(move || tell.send(Ok(())).unwrap());
    let region = late.allocate(100).unwrap();
    assert!(late.expose(region.range()).is_some());
    teller.join().unwrap();
}

#[test]
fn what_was_said_before_is_heard_later() {
    let (mut late, tell, notes, _others) = late();
    for peer in [1, 2] {
        late.connect_ahead()
            .unwrap()
            .connect_many(&[WorldRank(peer)]);
    }
    assert_eq!(
        late.give_up(WorldRank(2), Some(DownCause::Finished)),
        DownCause::Finished
    );
    for awaited in [vec![WorldRank(1), WorldRank(2)], vec![WorldRank(1)]] {
        late.expect(&mut || awaited.clone());
    }
    assert!(notes.lock().unwrap().is_empty());
    tell.send(Ok(())).unwrap();
    end(&mut late, &mut Heard::default());
    let wanted = [
        "connect [WorldRank(1), WorldRank(2)]",
        "give up WorldRank(2) Some(Finished)",
        "expect [WorldRank(1)]",
    ];
    assert_eq!(*notes.lock().unwrap(), wanted);
}

#[test]
fn a_rank_that_never_learns_the_addresses_loses_its_peers_and_reports_why() {
    let (mut late, tell, _, _others) = late();
    tell.send(Err(io::Error::other("rank 2 is silent")))
        .unwrap();
    let mut heard = Heard::default();
    end_at(&mut late, &mut heard);
    assert!(
        matches!(late.post(message(1)), PostResult::Full(_)),
        "not told yet"
    );
    let _turn = late.progress(9, &mut heard);
    assert_eq!(
        heard.down,
        [
            (WorldRank(1), DownCause::Failed),
            (WorldRank(2), DownCause::Failed)
        ]
    );
    let why = why_down(&mut late);
    assert!(why.contains("rank 2 is silent"), "{why}");
    let why = late.allocate(1).unwrap_err().to_string();
    assert!(why.contains("rank 2 is silent"), "{why}");
    assert!(matches!(late.post(message(1)), PostResult::Posted));
    let token = CommandToken(5);
    late.task_lists().unwrap().cancel_lists(token);
    assert_eq!(late.arm(), ArmResult::Busy);
    let _turn = late.progress(9, &mut heard);
    assert!(matches!(
        heard.failed[..],
        [(CommandToken(5), CommandFailure::Cancelled)]
    ));
    assert_eq!(heard.down.len(), 2, "told once");
    assert_eq!(late.arm(), ArmResult::Ready);
}

#[test]
fn a_panic_while_it_joins_is_the_end_of_all_ways() {
    let prepared = Noted {
        driver: world(2).remove(0),
        notes: Arc::default(),
    };
    let join = |_| panic!("this panic is part of the test");
    let mut late = DeferredDriver::open(Box::new(prepared), (WorldRank(0), 2), join).unwrap();
    let mut heard = Heard::default();
    end(&mut late, &mut heard);
    let _turn = late.progress(9, &mut heard);
    assert_eq!(heard.down, [(WorldRank(1), DownCause::Failed)]);
    assert!(why_down(&mut late).contains("panicked"));
}

#[test]
fn a_rank_that_leaves_before_it_has_joined_joins_first_and_has_finished() {
    let (late, tell, _, mut others) = late();
    let left = thread::spawn(move || drop(late));
    tell.send(Ok(())).unwrap();
    left.join().unwrap();
    let mut heard = Heard::default();
    let _turn = others[1].progress(9, &mut heard);
    assert_eq!(heard.down, [(WorldRank(0), DownCause::Finished)]);
}
