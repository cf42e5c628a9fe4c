//! The same random messages of a rank to itself, with and without the short way, look the same to their user.

use std::{
    collections::VecDeque,
    fmt::Debug,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use ripstop_fabric::random::SeededRandom;

use super::{Channel, ChannelRecv, Comm, RecvOp, SendOp, Source, Status, Tag};
use crate::{
    Runtime,
    buffer::{RecvBuf, Wire},
    engine::calm_switch,
    error::{ErrorKind, OpError, Result},
};

const PROGRAMS: u64 = 300;
const STEPS: usize = 60;

/// What a user sees, one line for each call that ends.
type Seen = Vec<String>;

#[test]
fn the_short_way_shows_what_the_ordinary_one_shows() {
    let first = calm_switch::first_seed();
    let runtime = Runtime::builder().init().unwrap();
    for seed in first..first + PROGRAMS {
        let run = |is_off| {
            calm_switch::set_off(is_off);
            let comm = runtime.world();
            let seen = runtime.block_on(Program::run(comm, seed));
            calm_switch::set_off(false);
            seen
        };
        assert_eq!(run(false), run(true), "SEED={seed}");
    }
}

/// A program under another executor makes turns only when something is not there yet. Other ranks wait for these turns.
#[test]
fn a_rank_that_only_talks_to_itself_sends_by_the_driver_now_and_then() {
    let runtime = Runtime::builder()
        .set("RIPSTOP_PROGRESS", "inline")
        .init()
        .unwrap();
    let world = runtime.world();
    for number in 0..1000_u32 {
        let mut inbox = world.recv_into(0, 7, [0]);
        drop(world.send(0, 7, [number]));
        let mut context = Context::from_waker(Waker::noop());
        let received = loop {
            if let Poll::Ready(received) = Pin::new(&mut inbox).poll(&mut context) {
                break received;
            }
        };
        assert_eq!(received.unwrap().0, [number]);
    }
    let by_driver = runtime.counters().messages_sent;
    assert!(
        (2..=20).contains(&by_driver),
        "{by_driver} of 1000 messages"
    );
}

/// Ways out of the short path, of a rank that talks to itself. Those of a message of another rank are in
/// rt/src/engine/tests/calm.rs.
pub(super) mod ways_out {
    use std::thread;

    use super::*;
    use crate::proto::wire::OpId;

    /// Runs a test as the only rank of a job, after a first message. No agent sleeps meanwhile, which would be unusual.
    pub(in crate::comm) fn alone(test: impl AsyncFnOnce(&Comm)) {
        let builder = Runtime::builder().set("RIPSTOP_PROGRESS", "inline");
        let runtime = builder.init().expect("a job of one rank");
        let world = runtime.world();
        runtime.block_on(async {
            let first = world.recv_into(0, 7, [0_u64]);
            world.send(0, 7, [9_u64]).await.expect("this rank lives");
            assert_eq!(first.await.expect("this rank lives").0, [9]);
            test(&world).await;
        });
    }

    /// Posts a receive for this rank's messages with tag 7, of which only its slot knows.
    fn expect<B: RecvBuf>(comm: &Comm, buf: B) -> RecvOp<B> {
        let recv = comm.recv_into(0, 7, buf);
        assert!(is_expecting(comm));
        recv
    }

    pub(in crate::comm) fn is_expecting(comm: &Comm) -> bool {
        let first = OpId {
            slot: 0,
            generation: 0,
        };
        comm.shared().look(|engine| engine.is_expected(first))
    }

    /// Uses the engine for something else, which posts the expected receive unless it is posted already.
    pub(in crate::comm) fn look_elsewhere(comm: &Comm) {
        let found = comm.try_probe(0, UNUSED).expect("this rank lives");
        assert!(found.is_none());
    }

    pub(in crate::comm) async fn value(recv: RecvOp<[u64; 1]>) -> u64 {
        recv.await.expect("this rank lives").0[0]
    }

    #[test]
    fn a_message_of_another_type_fails_the_receive_and_stays() {
        alone(async |world| {
            let recv = expect(world, [3_u32]);
            world.send(0, 7, [1_u64]).await.unwrap();
            let failed = recv.await.expect_err("another type");
            assert!(matches!(failed.error.kind, ErrorKind::TypeMismatch { .. }));
            assert_eq!(failed.buf, [3]);
            assert_eq!(value(world.recv_into(0, 7, [0])).await, 1);
        });
    }

    #[test]
    fn a_message_that_is_too_long_fails_the_receive_and_stays() {
        alone(async |world| {
            let recv = expect(world, [3_u64]);
            world.send(0, 7, [1_u64, 2]).await.unwrap();
            let failed = recv.await.expect_err("too long");
            assert!(matches!(
                failed.error.kind,
                ErrorKind::Truncated { sent: 2, room: 1 }
            ));
            assert_eq!(failed.buf, [3]);
            let again = world.recv_into(0, 7, [0_u64; 2]).await;
            assert_eq!(again.unwrap().0, [1, 2]);
        });
    }

    #[test]
    fn a_dropped_receive_leaves_its_message_to_the_next_one() {
        alone(async |world| {
            drop(expect(world, [0_u64]));
            world.send(0, 7, [1_u64]).await.unwrap();
            assert_eq!(value(world.recv_into(0, 7, [0])).await, 1);

            let has_come = expect(world, [0_u64]);
            world.send(0, 7, [2_u64]).await.unwrap();
            drop(has_come);
            assert_eq!(value(world.recv_into(0, 7, [0])).await, 2);
        });
    }

    #[test]
    fn a_revoked_communicator_fails_the_receive_and_the_send() {
        alone(async |world| {
            let comm = world.dup().await.unwrap();
            let recv = expect(&comm, [3_u64]);
            comm.revoke();
            let failed = recv.await.expect_err("revoked");
            assert!(matches!(failed.error.kind, ErrorKind::Revoked));
            let failed = comm.send(0, 7, [1_u64]).await.expect_err("revoked");
            assert!(matches!(failed.error.kind, ErrorKind::Revoked));
        });
    }

    #[test]
    fn a_receive_that_a_second_thread_posts_comes_second() {
        alone(async |world| {
            let first = expect(world, [0_u64]);
            let second = thread::scope(|scope| {
                let post = || world.recv_into(Source::Any, Tag::Any, [0_u64]);
                scope.spawn(post).join().expect("no panic")
            });
            look_elsewhere(world);
            world.send(0, 7, [1_u64]).await.unwrap();
            world.send(0, 7, [2_u64]).await.unwrap();
            assert_eq!((value(first).await, value(second).await), (1, 2));
        });
    }

    #[test]
    fn a_message_that_a_second_thread_sends_comes_first() {
        alone(async |world| {
            let recv = expect(world, [0_u64]);
            thread::scope(|scope| {
                scope.spawn(|| world.send(0, 7, [1_u64]).detach());
            });
            world.send(0, 7, [2_u64]).await.unwrap();
            assert_eq!(value(recv).await, 1);
            assert_eq!(value(world.recv_into(0, 7, [0])).await, 2);
        });
    }

    #[test]
    fn a_wildcard_that_is_posted_between_comes_second_and_takes_what_the_first_does_not() {
        alone(async |world| {
            let exact = expect(world, [0_u64]);
            let any = world.recv_into(Source::Any, Tag::Any, [0_u64]);
            world.send(0, 8, [1_u64]).await.unwrap();
            world.send(0, 7, [2_u64]).await.unwrap();
            assert_eq!((value(exact).await, value(any).await), (2, 1));

            let exact = expect(world, [0_u64]);
            let any = world.recv_into(Source::Any, Tag::Any, [0_u64]);
            look_elsewhere(world);
            world.send(0, 7, [3_u64]).await.unwrap();
            world.send(0, 7, [4_u64]).await.unwrap();
            assert_eq!((value(exact).await, value(any).await), (3, 4));
        });
    }
}

/// A receive of any buffer.
trait PostedRecv {
    fn is_done(&self) -> bool;
    fn end(self: Box<Self>) -> Pin<Box<dyn Future<Output = String>>>;
    fn cancel(self: Box<Self>) -> Pin<Box<dyn Future<Output = String>>>;
}

impl<B: RecvBuf + Debug> PostedRecv for ChannelRecv<B> {
    fn is_done(&self) -> bool {
        self.is_done()
    }

    fn end(self: Box<Self>) -> Pin<Box<dyn Future<Output = String>>> {
        Box::pin(async move { text((*self).await) })
    }

    fn cancel(self: Box<Self>) -> Pin<Box<dyn Future<Output = String>>> {
        Box::pin(async move { canceled((*self).cancel().await) })
    }
}

impl<B: RecvBuf + Debug> PostedRecv for RecvOp<B> {
    fn is_done(&self) -> bool {
        self.is_done()
    }

    fn end(self: Box<Self>) -> Pin<Box<dyn Future<Output = String>>> {
        Box::pin(async move { text((*self).await) })
    }

    fn cancel(self: Box<Self>) -> Pin<Box<dyn Future<Output = String>>> {
        Box::pin(async move { canceled((*self).cancel().await) })
    }
}

fn canceled<B: Debug>(outcome: Result<B, (B, Status)>) -> String {
    match outcome {
        Ok(buf) => format!("canceled {buf:?}"),
        Err(received) => format!("too late {received:?}"),
    }
}

fn text<B: Debug>(outcome: Result<(B, Status), OpError<B>>) -> String {
    match outcome {
        Ok(received) => format!("{received:?}"),
        Err(failed) => format!("{:?} {:?}", failed.error.kind, failed.buf),
    }
}

/// One run of a random program.
struct Program {
    comm: Comm,
    /// One for each tag.
    channels: Vec<Channel<u64>>,
    random: SeededRandom,
    receives: VecDeque<(usize, Box<dyn PostedRecv>)>,
    sends: VecDeque<SendOp<Vec<u64>>>,
    seen: Seen,
}

impl Program {
    async fn run(comm: Comm, seed: u64) -> Seen {
        let channel = |tag| comm.channel(0, tag).expect("this rank exists");
        let mut program = Self {
            channels: (0..TAGS).map(channel).collect(),
            comm,
            random: SeededRandom::new(seed),
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            seen: Seen::new(),
        };
        for step in 0..STEPS {
            program.step(step).await;
        }
        program.finish().await;
        program.seen
    }

    async fn step(&mut self, step: usize) {
        match self.random.within(0..16) {
            0..=2 => self.post(step),
            3 => self.post_by_channel(step),
            4..=5 => self.send(step).await,
            6 => self.send_by_channel(step),
            7..=9 => self.exchange(step).await,
            10..=11 => self.take_done().await,
            12 => self.cancel_one(step).await,
            13 => self.drop_one(),
            14 => self.probe(step).await,
            _ => self.settle(),
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.within(0..end)
    }

    fn tag(&mut self) -> u32 {
        u32::try_from(self.below(TAGS.into())).expect("a small number")
    }

    fn pattern(&mut self) -> (Source, Tag) {
        let source = if self.below(3) == 0 {
            Source::Any
        } else {
            Source::Rank(0)
        };
        let tag = if self.below(4) == 0 {
            Tag::Any
        } else {
            Tag::Is(self.tag())
        };
        (source, tag)
    }

    /// Lets all messages arrive that have left, so that time makes no difference.
    fn settle(&self) {
        for _ in 0..TURNS {
            let found = self.comm.try_probe(0, UNUSED).expect("this rank lives");
            assert!(found.is_none());
        }
    }

    fn keep(&mut self, step: usize, recv: impl PostedRecv + 'static) {
        self.receives.push_back((step, Box::new(recv)));
    }

    fn post(&mut self, step: usize) {
        let (source, tag) = self.pattern();
        let room = usize::try_from(self.below(4)).expect("a small number");
        match self.below(6) {
            0 => self.keep(step, self.comm.recv::<u64>(source, tag)),
            1 => self.keep(step, self.comm.recv_into(source, tag, [0_u32; 2])),
            2 => self.keep(step, self.comm.recv_into(source, tag, [0_u64; 20])),
            3 => self.keep(step, self.comm.recv_into(source, tag, 0_u64)),
            4 => self.keep(
                step,
                self.comm
                    .recv_into(source, tag, Vec::<u64>::with_capacity(4)),
            ),
            _ => self.keep(step, self.comm.recv_into(source, tag, vec![0_u64; room])),
        }
    }

    /// Returns a channel that was used before, or a new one.
    fn channel(&mut self, tag: u32) -> Channel<u64> {
        if self.below(4) == 0 {
            self.new_channel(tag)
        } else {
            self.channels[tag as usize].clone()
        }
    }

    fn new_channel<T: Wire>(&self, tag: u32) -> Channel<T> {
        self.comm.channel(0, tag).expect("this rank exists")
    }

    fn post_by_channel(&mut self, step: usize) {
        let tag = self.tag();
        let channel = self.channel(tag);
        match self.below(5) {
            0 => {
                let of_numbers = self.new_channel::<u32>(tag);
                self.keep(step, of_numbers.recv_into([0_u32; 2]));
            }
            1 => self.keep(step, channel.recv_into(0_u64)),
            2 => self.keep(step, channel.recv_into([0_u64; 20])), // too long for a place
            3 => self.keep(step, channel.recv_into(Vec::<u64>::with_capacity(4))),
            _ => self.keep(step, channel.recv_into([0_u64; 2])),
        }
    }

    fn content(&mut self, step: usize) -> Vec<u64> {
        let len = usize::try_from(self.below(4)).expect("a small number");
        vec![step as u64; len]
    }

    async fn send(&mut self, step: usize) {
        let (tag, content) = (self.tag(), self.content(step));
        match self.below(5) {
            0 => self
                .comm
                .send_copy(0, tag, &content)
                .await
                .expect("this rank lives"),
            1 => self
                .comm
                .send_copy(0, tag, &[number(step); 2])
                .await
                .expect("this rank lives"),
            2 => self
                .comm
                .send_copy(0, tag, &[step as u64; LONG])
                .await
                .expect("this rank lives"),
            3 => self
                .sends
                .push_back(self.comm.send_synchronous(0, tag, content)),
            _ => self.sends.push_back(self.comm.send(0, tag, content)),
        }
    }

    fn send_by_channel(&mut self, step: usize) {
        let (tag, content) = (self.tag(), self.content(step));
        let channel = self.channel(tag);
        self.sends.push_back(channel.send(content));
    }

    /// The usual order of calls, which may meet what is there already.
    async fn exchange(&mut self, step: usize) {
        let (tag, room) = (self.tag(), self.below(3) + 1);
        let room = vec![0_u64; usize::try_from(room).expect("a small number")];
        let channel = self.channel(tag);
        let by_channel = self.below(2) == 0;
        let recv: Box<dyn PostedRecv> = if by_channel {
            Box::new(channel.recv_into(room))
        } else {
            Box::new(self.comm.recv_into(0, tag, room))
        };
        let sent = if self.below(2) == 0 {
            channel.send([step as u64])
        } else {
            self.comm.send(0, tag, [step as u64])
        };
        if self.below(3) == 0 {
            self.post(step);
        }
        let sent = sent.await.expect("this rank lives");
        self.seen.push(format!("{step} sent {sent:?}"));
        self.settle();
        if recv.is_done() {
            let received = recv.end().await;
            self.seen.push(format!("{step} at once {received}"));
        } else {
            self.receives.push_back((step, recv));
        }
    }

    /// Ends the receives that are complete, and the sends.
    async fn take_done(&mut self) {
        self.settle();
        for _ in 0..self.receives.len() {
            let (step, recv) = self.receives.pop_front().expect("as many as there were");
            if recv.is_done() {
                let end = recv.end().await;
                self.seen.push(format!("{step} {end}"));
            } else {
                self.receives.push_back((step, recv));
            }
        }
        self.sends.retain(|send| !send.is_done());
    }

    fn pick(&mut self) -> Option<(usize, Box<dyn PostedRecv>)> {
        self.settle();
        let at = usize::try_from(self.random.within(0..self.receives.len() as u64)).ok()?;
        self.receives.remove(at)
    }

    async fn cancel_one(&mut self, step: usize) {
        if let Some((posted, recv)) = self.pick() {
            let end = recv.cancel().await;
            self.seen.push(format!("{posted} until {step}: {end}"));
        }
    }

    fn drop_one(&mut self) {
        let dropped = self.pick();
        drop(dropped);
    }

    async fn probe(&mut self, step: usize) {
        self.settle();
        let (source, tag) = self.pattern();
        let Some(found) = self.comm.try_probe(source, tag).expect("this rank lives") else {
            return;
        };
        self.seen
            .push(format!("{step} found {} {}", found.tag(), found.bytes()));
        if self.below(2) == 0 {
            let received = text(found.recv::<u64>().await);
            self.seen.push(format!("{step} probed {received}"));
        }
    }

    /// Ends all that is left, so that the next program finds nothing.
    async fn finish(&mut self) {
        while let Some((step, recv)) = self.pick() {
            let end = recv.cancel().await;
            self.seen.push(format!("{step} at last {end}"));
        }
        self.settle();
        while let Some(found) = self.comm.try_probe(0, Tag::Any).expect("this rank lives") {
            let tag = found.tag();
            let received = match found.recv::<u64>().await {
                Err(OpError { error, .. })
                    if matches!(error.kind, ErrorKind::TypeMismatch { .. }) =>
                {
                    let found = self.comm.try_probe(0, tag).expect("this rank lives");
                    text(found.expect("it is back").recv::<u32>().await)
                }
                outcome => text(outcome),
            };
            self.seen.push(format!("left {tag} {received}"));
        }
        while let Some(send) = self.sends.pop_front() {
            let sent = send.await.expect("this rank lives");
            self.seen.push(format!("left {sent:?}"));
        }
    }
}

fn number(step: usize) -> u32 {
    u32::try_from(step).expect("a small number")
}

/// Number of tags of messages.
const TAGS: u32 = 3;

/// Tag of no message.
const UNUSED: u32 = 77;

/// Turns in which a message arrives, also one whose sender waits for its receive.
const TURNS: u32 = 8;

/// Elements of a message that is too long for the short way.
const LONG: usize = 130;
