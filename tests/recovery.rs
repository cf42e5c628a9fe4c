//! Recovery where no rank dies: `revoke`, `agree`, `shrink` and `failures` among ranks that live, finish, or never come. Tests
//! that kill ranks are in `tests/failures` and in `sim/recovery.rs`.

#[path = "support/ranks.rs"]
mod ranks;

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use ripstop::{Collectives, Comm, Error, ErrorKind, Result, Source, Sum, Tag};

#[track_caller]
fn assert_revoked<T>(ended: std::result::Result<T, impl Into<Error>>) {
    match ended.map_err(Into::into) {
        Err(error) if matches!(error.kind, ErrorKind::Revoked) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it went well"),
    }
}

#[ripstop::test(ranks = 4)]
async fn a_rank_that_waits_for_what_will_never_come_is_woken_when_another_revokes(
    world: Comm,
) -> Result<()> {
    let comm = world.dup().await?;
    if comm.rank() == 3 {
        // It makes none of the calls that the others wait for, and it has not heard of any failure.
        comm.sleep(Duration::from_millis(20)).await;
        comm.revoke();
        comm.revoke();
    } else {
        let next = (comm.rank() + 1) % 3;
        let sent = comm.send_synchronous(next, 9, vec![4_u8; 300_000]);
        let probe = comm.probe(3, 7);
        let barrier = comm.barrier();
        let sum = comm.all_reduce(vec![1_u64; 100_000], Sum);
        let recv = comm
            .recv_into(3, 1, [6_u32; 5])
            .await
            .expect_err("never sent");
        assert_eq!(recv.buf, [6; 5], "it comes home");
        assert_revoked(Err::<(), _>(recv));
        assert_revoked(comm.recv::<u8>(Source::Any, Tag::Any).await);
        let sent = sent.await.expect_err("never received");
        assert!(sent.buf == [4; 300_000]);
        assert_revoked(Err::<(), _>(sent));
        assert_revoked(probe.await);
        assert_revoked(barrier.await);
        let sum = sum.await.expect_err("one never calls it");
        assert_eq!(sum.buf.len(), 100_000, "partly reduced, it may be");
    }
    // Later ones fail too. Other operations go on, and this rank learns of it at once, if not before.
    while comm.try_probe(3, 7).is_ok() {
        comm.sleep(Duration::from_millis(1)).await;
    }
    assert_revoked(comm.send(0, 1, [1_u8]).await);
    assert_revoked(comm.try_send_copy(0, 1, &[1_u8]));
    assert_revoked(comm.recv::<u8>(0, 1).await);
    assert_revoked(comm.barrier().await);
    assert_revoked(comm.dup().await);
    world.barrier().await
}

#[ripstop::test(ranks = 3)]
async fn what_has_come_before_a_revocation_stays(world: Comm) -> Result<()> {
    let comm = world.dup().await?;
    let (next, from) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
    for len in [10, 300_000] {
        let inbox = comm.recv::<u8>(from, 1);
        comm.send_synchronous(next, 1, vec![7_u8; len]).await?;
        world.barrier().await?;
        if len > 10 {
            comm.revoke();
        }
        assert!(inbox.await?.0 == vec![7; len]);
    }
    world.barrier().await
}

#[ripstop::test(ranks = 5)]
async fn all_ranks_get_the_same_answer_which_is_yes_if_all_say_so(world: Comm) -> Result<()> {
    assert!(world.agree(true).await?);
    for no in 0..world.size() {
        assert!(!world.agree(world.rank() != no).await?);
    }
    // Many agreements at a time, among other operations, and some that no task awaits.
    let pending: Vec<_> = (0..50).map(|at| world.agree(at % 7 != 0)).collect();
    world.barrier().await?;
    drop(world.agree(false));
    for (at, answer) in pending.into_iter().enumerate() {
        assert_eq!(answer.await?, at % 7 != 0);
    }
    assert!(world.agree(true).await?);
    world.barrier().await
}

#[ripstop::test(ranks = 1)]
async fn a_rank_alone_agrees_with_itself(world: Comm) -> Result<()> {
    for at in 0..1000 {
        assert_eq!(world.agree(at % 2 == 0).await?, at % 2 == 0);
    }
    let alone = world.shrink().await?;
    assert_eq!((alone.rank(), alone.size()), (0, 1));
    alone.barrier().await
}

#[ripstop::test(ranks = 4)]
async fn a_revoked_communicator_can_be_shrunk_and_the_new_one_is_like_any_other(
    world: Comm,
) -> Result<()> {
    // Ranks in another order, without one.
    let key = -i32::try_from(world.rank()).expect("few");
    let color = (world.rank() != 2).then_some(0);
    let Some(comm) = world.split_some(color, key).await? else {
        return world.barrier().await;
    };
    let mut last = comm.clone();
    for _ in 0..5 {
        if last.rank() == 1 {
            last.revoke();
        }
        assert!(last.agree(true).await?);
        let next = last.shrink().await?;
        assert_eq!((next.rank(), next.size()), (comm.rank(), 3));
        assert_ne!(next.id(), last.id());
        let [sum] = next.all_reduce([next.rank()], Sum).await?;
        assert_eq!(sum, 3);
        let twin = next.dup().await?;
        assert_eq!(twin.bcast(1, [twin.rank()]).await?, [1]);
        twin.barrier().await?; // so that no rank revokes a communicator from which another rank still makes one
        last = next;
    }
    world.barrier().await
}

