//! Ranks that are given up while they live, and what they may still write.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};

use super::{Ear, Heard, hear, message, pair, posted, range};
use crate::{
    driver::{Armed, Command, Down, Driver, Peer, Post, Token},
    memory::RemoteRegion,
};

fn put<'a>(from: &mut [u8], into: RemoteRegion, token: u64) -> Command<'a> {
    Command::Put {
        to: Peer(0),
        from: range(from),
        into,
        count: None,
        token: Token(token),
    }
}

#[test]
fn who_is_given_up_writes_nothing_and_hears_of_it() {
    for linked in [false, true] {
        let (mut survivor, mut lost) = pair();
        let mut memory = [0; 64];
        let Some(key) = survivor.expose(range(&mut memory)) else {
            return; // the system lets nobody reach it
        };
        let mut bytes = [1; 64];
        if linked {
            posted(&mut lost, put(&mut bytes, key, 1));
            assert_eq!(hear(&mut lost), [Heard::Complete(1)]);
        }
        survivor.part_from(1);
        let before = memory;
        posted(&mut lost, put(&mut [2; 64], key, 2));
        assert_eq!(hear(&mut survivor), [Heard::Down(1, Down::Failed)]);
        let mut heard = hear(&mut lost);
        heard.sort_by_key(|heard| matches!(heard, Heard::Down(..)));
        let ended = [Heard::Failed(2, "peer down"), Heard::Down(0, Down::Failed)];
        assert_eq!(heard, ended);
        assert_eq!(memory, before, "linked: {linked}");
        posted(&mut survivor, message(1, b"", b"to nobody"));
        assert_eq!((hear(&mut survivor), hear(&mut lost)), (vec![], vec![]));
    }
}

#[test]
fn who_is_given_up_for_lack_of_memory_hears_of_it() {
    let (mut survivor, mut lost) = pair();
    posted(&mut lost, message(0, b"", b"a question"));
    assert_eq!(hear(&mut survivor).len(), 1);
    survivor.give_up(1, std::io::ErrorKind::OutOfMemory.into());
    assert_eq!(hear(&mut survivor), [Heard::Down(1, Down::Failed)]);
    assert_eq!(
        hear(&mut lost),
        [Heard::Down(0, Down::Failed)],
        "no answer comes"
    );
}

#[test]
fn who_is_given_up_in_the_middle_of_a_copy_is_gone_when_that_is_over() {
    let (mut survivor, mut lost) = pair();
    posted(&mut survivor, message(1, b"", b"hello"));
    assert_eq!(hear(&mut lost).len(), 1);
    let board = survivor.board.clone();
    board.copies_with(1).store(1, SeqCst);
    survivor.part_from(1);
    assert_eq!(hear(&mut survivor), []);
    assert_eq!(survivor.arm(), Armed::Ready, "it does not rest");
    board.copies_with(1).store(0, SeqCst);
    assert_eq!(survivor.arm(), Armed::Busy, "it sleeps on it");
    assert_eq!(hear(&mut survivor), [Heard::Down(1, Down::Failed)]);
    assert_eq!(hear(&mut lost), [Heard::Down(0, Down::Failed)]);
}

#[test]
fn what_is_taken_back_from_who_was_given_up_stays_as_it_is() {
    for _ in 0..20 {
        let (mut survivor, mut lost) = pair();
        let mut memory = vec![0; 1 << 20];
        let Some(key) = survivor.expose(range(&mut memory)) else {
            return; // the system lets nobody reach it
        };
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let begun = &begun;
            scope.spawn(move || {
                let (mut bytes, mut ear) = (vec![1; 1 << 20], Ear::default());
                while !ear.0.contains(&Heard::Down(0, Down::Failed)) {
                    let (Post::Posted | Post::Full(_)) = lost.post(put(&mut bytes, key, 1));
                    let _more_or_not = lost.progress(64, &mut ear);
                    begun.store(true, Relaxed);
                }
            });
            while !begun.load(Relaxed) {
                std::thread::yield_now();
            }
            survivor.part_from(1);
            while hear(&mut survivor).is_empty() {
                std::thread::yield_now();
            }
            memory.fill(0);
        });
        assert!(memory.iter().all(|byte| *byte == 0));
    }
}
