//! Tasks, threads, and the end of a runtime.

use std::{
    future::poll_fn,
    mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use ripstop::{Collectives, Comm, ErrorKind, Result, Runtime, boot};

use crate::{content::content, mark, marked, ranks, turns::until};

#[test]
fn a_thousand_tasks_talk_at_the_same_time() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        let peer = 1 - world.rank();
        let task = |tag: u32| {
            let world = world.clone();
            runtime.spawn(async move {
                let inbox = world.recv::<u32>(peer, tag);
                world
                    .send(peer, tag, vec![tag; 1 + tag as usize % 3000])
                    .await?;
                let (got, _) = inbox.await?;
                assert_eq!(got.len(), 1 + tag as usize % 3000);
                Ok::<u32, ripstop::Error>(got[0])
            })
        };
        let tasks: Vec<_> = (0..1000).map(task).collect();
        runtime.block_on(async {
            for (tag, task) in (0..).zip(tasks) {
                assert_eq!(task.await.expect("both talked"), tag);
            }
        });
        runtime.close().expect("a good end");
    });
}

#[test]
fn a_panic_in_a_task_reaches_only_the_awaiting_caller() {
    ranks::run(1, &[], |runtime| {
        let bad = runtime.spawn(async { panic!("on purpose") });
        let good = runtime.spawn(async { 7 });
        let caught = catch_unwind(AssertUnwindSafe(|| runtime.block_on(bad)));
        let panic = caught.expect_err("it panicked");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
        assert_eq!(runtime.block_on(good), 7);
        runtime.close().expect("a good end");
    });
}

#[test]
fn an_aborted_task_drops_what_it_owns_and_its_receives_are_canceled() {
    for progress in ["thread", "inline"] {
        ranks::run(2, &[("RIPSTOP_PROGRESS", progress)], |runtime| {
            let world = runtime.world();
            let peer = 1 - world.rank();
            let owned = Arc::new(());
            let witness = Arc::downgrade(&owned);
            let begun = Arc::new(AtomicBool::new(false));
            let server = runtime.spawn({
                let (world, begun) = (world.clone(), Arc::clone(&begun));
                async move {
                    let inbox = world.recv::<u8>(peer, 1);
                    begun.store(true, Ordering::Relaxed);
                    let got = inbox.await;
                    drop(owned);
                    got.map(drop)
                }
            });
            runtime.block_on(async {
                until(|| begun.load(Ordering::Relaxed)).await;
                assert!(witness.upgrade().is_some());
                assert!(server.abort().await.is_none(), "it waits for a message");
                assert!(witness.upgrade().is_none());
                world.barrier().await.expect("both are there");
                // No receive of the task takes this message.
                world.send(peer, 1, [9_u8]).await.expect("the peer lives");
                let (got, _) = world.recv::<u8>(peer, 1).await.expect("the peer lives");
                assert_eq!(got, [9]);
            });
            runtime.close().expect("a good end");
        });
    }
}

#[test]
fn a_task_that_ended_before_it_was_aborted_gives_its_result_or_its_panic() {
    ranks::run(1, &[], |runtime| {
        let over = Arc::new(Mutex::new(0));
        let mark = |over: &Arc<Mutex<u32>>| *over.lock().expect("no panic") += 1;
        let task = |panics: bool| {
            let over = Arc::clone(&over);
            runtime.spawn(async move {
                mark(&over);
                assert!(!panics, "on purpose");
                7
            })
        };
        let (good, bad) = (task(false), task(true));
        runtime.block_on(until(|| *over.lock().expect("no panic") == 2));
        // A task that has begun and does not wait cannot be stopped before its end.
        assert_eq!(runtime.block_on(good.abort()), Some(7));
        let caught = catch_unwind(AssertUnwindSafe(|| runtime.block_on(bad.abort())));
        caught.expect_err("it panicked");
        // This one is aborted before it begins, and no task waits for its end.
        drop(task(true).abort());
        runtime.close().expect("a good end");
    });
}

