//! A rank that is stopped in the middle of packing a message, which another one unpacks meanwhile.

use std::{future::poll_fn, hint::spin_loop, pin::pin, time::Duration};

use ripstop::{
    Comm, Error, ErrorKind, OpError,
    buffer::{Layout, NestedLayout},
};
use rustix::{
    process::{Pid, Signal, getpid, kill_process},
    time::{ClockId, clock_gettime},
};

use crate::StuckJob;

/// Elements of the longest message that is packed where its receiver can read it.
const LEN: usize = (4 << 20) / size_of::<u64>();

/// Elements of a row, of which the message has one. Each is in a cache line of its own, so packing takes milliseconds.
const ROW: usize = 8;

/// Content of the sender's array.
const SENT: u64 = 3;

/// Number of messages that may be packed before their sender is stopped.
const MISSES_MAX: u32 = 1000;

fn column() -> NestedLayout {
    Layout::subarray(&[LEN, ROW], &[0..LEN, 1..2])
}

/// Rank 0 stops rank 1 while it packs, gives up, receives the message after all, and waits for another one.
pub(crate) async fn play(world: &Comm) -> Result<(), Error> {
    if world.rank() == 1 {
        return send(world).await;
    }
    let sender = Pid::from_raw(world.recv::<i32>(1, 5).await?.0[0]).unwrap();
    let mut array = vec![0; ROW * LEN];
    let limit = Duration::from_secs(4);
    let late = catch(world, sender, &mut array, Some(limit)).await.error;
    assert!(matches!(late.kind, ErrorKind::TimedOut), "{late}");
    assert!(late.to_string().contains(file!()), "{late}");

    kill_process(sender, Signal::CONT).unwrap();
    array.fill(0);
    let message = world.recv_packed(1, 7, column());
    let status = message.unpack_into(&mut array).await.unwrap();
    assert_eq!((status.source, status.len), (1, LEN));
    let is_right = |row: &[u64]| row[1] == SENT && row[0] == 0 && row[2..] == [0; ROW - 2];
    assert!(array.chunks(ROW).all(is_right));

    panic!("{}", catch(world, sender, &mut array, None).await.error)
}

/// Sends a message whenever rank 0 asks for one.
async fn send(world: &Comm) -> Result<(), Error> {
    let array = vec![SENT; ROW * LEN];
    world.send(0, 5, [getpid().as_raw_pid()]).await.unwrap();
    loop {
        world.recv::<u8>(0, 6).await?;
        world.send_packed(0, 7, &array, column()).detach();
    }
}

/// Stops rank 1 in the middle of packing a message, and receives that message within a limit. Returns the error, and leaves rank
/// 1 stopped.
async fn catch(
    world: &Comm,
    sender: Pid,
    array: &mut [u64],
    limit: Option<Duration>,
) -> OpError<Vec<u64>> {
    for _ in 0..MISSES_MAX {
        let inbox = world.recv_packed(1, 7, column());
        world.send(1, 6, [1_u8]).await.unwrap();
        while !inbox.is_done() {
            spin_loop();
        }
        kill_process(sender, Signal::STOP).unwrap();
        let before = processor_time();
        let unpack = inbox.unpack_into(array);
        let mut unpack = pin!(match limit {
            Some(limit) => unpack.timeout(limit),
            None => unpack,
        });
        let mut listed = String::new();
        let received = poll_fn(|cx| {
            let polled = unpack.as_mut().poll(cx);
            if polled.is_pending() {
                let waiting = world.runtime().waiting();
                listed = waiting.iter().map(ToString::to_string).collect();
            }
            polled
        });
        if let Err(late) = received.await {
            assert!(listed.contains("(waits for rank 1 to pack)"), "{listed}");
            let worked = processor_time() - before;
            assert!(
                limit.is_none_or(|limit| worked < limit / 2),
                "{worked:?} of spinning"
            );
            return late;
        }
        kill_process(sender, Signal::CONT).unwrap(); // it was packed before the signal came
    }
    panic!("{MISSES_MAX} messages were packed before their sender stopped")
}

/// Returns the time that the processors have worked for this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap(),
        time.tv_nsec.try_into().unwrap(),
    )
}

#[test]
fn a_receiver_whose_sender_is_stopped_while_it_packs_gives_up_or_is_listed() {
    let job = StuckJob::start(2, "stopped_packing");
    let text = job.report(
        "verdict: rank 1 is stopped (SIGSTOP or a debugger): kill -CONT *; 1 rank waits for it",
        1,
    );
    let listed = format!(
        "recv from rank 1, tag 7, communicator 0 (waits for rank 1 to pack), {}:",
        file!()
    );
    assert!(text.contains(&listed), "{text}");
}