#[ripstop::test(ranks = 4)]
async fn a_rank_that_drops_a_shrink_lets_the_others_have_their_communicator(
    world: Comm,
) -> Result<()> {
    let me = world.rank();
    for odd in 0..world.size() {
        // Contexts that are not new to all ranks take more rounds.
        let alone = world.split_some(Some(u32::from(me == odd)), 0).await?;
        let spare = alone.expect("a color").dup().await?;
        let first = world.shrink();
        let second = world.agree(me != odd);
        let third = world.shrink();
        let fourth = world.agree(true);
        assert!(fourth.await?);
        if me == odd {
            drop((first, third, spare));
        } else {
            let (third, first) = (third.await?, first.await?);
            assert_eq!((first.size(), third.size()), (4, 4));
            assert!(first.id() != third.id() && first.id() != spare.id());
        }
        assert!(!second.await?);
        drop(world.shrink());
    }
    world.barrier().await
}

#[ripstop::test(ranks = 4)]
async fn communicators_that_are_made_at_the_same_time_have_contexts_of_their_own(
    world: Comm,
) -> Result<()> {
    let left = world
        .split_some(Some(u32::from(world.rank() > 1)), 0)
        .await?
        .expect("a color");
    let odd = world
        .split_some(Some(u32::from(world.rank() % 2 == 1)), 0)
        .await?
        .expect("a color");
    for _ in 0..5 {
        let shrink =
            [left.shrink(), odd.shrink(), world.shrink()].map(|shrink| world.spawn(shrink));
        let twin = world.dup().await?;
        let mut made = vec![twin];
        for shrink in shrink {
            made.push(shrink.await?);
        }
        let mut ids: Vec<u32> = made.iter().map(Comm::id).collect();
        for comm in &made {
            let [ranks] = comm.all_reduce([1_usize], Sum).await?;
            assert_eq!(ranks, comm.size());
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4);
    }
    world.barrier().await
}

#[ripstop::test(ranks = 4)]
async fn a_rank_that_has_dropped_the_communicator_has_no_vote_and_is_left_out(
    world: Comm,
) -> Result<()> {
    for gone in [0, 2] {
        let comm = world.dup().await?;
        if world.rank() == gone {
            drop(comm);
        } else {
            assert!(comm.agree(true).await?);
            let left = comm.shrink().await?;
            assert_eq!(left.size(), 3);
            assert_eq!(left.all_reduce(vec![1_u32], Sum).await?, [3]);
        }
        world.barrier().await?;
    }
    Ok(())
}

#[test]
fn a_finished_rank_has_no_vote_and_is_left_out() {
    ranks::run(4, &[], |runtime| {
        let world = runtime.world();
        let rank = world.rank();
        if rank == 0 || rank == 2 {
            drop(world);
            return runtime.close().expect("a good end");
        }
        runtime
            .block_on(going_on_without_even_ranks(&world))
            .expect("all goes well");
        drop(world);
        runtime.close().expect("a good end");
    });
}

async fn going_on_without_even_ranks(world: &Comm) -> Result<()> {
    assert!(world.agree(true).await?);
    let odd = world.shrink().await?;
    let rank = world.rank();
    assert_eq!((odd.rank(), odd.size()), (rank / 2, 2));
    assert_eq!(odd.all_reduce([rank], Sum).await?, [4]);
    Ok(())
}

#[test]
fn what_waits_when_a_runtime_closes_ends() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        if world.rank() == 1 {
            let gone = runtime
                .block_on(world.recv::<u8>(0, 1))
                .expect_err("never sent");
            let kind = gone.error.into_kind();
            assert!(
                matches!(kind, ErrorKind::PeerFinished { rank: 0 }),
                "{kind}"
            );
            assert!(runtime.block_on(world.agree(true)).expect("alone"));
            return;
        }
        let (mut failures, mut agreement) = (world.failures(), Box::pin(world.agree(false)));
        assert!(poll(pin!(failures.next())).is_pending());
        assert!(poll(agreement.as_mut()).is_pending());
        drop(world);
        runtime.close().expect("a good end");
        assert_eq!(poll(pin!(failures.next())), Poll::Ready(None));
        let Poll::Ready(Err(error)) = poll(agreement.as_mut()) else {
            panic!("there is no other end")
        };
        assert!(matches!(error.kind, ErrorKind::Closed), "{error}");
    });
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