#[test]
fn tasks_that_wake_themselves_do_not_block_others() {
    for progress in ["thread", "inline"] {
        ranks::run(2, &[("RIPSTOP_PROGRESS", progress)], |runtime| {
            let world = runtime.world();
            let over = Arc::new(AtomicBool::new(false));
            let wait = |over: Arc<AtomicBool>| async move {
                until(|| over.load(Ordering::Relaxed)).await;
            };
            let tasks = [0; 2].map(|_| runtime.spawn(wait(Arc::clone(&over))));
            runtime.block_on(async {
                runtime.sleep(Duration::from_millis(1)).await;
                world.barrier().await.expect("both are there");
                over.store(true, Ordering::Relaxed);
                for task in tasks {
                    task.await;
                }
                // A running task does not prevent the end.
                drop(runtime.spawn(until(|| false)));
                world.barrier().await.expect("both are there");
            });
            drop(world);
            runtime.close().expect("a good end");
        });
    }
}

#[test]
fn several_threads_may_block_on_one_runtime() {
    ranks::run(2, &[], |runtime| {
        let runtime = Arc::new(runtime);
        let world = runtime.world();
        let peer = 1 - world.rank();
        let threads = (0..4_u32).map(|tag| {
            let (runtime, world) = (Arc::clone(&runtime), world.clone());
            thread::spawn(move || {
                runtime.block_on(async {
                    for round in 0..300_u32 {
                        let inbox = world.recv_into(peer, tag, [0_u32]);
                        world.send(peer, tag, [round]).await.expect("sent");
                        assert_eq!(inbox.await.expect("received").0, [round]);
                    }
                });
            })
        });
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        Arc::into_inner(runtime)
            .expect("the last holder")
            .close()
            .expect("a good end");
    });
}

#[test]
fn a_communicator_works_from_threads_that_drive_nothing() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        let peer = 1 - world.rank();
        let sender = {
            let world = world.clone();
            thread::spawn(move || {
                (0..500_u32).for_each(|number| world.send(peer, 1, [number]).detach())
            })
        };
        runtime.block_on(async {
            for number in 0..500 {
                assert_eq!(
                    world.recv_into(peer, 1, [0_u32]).await.expect("sent").0,
                    [number]
                );
            }
        });
        sender.join().expect("no panic");
        runtime.close().expect("a good end");
    });
}

/// Ranks that are processes cannot run this, and say so: they find their test by the name of the thread that runs it.
#[test]
fn a_process_may_hold_several_jobs() {
    let jobs: Vec<_> = (0..3_u64)
        .map(|job| {
            thread::spawn(move || {
                ranks::run(2, &[], move |runtime| {
                    let world = runtime.world();
                    let peer = 1 - world.rank();
                    runtime.block_on(async {
                        let inbox = world.recv::<u64>(peer, 1);
                        world.send(peer, 1, vec![job; 5000]).await.expect("sent");
                        assert_eq!(inbox.await.expect("received").0, vec![job; 5000]);
                    });
                });
            })
        })
        .collect();
    for job in jobs {
        job.join().expect("no panic");
    }
}

#[test]
fn operations_of_a_runtime_that_ended_say_so() {
    ranks::run(1, &[], |runtime| {
        let world = runtime.world();
        let posted = world.recv_into(0, 1, vec![3_u8; 10]);
        let probed = {
            world.send(0, 2, content(1, 100)).detach();
            runtime.block_on(world.probe(0, 2)).expect("sent")
        };
        runtime.close().expect("a good end");
        assert!(posted.is_done());
        let error = futures_block(posted).expect_err("nothing was sent");
        assert!(matches!(error.error.kind, ErrorKind::Closed), "{error}");
        assert_eq!(error.buf, [3; 10]);
        let error = futures_block(world.send(0, 1, [1_u8])).expect_err("closed");
        assert!(
            matches!(error.error.kind, ErrorKind::Closed) && error.buf == [1],
            "{error}"
        );
        let error = futures_block(world.recv::<u8>(0, 1)).expect_err("closed");
        assert!(matches!(error.error.kind, ErrorKind::Closed), "{error}");
        drop(probed);
        drop(world.recv::<u8>(0, 2));
    });
}

/// Polls futures that must be ready.
fn futures_block<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("not ready"),
    }
}

