//! Windows with attached and detached memory.

use ripstop::{Collectives, Comm, ErrorKind, Sum, Window};

use crate::{
    ranks,
    worlds::{Rank, everywhere},
};

/// The position of the other rank's piece.
async fn exchange(world: &Comm, at: usize) -> usize {
    let other = 1 - world.rank();
    let inbox = world.recv::<u64>(other, 9);
    world.send(other, 9, [at as u64]).await.unwrap();
    usize::try_from(inbox.await.unwrap().0[0]).unwrap()
}

#[test]
fn what_is_attached_is_accessed_and_what_was_detached_is_not() {
    fn pieces(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, other) = (world.rank(), 1 - world.rank());
            let mut window = Window::<u64>::dynamic(&world).await.unwrap();
            let first = window.attach(world.alloc(3 + me).unwrap()).unwrap();
            let (head, tail) = world.alloc(6).unwrap().split_at(2);
            let second = window.attach(tail).unwrap();
            let theirs = exchange(&world, second.at(1)).await;
            for n in 0..3 {
                let exposure = window.post(&[other]).unwrap();
                let access = exposure.start(&[other]).await.unwrap();
                access.put(other, theirs, vec![n + 1; 3]).await.unwrap();
                access
                    .accumulate(other, theirs + 1, [10], Sum)
                    .await
                    .unwrap();
                assert_eq!(access.fetch_add(other, theirs, 100).await.unwrap(), n + 1);
                let got = access.get(other, theirs, [0; 3]).await.unwrap();
                assert_eq!(got, [n + 101, n + 11, n + 1]);
                for (at, len) in [(theirs - 1, 5), (theirs + 3, 1), (0, 5), (5 << 36, 1)] {
                    let gone = access.put(other, at, vec![7; len]).await.unwrap_err();
                    let sentence = gone.to_string();
                    assert!(sentence.contains("not attached"), "{at}: {sentence}");
                    assert_eq!(gone.buf, vec![7; len]);
                }
                access.complete().await.unwrap();
                assert_eq!(exposure.wait().await.unwrap(), []);
                assert_eq!(
                    window.piece_mut(second).unwrap(),
                    [0, n + 101, n + 11, n + 1]
                );
                assert_eq!(window.piece_mut(first).unwrap(), vec![0; 3 + me]);
            }
            let tail = window.detach(second).unwrap();
            assert!(window.detach(second).is_err() && window.piece_mut(second).is_err());
            assert_eq!(*head.join(tail).unwrap(), [0, 0, 0, 103, 13, 3]);
            let exposure = window.post(&[other]).unwrap();
            let access = exposure.start(&[other]).await.unwrap();
            world.barrier().await.unwrap();
            assert!(access.put(other, theirs, [1]).await.is_err());
            access.complete().await.unwrap();
            exposure.wait().await.unwrap();
            window.free().await.unwrap();
        })
    }
    everywhere(2, pieces);
}

#[test]
fn pieces_are_detached_between_epochs_and_attached_to_windows_that_grow() {
    fn wrong(world: Comm) -> Rank {
        Box::pin(async move {
            let other = 1 - world.rank();
            let mut fixed = Window::<u32>::allocate(&world, 1).await.unwrap();
            let refused = fixed.attach(world.alloc(1).unwrap()).unwrap_err();
            assert!(refused.to_string().contains("Window::dynamic"), "{refused}");
            let mut window = Window::<u32>::dynamic(&world).await.unwrap();
            let piece = window.attach(world.alloc(1).unwrap()).unwrap();
            let theirs = exchange(&world, piece.at(0)).await;
            let _forgotten = window.post(&[other]).unwrap();
            let open = window.detach(piece).unwrap_err();
            assert!(matches!(open.kind, ErrorKind::Epoch(_)), "{open}");
            let access = window.start(&[other]).await.unwrap();
            access.put(other, theirs, [5]).await.unwrap();
            access.complete().await.unwrap();
            window.resume().unwrap().wait().await.unwrap();
            assert_eq!(*window.detach(piece).unwrap(), [5]);
        })
    }
    everywhere(2, wrong);
}

#[test]
fn more_pieces_come_and_go_than_a_window_ever_has_and_each_that_went_is_refused() {
    fn few(world: Comm) -> Rank {
        Box::pin(many(world, 1000))
    }
    everywhere(2, few);
    ranks::run(2, &[], |runtime| {
        runtime.block_on(many(runtime.world(), 1_200_000))
    });
}

async fn many(world: Comm, rounds: u32) {
    let other = 1 - world.rank();
    let mut window = Window::<u64>::dynamic(&world).await.unwrap();
    let mut buf = world.alloc(4).unwrap();
    let stays = window.attach(world.alloc(2).unwrap()).unwrap();
    let first = window.attach(world.alloc(1).unwrap()).unwrap();
    drop(window.detach(first).unwrap());
    for _ in 0..rounds {
        let piece = window.attach(buf).unwrap();
        buf = window.detach(piece).unwrap();
    }
    let last = window.attach(buf).unwrap();
    assert_eq!(window.piece_mut(last).unwrap(), [0; 4]);
    let gone = window.detach(first).unwrap_err();
    assert!(gone.to_string().contains("not attached"), "{gone}");
    let theirs = exchange(&world, last.at(0)).await;
    let stale = exchange(&world, first.at(0)).await;
    let exposure = window.post(&[other]).unwrap();
    let access = exposure.start(&[other]).await.unwrap();
    access.put(other, theirs, [1, 2, 3, 4]).await.unwrap();
    let gone = access.put(other, stale, [9]).await.unwrap_err();
    assert!(gone.to_string().contains("not attached"), "{gone}");
    access.complete().await.unwrap();
    exposure.wait().await.unwrap();
    assert_eq!(window.piece_mut(last).unwrap(), [1, 2, 3, 4]);
    assert_eq!(window.piece_mut(stays).unwrap(), [0; 2]);
}
