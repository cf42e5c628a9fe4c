//! Futures that are always ready must not starve the rest: a loop of them runs beside a timer, a task, and a request of a peer,
//! in every way to drive a runtime.
//!
//! A loop that starves the rest makes the test hang, and the time limit of the ranks ends it.
#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

#[path = "../support/ranks.rs"]
mod ranks;
mod starving;

use std::{
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
    time::Duration,
};

use ripstop::{Collectives, Comm, Runtime, Sum, Window, rma::PassiveWindow};

use self::starving::Starving;

const GO: u32 = 1;
const LONG: u32 = 2;
const SERVED: u32 = 3;

/// A length that needs the receiver's help.
const LONG_LEN: usize = 1 << 20;

/// What another library's executor runs beside the loop.
type Foreign = fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>>;

#[test]
fn a_loop_of_anything_that_is_ready_at_once_lets_others_go_on_with_an_agent() {
    in_block_on("thread");
}

#[test]
fn a_loop_of_anything_that_is_ready_at_once_lets_others_go_on_without_an_agent() {
    in_block_on("inline");
}

#[test]
fn a_loop_of_anything_that_is_ready_at_once_lets_others_go_on_in_block_on_of_a_runtime_for_tokio() {
    in_block_on("tokio");
}

#[test]
fn a_loop_of_anything_that_is_ready_at_once_lets_others_go_on_where_one_thread_of_tokio_drives() {
    on_one_thread_of_tokio("tokio");
}

#[test]
fn a_loop_of_anything_that_is_ready_at_once_lets_others_go_on_where_tokio_and_an_agent_drive() {
    on_one_thread_of_tokio("thread");
}

#[test]
fn block_on_of_what_is_ready_at_once_lets_others_go_on_however_often_it_is_called() {
    ranks::run(2, &[("RIPSTOP_PROGRESS", "inline")], |runtime| {
        let world = runtime.world();
        if world.rank() == 1 {
            let long = world.send(0, LONG, vec![1_u8; LONG_LEN]);
            runtime.block_on(long).unwrap();
        } else {
            let (inbox, task) = (world.recv::<u8>(1, LONG), world.spawn(async {}));
            while !inbox.is_done() {
                runtime.block_on(starving::to_itself(&world));
            }
            runtime.block_on(task);
            let task = world.spawn(world.sleep(Duration::from_millis(1)));
            let over = world.spawn(async {
                task.await;
            });
            runtime.block_on(over);
        }
    });
}

#[test]
fn tests_for_completion_make_turns_without_an_agent() {
    ranks::run(2, &[("RIPSTOP_PROGRESS", "inline")], |runtime| {
        let world = runtime.world();
        let other = 1 - world.rank();
        runtime.block_on(async {
            let inbox = world.recv::<u8>(other, LONG);
            let sent = world.send(other, LONG, vec![1_u8; LONG_LEN]);
            while !(inbox.is_done() && sent.is_done()) {}
            let sum = world.all_reduce([1_u64], Sum);
            while !sum.is_done() {}
            assert_eq!(sum.await.unwrap(), [2]);
        });
    });
}

fn in_block_on(progress: &str) {
    ranks::run(2, &[("RIPSTOP_PROGRESS", progress)], |runtime| {
        let world = runtime.world();
        runtime.block_on(rank(&world, || Box::pin(async {})));
    });
}

fn on_one_thread_of_tokio(progress: &str) {
    ranks::run(2, &[("RIPSTOP_PROGRESS", progress)], |runtime: Runtime| {
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let world = runtime.world();
        executor.block_on(async {
            let driver = tokio::spawn(runtime.drive_on_tokio());
            rank(&world, || Box::pin(foreign())).await;
            driver.abort();
        });
    });
}

/// A task of tokio's, and a timer.
async fn foreign() {
    let task = tokio::spawn(tokio::time::sleep(Duration::from_millis(1)));
    task.await.unwrap();
}

/// Rank 0 runs the loop; rank 1 needs an answer from it.
async fn rank(world: &Comm, foreign: Foreign) {
    let color = u32::try_from(world.rank()).unwrap();
    let alone = world.split(color, 0).await.unwrap();
    let mut window = Window::<u64>::dynamic(world).await.unwrap();
    let piece = window.attach(world.alloc(1).unwrap()).unwrap();
    let at = world.bcast(0, [piece.at(0) as u64]).await.unwrap()[0];
    let window = window.into_passive().await.unwrap();
    for starving in Starving::ALL {
        if world.rank() == 0 {
            Box::pin(starve(*starving, world, &alone, foreign)).await;
        } else {
            want(world, &window, usize::try_from(at).unwrap()).await;
        }
    }
    window.free().await.unwrap();
    world.barrier().await.unwrap();
}

async fn starve(starving: Starving, world: &Comm, alone: &Comm, foreign: Foreign) {
    let end = AtomicBool::new(false);
    let others = async {
        let long = world.recv::<u8>(1, LONG);
        world.send(1, GO, [0_u8; 0]).await.unwrap();
        world.sleep(Duration::from_millis(1)).await;
        assert_eq!(world.spawn(async { 7 }).await, 7);
        foreign().await;
        assert_eq!(long.await.unwrap().0.len(), LONG_LEN);
        world.recv::<u8>(1, SERVED).await.unwrap();
        end.store(true, Ordering::Relaxed);
    };
    let (mut others, mut loops) = (pin!(others), Box::pin(starving.until(&end, world, alone)));
    let (mut over, mut looped) = (false, false);
    std::future::poll_fn(|cx| {
        looped = looped || loops.as_mut().poll(cx).is_ready();
        over = over || others.as_mut().poll(cx).is_ready();
        if looped && over {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Sends a long message that the other rank helps to move, and updates a number in its memory that only it can reach.
async fn want(world: &Comm, window: &PassiveWindow<u64>, at: usize) {
    world.recv::<u8>(0, GO).await.unwrap();
    world.send(0, LONG, vec![1_u8; LONG_LEN]).await.unwrap();
    let locked = window.lock_shared(0).await.unwrap();
    locked.fetch_op(0, at, 1, Sum).await.unwrap();
    locked.unlock().await;
    world.send(0, SERVED, [0_u8; 0]).await.unwrap();
}