#[test]
fn dropping_a_runtime_with_operations_alive_ends_them() {
    for progress in ["thread", "inline"] {
        ranks::run(2, &[("RIPSTOP_PROGRESS", progress)], |runtime| {
            let world = runtime.world();
            let peer = 1 - world.rank();
            let inbox = world.recv::<u64>(peer, 1);
            let never = world.recv_into(peer, 2, vec![0_u64; 100_000]);
            let sends = [10, 100_000].map(|len| world.send(peer, 1, vec![8_u64; len]));
            let unreceived = world.send_synchronous(peer, 3, vec![1_u8; 50]);
            drop(runtime);
            let error = futures_block(never).expect_err("never sent").error;
            assert!(
                matches!(
                    error.kind,
                    ErrorKind::Closed | ErrorKind::PeerFinished { .. }
                ),
                "{error}"
            );
            let [short, long] = sends.map(futures_block);
            assert_eq!(short.expect("it fits").len(), 10);
            // The message is never received; the rank that closes first reports that.
            for error in [
                long.map(drop).expect_err("unreceived").error,
                futures_block(unreceived).expect_err("too").error,
            ] {
                assert!(
                    matches!(
                        error.kind,
                        ErrorKind::PeerFinished { .. } | ErrorKind::Closed
                    ),
                    "{error}"
                );
            }
            drop(inbox);
        });
    }
}

#[ripstop::test(ranks = 2)]
async fn a_rank_that_has_finished_is_named_by_all_that_wait_for_it(world: Comm) -> Result<()> {
    if world.rank() == 1 {
        world.send(0, 1, content(1, 10)).await?;
        world.send(0, 1, content(2, 100_000)).detach();
        return marked(&world, 0).await;
    }
    let posted = world.recv_into(1, 5, [0_u8; 3]);
    let any = world.recv::<u8>(ripstop::Source::Any, 5);
    let unreceived = world.send_synchronous(1, 5, vec![4_u8; 10]);
    // A sent message can be received before and after its sender has left.
    let whole = world.recv::<u8>(1, 1).await?.0;
    assert_eq!(whole, content(1, 10));
    let long = world.recv::<u8>(1, 1).await?.0;
    assert_eq!(long, content(2, 100_000));
    mark(&world, 1).await?;
    let finished = |kind: &ErrorKind| matches!(kind, ErrorKind::PeerFinished { rank: 1 });
    let gone = posted.await.expect_err("never sent");
    assert!(finished(&gone.error.kind) && gone.buf == [0; 3], "{gone}");
    let itself = |kind: &ErrorKind| matches!(kind, ErrorKind::WaitsForItself { alone: true });
    let gone = any.await.expect_err("never sent");
    assert!(itself(&gone.error.kind), "{gone}");
    let gone = unreceived.await.expect_err("never received");
    assert!(finished(&gone.error.kind) && gone.buf == [4; 10], "{gone}");
    let text = gone.to_string();
    assert!(
        text.contains("rank 1") && text.contains("tag 5") && text.contains("tasks.rs:"),
        "{text}"
    );
    for error in [
        world.send(1, 1, [0_u8]).await.expect_err("gone").error,
        world.recv::<u8>(1, 1).await.expect_err("gone").error,
    ] {
        assert!(finished(&error.kind), "{error}");
    }
    // This rank still runs.
    let echo = world.send(0, 7, [3_u8]);
    assert_eq!(world.recv::<u8>(0, 7).await?.0, [3]);
    echo.await?;
    Ok(())
}

#[test]
fn sleeping_and_waiting_are_not_in_each_others_way() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        let peer = 1 - world.rank();
        runtime.block_on(async {
            for _ in 0..20 {
                let inbox = world.recv::<u8>(peer, 1);
                runtime.sleep(Duration::from_millis(1)).await;
                world.send(peer, 1, [1_u8]).await.expect("sent");
                assert_eq!(inbox.await.expect("received").0, [1]);
            }
        });
        runtime.close().expect("a good end");
    });
}

#[test]
fn two_worlds_of_one_runtime_are_the_same_communicator() {
    ranks::run(2, &[], |runtime: Runtime| {
        runtime.block_on(async {
            runtime.world().barrier().await.expect("both are here");
            let world = runtime.world();
            // Rank 0 asks for a new handle each time; rank 1 keeps one.
            for round in 0..10_u64 {
                let handle = if world.rank() == 0 {
                    runtime.world()
                } else {
                    world.clone()
                };
                assert_eq!(
                    handle
                        .all_reduce([round], ripstop::Sum)
                        .await
                        .expect("both are here"),
                    [2 * round]
                );
            }
            let dup = runtime.world().dup().await.expect("both are here");
            dup.barrier().await.expect("both are here");
        });
        runtime.close().expect("a good end");
    });
    drop(boot::threads(1));
}

