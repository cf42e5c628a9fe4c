//! A rank alone can send to itself; a rank that waits for itself in vain gets an error.

use std::{thread, time::Duration};

use ripstop::{Comm, ErrorKind, OpError, Result, Source, Tag, sim::Simulation};

use super::{content::content, ranks};

/// Every path of a message to oneself.
const LENGTHS: [usize; 4] = [1, 5_000, 100_000, 3 << 20];

/// Waits until all ranks but the first have finished, if this is the first.
async fn is_left_alone(world: &Comm) -> bool {
    if world.rank() > 0 {
        // A rank reports its end only to ranks that it has met.
        world.send(0, 98, [0_u8]).await.expect("received");
    }
    for rank in 1..world.size() {
        if world.rank() == 0 {
            world.recv::<u8>(rank, 98).await.expect("sent");
            let gone = world.recv::<u8>(rank, 99).await.expect_err("never sent");
            assert!(
                matches!(gone.error.kind, ErrorKind::PeerFinished { .. }),
                "{gone}"
            );
        }
    }
    world.rank() == 0
}

async fn sends_to_itself(world: Comm) -> Result<()> {
    let early = world.recv::<u8>(Source::Any, 1);
    let rows = world.dup().await?;
    let early_there = rows.recv::<u8>(Source::Any, 1);
    if !is_left_alone(&world).await {
        return Ok(());
    }
    world.send(0, 1, [5_u8]).await?;
    assert_eq!(early.await?.0, [5]);
    rows.send(0, 1, content(1, 100_000)).await?;
    assert_eq!(early_there.await?.0, content(1, 100_000));
    for (comm, len) in LENGTHS.map(|len| [(&world, len), (&rows, len)]).concat() {
        let late = comm.recv::<u8>(Source::Any, Tag::Any);
        comm.send(0, 2, content(2, len)).await?;
        assert_eq!(late.await?.0, content(2, len));
        assert!(comm.try_probe(Source::Any, 3)?.is_none());
        let sent = comm.send(0, 3, content(3, len));
        let found = comm.probe(Source::Any, 3).await?;
        assert_eq!(
            (found.source(), found.recv::<u8>().await?.0),
            (0, content(3, len))
        );
        sent.await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn a_rank_that_is_left_alone_receives_from_any_source_what_it_sends_to_itself(
    world: Comm,
) -> Result<()> {
    sends_to_itself(world).await
}

#[test]
fn a_simulated_rank_that_is_left_alone_receives_what_it_sends_to_itself() {
    for seed in 0..20 {
        for (fabric, faults) in [("bxi", "drop=0.1"), ("shm", ""), ("hdr", "")] {
            let cluster = Simulation::new(3).seed(seed).fabric(fabric).faults(faults);
            let report = cluster.run(sends_to_itself);
            let report = report.unwrap_or_else(|error| panic!("{fabric}, seed {seed}: {error}"));
            for result in report.results {
                let result = result.expect("no rank was killed");
                result.unwrap_or_else(|error| panic!("{fabric}, seed {seed}: {error}"));
            }
        }
    }
}

/// Awaits, one by one, everything that only the first rank could complete.
async fn waits_for_itself(world: Comm) -> Result<()> {
    let others = world.size() > 1;
    if !is_left_alone(&world).await {
        return Ok(());
    }
    let check = |error: &ripstop::Error, op: &str| {
        let alone = matches!(error.kind, ErrorKind::WaitsForItself { alone } if alone == others);
        assert!(alone && error.op == op, "{op}: {error}");
        let text = error.to_string();
        assert_eq!(
            text.contains("all other ranks have finished"),
            others,
            "{text}"
        );
        assert!(text.contains("this rank waits for itself"), "{text}");
    };
    let unreceived = world.send(0, 8, content(4, 100_000));
    for from in [Source::Any, Source::Rank(0)] {
        let OpError { error, buf, .. } = world
            .recv_into(from, 7, [3_u8; 2])
            .await
            .expect_err("nothing");
        check(&error, "recv");
        assert_eq!(buf, [3; 2]);
        check(&world.probe(from, 7).await.expect_err("nothing"), "probe");
    }
    let OpError { error, buf, .. } = unreceived.await.expect_err("nothing receives it");
    check(&error, "send");
    assert_eq!(buf, content(4, 100_000));
    // The offer was withdrawn.
    assert!(world.try_probe(Source::Any, Tag::Any)?.is_none());
    // Another message passes, and nothing is left of the failed one.
    let inbox = world.recv::<u8>(0, 8);
    world.send(0, 8, content(5, 100_000)).await?;
    assert_eq!(inbox.await?.0, content(5, 100_000));
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn what_only_this_rank_could_complete_ends_with_the_reason(world: Comm) -> Result<()> {
    waits_for_itself(world).await
}

#[ripstop::test(ranks = 1)]
async fn a_single_rank_that_waits_for_itself_hears_so(world: Comm) -> Result<()> {
    waits_for_itself(world).await
}

#[test]
fn a_simulated_rank_that_waits_for_itself_hears_so() {
    for (ranks, seed) in [(1, 0), (2, 1), (3, 2), (3, 3)] {
        for (fabric, faults) in [("bxi", "drop=0.1"), ("shm", "")] {
            let cluster = Simulation::new(ranks)
                .seed(seed)
                .fabric(fabric)
                .faults(faults);
            let report = cluster.run(waits_for_itself);
            let report = report.unwrap_or_else(|error| panic!("{fabric}, seed {seed}: {error}"));
            for result in report.results {
                let result = result.expect("no rank was killed");
                result.unwrap_or_else(|error| panic!("{fabric}, seed {seed}: {error}"));
            }
        }
    }
}

/// The other ranks live, and wait for the first rank, which waits for itself.
#[ripstop::test(ranks = 2)]
async fn a_long_send_to_oneself_without_a_receive_ends_while_others_live(
    world: Comm,
) -> Result<()> {
    if world.rank() == 0 {
        let sent = world.send(0, 1, content(1, 1 << 20)).await;
        let error = sent.expect_err("nothing receives it").error;
        assert!(
            matches!(error.kind, ErrorKind::WaitsForItself { alone: false }),
            "{error}"
        );
        return world.send(1, 1, [1_u8]).await.map(drop).map_err(Into::into);
    }
    assert_eq!(world.recv::<u8>(0, 1).await?.0, [1]);
    Ok(())
}

/// A timer, a task and another communicator could each lead to a send.
#[test]
fn a_rank_that_something_else_may_wake_does_not_wait_for_itself() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        if !runtime.block_on(is_left_alone(&world)) {
            return;
        }
        let inbox = world.recv::<u8>(Source::Any, 7);
        let task = runtime.spawn({
            let world = world.clone();
            async move {
                world.sleep(Duration::from_secs(5)).await;
                world.send(0, 7, [6_u8]).await.map(drop)
            }
        });
        assert_eq!(runtime.block_on(inbox).expect("sent by the task").0, [6]);
        runtime.block_on(task).expect("sent");
        let inbox = world.recv::<u8>(Source::Any, 7);
        thread::scope(|scope| {
            scope.spawn(|| {
                runtime
                    .block_on(world.send(0, 7, [8_u8]))
                    .expect("received")
            });
            assert_eq!(runtime.block_on(inbox).expect("sent by a thread").0, [8]);
        });
    });
}
