//! Collectives of one rank are done during their call. Each way out of that has the errors of all collectives.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Waker},
};

use ripstop::{OpError, ReproducibleSum, Runtime, Tuning, prelude::*};

use crate::ranks;

/// Runs a test as the only rank.
fn alone(test: impl AsyncFn(&Comm) + Copy + Send + Sync + 'static) {
    ranks::run(1, &[], move |runtime: Runtime| {
        let world = runtime.world();
        runtime.block_on(test(&world));
    });
}

/// Asserts that a call failed for this reason, on a line of this file, and returns its buffer.
fn buffer_of<B>(failed: OpError<B>, is_reason: impl Fn(&ErrorKind) -> bool) -> B {
    let (error, buf) = failed.into_parts();
    assert!(is_reason(&error.kind), "{error}");
    let at = error.at.expect("a call has a line");
    assert!(at.file().ends_with("alone.rs"), "{error}");
    buf
}

const fn is_revoked(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::Revoked)
}

#[test]
fn calls_are_done_when_they_are_made() {
    alone(async |world| {
        assert!(world.barrier().is_done());
        let bcast = world.bcast(0, [7_u64]);
        assert!(bcast.is_done());
        assert_eq!(bcast.await.unwrap(), [7]);
        assert_eq!(
            world.all_reduce(vec![1.5, 2.5], Sum).await.unwrap(),
            [1.5, 2.5]
        );
        assert_eq!(world.gather(0, [1_u32, 2]).await.unwrap(), Some(vec![1, 2]));
        let reduced = world.reduce(0, vec![3_i64], Max).await.unwrap();
        assert_eq!(reduced, Some(vec![3]));
        let (sent, got) = world.all_gather_into([4_u8; 3], vec![0; 5]).await.unwrap();
        assert_eq!((sent, got), ([4; 3], vec![4; 3]));
        assert_eq!(world.all_to_all(Vec::<u64>::new()).await.unwrap(), []);
        // What is widened, or has an algorithm of its own, is done in the usual way.
        let sum = world.all_reduce([0.1, 0.2], ReproducibleSum).await.unwrap();
        assert_eq!(sum, [0.1, 0.2]);
        let tuned = world.tuned(Tuning::AUTO);
        assert_eq!(tuned.bcast(0, [8_u64]).await.unwrap(), [8]);
        tuned.barrier().await.unwrap();
    });
}

#[test]
fn a_call_that_has_returned_its_buffers_panics_in_a_later_poll() {
    fn panic_of(mut call: impl Future + Unpin) -> &'static str {
        let mut cx = Context::from_waker(Waker::noop());
        while Pin::new(&mut call).poll(&mut cx).is_pending() {}
        let again = || Pin::new(&mut call).poll(&mut cx).is_ready();
        let panic = catch_unwind(AssertUnwindSafe(again)).unwrap_err();
        panic.downcast_ref::<&str>().copied().unwrap()
    }
    alone(async |world| {
        let after_end = "a collective was polled after it had completed";
        assert_eq!(panic_of(world.barrier()), after_end);
        assert_eq!(panic_of(world.bcast(0, [7_u64])), after_end);
        assert_eq!(panic_of(world.all_reduce([7_u64], Sum)), after_end);
        assert_eq!(panic_of(world.gather(0, vec![7_u64])), after_end);
        world.barrier().await.unwrap();
    });
}

#[test]
fn a_wrong_argument_is_named() {
    alone(async |world| {
        let is_root = |kind: &ErrorKind| kind.to_string().contains("`root` is rank 3");
        let twin = world.dup().await.unwrap();
        assert_eq!(
            buffer_of(twin.bcast(3, [7_u64]).await.unwrap_err(), is_root),
            [7]
        );
        // The communicator allows no more collectives, as with several ranks.
        let later = twin.bcast(0, [8_u64]).await.unwrap_err();
        assert_eq!(buffer_of(later, is_revoked), [8]);
        let twin = world.dup().await.unwrap();
        let failed = twin.all_gather_into([1_u64, 2], [0_u64; 1]).await;
        let is_short = |kind: &ErrorKind| kind.to_string().contains("`recv`");
        assert_eq!(buffer_of(failed.unwrap_err(), is_short), ([1, 2], [0]));
        let twin = world.dup().await.unwrap();
        let failed = twin.gather_v(0, vec![1_u64], &[1, 2]).await.unwrap_err();
        let is_count = |kind: &ErrorKind| kind.to_string().contains("`counts` has 2 entries");
        assert_eq!(buffer_of(failed, is_count), [1]);
    });
}

#[test]
fn a_revoked_communicator_allows_no_call_and_no_run() {
    alone(async |world| {
        let twin = world.dup().await.unwrap();
        let mut plan = twin.all_to_all_plan::<u64>(1).await.unwrap();
        plan.send_mut()[0] = 5;
        assert_eq!(plan.run().await.unwrap(), [5]);
        twin.revoke();
        assert!(is_revoked(&twin.barrier().await.unwrap_err().kind));
        let failed = twin.all_reduce([1_u64], Sum).await.unwrap_err();
        assert_eq!(buffer_of(failed, is_revoked), [1]);
        let failed = twin.gather(0, vec![2_u64]).await.unwrap_err();
        assert_eq!(buffer_of(failed, is_revoked), [2]);
        for _ in 0..2 {
            let error = plan.run().await.unwrap_err();
            assert!(is_revoked(&error.kind), "{error}");
            let at = error.at.expect("a run has a line");
            assert!(at.file().ends_with("alone.rs"), "{error}");
        }
        assert_eq!(plan.send_mut(), [5], "the buffers are the plan's again");
        world.barrier().await.unwrap();
    });
}

#[test]
fn the_buffers_of_a_dropped_run_are_gone() {
    alone(async |world| {
        let mut plan = world.all_to_all_plan::<u64>(2).await.unwrap();
        plan.send_mut().fill(5);
        let run = plan.run();
        assert!(run.is_done());
        drop(run);
        assert_eq!(plan.recv_mut(), [0, 0]);
        plan.send_mut().fill(6);
        drop(plan.run());
        assert_eq!(plan.run().await.unwrap(), [0, 0], "zeros were sent");
    });
}

#[test]
fn ready_calls_let_other_tasks_run() {
    alone(async |world| {
        let has_run = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&has_run);
        let other = world.spawn(async move { noted.store(true, Relaxed) });
        let mut plan = world.all_to_all_plan::<u64>(1).await.unwrap();
        while !has_run.load(Relaxed) {
            plan.run().await.unwrap();
        }
        other.await;
    });
}
