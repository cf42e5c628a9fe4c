//! Tests with ranks that are given up while they are alive, and what these may still write.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};

use super::{Board, Ear, Heard, Shm, ShmConfig, hear, message, pair, posted, range};
use crate::{
    driver::{
        ArmResult, CommandToken, DownCause, Driver, DriverCommand, NamedSlots, PostResult,
        SlotName, WorldRank,
    },
    memory::RemoteRegion,
};

fn put<'a>(from: &mut [u8], into: RemoteRegion, token: u64) -> DriverCommand<'a> {
    DriverCommand::Put {
        to: WorldRank(0),
        from: range(from),
        into,
        count: None,
        token: CommandToken(token),
    }
}

#[test]
fn a_rank_that_was_given_up_writes_nothing_and_is_notified() {
    for linked in [false, true] {
        let (mut survivor, mut lost) = pair();
        let mut memory = [0; 64];
        let Some(key) = survivor.expose(range(&mut memory)) else {
            return; // the system does not let any rank reach the memory
        };
        let mut bytes = [1; 64];
        if linked {
            posted(&mut lost, put(&mut bytes, key, 1));
            assert_eq!(hear(&mut lost), [Heard::Complete(1)]);
        }
        survivor.begin_giving_up(1);
        let before = memory;
        posted(&mut lost, put(&mut [2; 64], key, 2));
        assert_eq!(hear(&mut survivor), [Heard::Down(1, DownCause::Failed)]);
        let mut heard = hear(&mut lost);
        heard.sort_by_key(|heard| matches!(heard, Heard::Down(..)));
        let ended = [
            Heard::Failed(2, "peer down"),
            Heard::Down(0, DownCause::Failed),
        ];
        assert_eq!(heard, ended);
        assert_eq!(memory, before, "linked: {linked}");
        posted(&mut survivor, message(1, b"", b"to nobody"));
        assert_eq!((hear(&mut survivor), hear(&mut lost)), (vec![], vec![]));
    }
}

#[test]
fn a_rank_that_was_given_up_for_lack_of_memory_is_notified() {
    let (mut survivor, mut lost) = pair();
    posted(&mut lost, message(0, b"", b"a question"));
    assert_eq!(hear(&mut survivor).len(), 1);
    survivor.give_up(1, std::io::ErrorKind::OutOfMemory.into());
    assert_eq!(hear(&mut survivor), [Heard::Down(1, DownCause::Failed)]);
    assert_eq!(
        hear(&mut lost),
        [Heard::Down(0, DownCause::Failed)],
        "no answer comes"
    );
}

#[test]
fn a_rank_that_is_given_up_during_a_copy_is_down_when_the_copy_is_complete() {
    let (mut survivor, mut lost) = pair();
    posted(&mut survivor, message(1, b"", b"hello"));
    assert_eq!(hear(&mut lost).len(), 1);
    let board = survivor.board.clone();
    board.copies_with(1).store(1, SeqCst);
    survivor.begin_giving_up(1);
    assert_eq!(hear(&mut survivor), []);
    assert_eq!(survivor.arm(), ArmResult::Ready, "it does not rest");
    board.copies_with(1).store(0, SeqCst);
    assert_eq!(survivor.arm(), ArmResult::Busy, "it sleeps on it");
    assert_eq!(hear(&mut survivor), [Heard::Down(1, DownCause::Failed)]);
    assert_eq!(hear(&mut lost), [Heard::Down(0, DownCause::Failed)]);
}

/// Returns three ranks in contact: one with few chunks, one that will be given up, and one that stays.
fn three() -> [Shm; 3] {
    let board = Board::create(3).unwrap();
    let few = ShmConfig {
        chunks: 4,
        ..ShmConfig::new(0)
    };
    let mut all = [few, ShmConfig::new(1), ShmConfig::new(2)]
        .map(|config| Shm::open(&board, config).unwrap());
    for rank in [1, 2] {
        posted(&mut all[rank], message(0, b"", b"hello"));
    }
    assert_eq!(hear(&mut all[0]).len(), 2);
    all
}

/// Sends long messages until there are no more chunks. Returns how many it sent.
fn use_all_chunks(from: &mut Shm, to: u32) -> usize {
    let posts =
        |from: &mut Shm| matches!(from.post(message(to, b"", &[9; 500])), PostResult::Posted);
    (0..9).take_while(|_| posts(from)).count()
}