#[test]
fn a_thread_that_leaves_takes_no_message_from_one_that_sleeps() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        let peer = 1 - world.rank();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                for round in 0..200_u32 {
                    let (got, _) = runtime.block_on(world.recv::<u32>(peer, 1)).expect("sent");
                    assert_eq!(got, [round]);
                    runtime
                        .block_on(world.send(peer, 2, [round]))
                        .expect("sent");
                }
            });
            for round in 0..200_u32 {
                runtime
                    .block_on(world.send(peer, 1, [round]))
                    .expect("sent");
                assert_eq!(
                    runtime
                        .block_on(world.recv::<u32>(peer, 2))
                        .expect("sent")
                        .0,
                    [round]
                );
            }
            sleeper.join().expect("no panic");
        });
        runtime.close().expect("a good end");
    });
}

#[test]
fn a_task_may_go_with_its_last_waker_and_take_operations_along() {
    ranks::run(1, &[], |runtime: Runtime| {
        let world = runtime.world();
        let shelf = Arc::new(Mutex::new(Some(world.recv::<u8>(0, 9))));
        for again in [false, true] {
            let (of_task, other) = (Arc::clone(&shelf), world.recv::<u8>(0, 10));
            let task = world.spawn(async move {
                poll_fn(|cx| {
                    let mut shelf = of_task.lock().expect("no thread panics");
                    let polled = shelf.as_mut().map(|op| Pin::new(op).poll(cx).is_ready());
                    assert_eq!(polled, Some(false));
                    Poll::<()>::Pending
                })
                .await;
                drop(other);
            });
            drop(task);
            runtime.block_on(yield_now());
            // Now only the operation on the shelf has a waker of the task.
            let mut shelf = shelf.lock().expect("no thread panics");
            if again {
                drop(shelf.take());
            } else {
                runtime.block_on(poll_fn(|cx| {
                    let polled = shelf.as_mut().map(|op| Pin::new(op).poll(cx).is_ready());
                    assert_eq!(polled, Some(false));
                    Poll::Ready(())
                }));
            }
        }
        drop(world);
        runtime.close().expect("a good end");
    });
}

#[test]
fn tasks_that_were_not_over_go_with_their_runtime() {
    ranks::run(1, &[], |runtime: Runtime| {
        let world = runtime.world();
        let token = Arc::new(());
        for waits_for in 0..3 {
            let (comm, theirs) = (world.clone(), Arc::clone(&token));
            drop(world.spawn(async move {
                match waits_for {
                    0 => drop(comm.recv::<u8>(0, 9).await),
                    1 => {
                        let of_inner = comm.clone();
                        comm.spawn(async move { drop(of_inner.recv::<u8>(0, 9).await) })
                            .await;
                    }
                    _ => comm.sleep(Duration::from_secs(1000)).await,
                }
                drop(theirs);
            }));
        }
        runtime.block_on(yield_now());
        drop(world);
        runtime.close().expect("a good end");
        assert_eq!(Arc::strong_count(&token), 1);
    });
}

#[test]
fn a_task_that_is_woken_after_its_runtime_has_ended_goes_too() {
    ranks::run(1, &[], |runtime: Runtime| {
        let world = runtime.world();
        let token = Arc::new(());
        let theirs = Arc::clone(&token);
        let waker = Arc::new(Mutex::new(None));
        let bell = Arc::clone(&waker);
        drop(world.clone().spawn(async move {
            let _held = (world, theirs);
            poll_fn(|cx| {
                *bell.lock().unwrap() = Some(cx.waker().clone());
                Poll::<()>::Pending
            })
            .await;
        }));
        runtime.block_on(yield_now());
        runtime.close().expect("a good end");
        let waker = waker.lock().unwrap().take();
        waker.expect("it was polled").wake();
        assert_eq!(Arc::strong_count(&token), 1);
    });
}

#[test]
fn tasks_go_with_a_runtime_that_is_dropped_in_a_panic() {
    ranks::run(1, &[], |runtime: Runtime| {
        let world = runtime.world();
        let token = Arc::new(());
        let theirs = Arc::clone(&token);
        let task = world.clone().spawn(async move {
            let _theirs = theirs;
            drop(world.recv::<u8>(0, 9).await);
        });
        runtime.block_on(yield_now());
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _runtime = runtime;
            resume_unwind(Box::new("on purpose"));
        }));
        assert!(panicked.is_err());
        assert_eq!(Arc::strong_count(&token), 1);
        let awaited = catch_unwind(AssertUnwindSafe(|| {
            pin!(task)
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        }));
        assert!(awaited.is_err(), "it never came to its end");
    });
}

/// Ready after all other tasks have had a turn.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