#[test]
fn a_living_rank_that_was_given_up_reads_its_messages_and_then_returns_the_chunks() {
    let [mut survivor, mut lost, mut other] = three();
    posted(&mut survivor, message(1, b"", &[1; 500]));
    survivor.begin_giving_up(1);
    assert_eq!(hear(&mut survivor), [Heard::Down(1, DownCause::Failed)]);
    assert_eq!(use_all_chunks(&mut survivor, 2), 3);
    let heard = hear(&mut lost);
    assert_eq!(heard[0], Heard::Message(0, vec![], vec![1; 500]));
    assert_eq!(heard[1..], [Heard::Down(0, DownCause::Failed)]);
    assert_eq!(use_all_chunks(&mut survivor, 2), 1, "it has read them");
    assert_eq!(hear(&mut other).len(), 4);
}

#[test]
fn slot_messages_for_a_rank_that_was_given_up_stay_until_it_takes_them_or_closes() {
    for takes in [true, false] {
        let [mut survivor, mut lost, _other] = three();
        let name = SlotName { ctx: 1, tag: 1 };
        assert!(survivor.put_slot(WorldRank(1), name, 0, &[1; 500], false));
        survivor.begin_giving_up(1);
        assert_eq!(hear(&mut survivor), [Heard::Down(1, DownCause::Failed)]);
        assert_eq!(use_all_chunks(&mut survivor, 2), 3);
        assert_eq!(hear(&mut lost), [Heard::Down(0, DownCause::Failed)]);
        assert_eq!(use_all_chunks(&mut survivor, 2), 0);
        if takes {
            let mut got = Vec::new();
            let taken = lost.take_slot(WorldRank(0), name, &mut |pieces| {
                got = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
                true
            });
            assert!(taken.is_some_and(|taken| taken.filled) && got == [1; 500]);
        } else {
            drop(lost);
        }
        survivor.pool.fill_for_slots(&[], false); // forget the last message, which otherwise keeps its chunks to be put again
        assert_eq!(use_all_chunks(&mut survivor, 2), 1);
        assert!(survivor.retired_links.is_empty());
    }
}

#[test]
fn a_rank_that_waits_for_a_chunk_is_woken_when_a_rank_that_was_given_up_has_read_it() {
    let [mut survivor, mut lost, mut other] = three();
    for _ in 0..4 {
        posted(&mut survivor, message(1, b"", &[1; 500]));
    }
    survivor.begin_giving_up(1);
    assert_eq!(hear(&mut survivor), [Heard::Down(1, DownCause::Failed)]);
    assert_eq!(use_all_chunks(&mut survivor, 2), 0);
    assert_eq!(survivor.arm(), ArmResult::Ready);
    let woken = lost.counters.wakes_sent.get();
    assert_eq!(hear(&mut lost).len(), 5);
    assert!(lost.counters.wakes_sent.get() > woken);
    assert!(
        !hear(&mut other)
            .iter()
            .any(|heard| matches!(heard, Heard::Message(..)))
    );
    let room = survivor.progress(64, &mut Ear::default());
    assert_eq!(room.events, 1);
    assert_eq!(use_all_chunks(&mut survivor, 2), 4);
}

#[test]
fn memory_withdrawn_from_a_rank_that_was_given_up_does_not_change() {
    for _ in 0..20 {
        let (mut survivor, mut lost) = pair();
        let mut memory = vec![0; 1 << 20];
        let Some(key) = survivor.expose(range(&mut memory)) else {
            return; // the system does not let any rank reach the memory
        };
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let begun = &begun;
            scope.spawn(move || {
                let (mut bytes, mut ear) = (vec![1; 1 << 20], Ear::default());
                while !ear.0.contains(&Heard::Down(0, DownCause::Failed)) {
                    let (PostResult::Posted | PostResult::Full(_)) =
                        lost.post(put(&mut bytes, key, 1));
                    let _more_or_not = lost.progress(64, &mut ear);
                    begun.store(true, Relaxed);
                }
            });
            while !begun.load(Relaxed) {
                std::thread::yield_now();
            }
            survivor.begin_giving_up(1);
            while hear(&mut survivor).is_empty() {
                std::thread::yield_now();
            }
            memory.fill(0);
        });
        assert!(memory.iter().all(|byte| *byte == 0));
    }
}
