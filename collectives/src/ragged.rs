//! Collectives of vectors of any lengths, which tell each other the lengths first.

use std::{
    fmt,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker, ready},
};

use ripstop_rt::{Comm, OpError, buffer::Wire};

use crate::{
    Collectives, Tuning,
    ask::{Ask, Verb},
    call::{Call, Later},
    op::{Fresh, FreshAt},
};

/// A collective under way that goes in two: the lengths, and then the elements.
///
/// It was started when it was made, and keeps its place in the order of collectives. The second part begins when the first is
/// over and this rank awaits anything: this, or something else. So all ranks wait for one that computes meanwhile without
/// awaiting, unlike with other collectives: where the lengths are known, the forms with counts hide what this one does not.
/// Dropping it lets it go on by itself; a runtime that is closed waits for it.
#[must_use = "await it, or drop it to let it go on by itself"]
pub struct RaggedOp<D, F>
where
    D: Send + 'static,
    F: Send + 'static,
{
    stage: Arc<Mutex<Stage<D, F>>>,
}

enum Stage<D, F> {
    /// Whoever awaits it goes on with it, and a task does meanwhile.
    UnderWay(Rest<D, F>, Readers),
    Over(Result<D, F>),
    Taken,
}

/// Who is to be woken when it may go on: either may be gone, or be asleep with something else.
#[derive(Default)]
struct Readers {
    future: Option<Waker>,
    task: Option<Waker>,
    /// Of both, as long as they are the same.
    waker: Option<Waker>,
}

type Rest<D, F> = Pin<Box<dyn Future<Output = Result<D, F>> + Send>>;
type Rows<T> = Vec<Vec<T>>;

/// The vector for each rank, of all ranks.
#[track_caller]
pub(crate) fn all_to_all<T: Wire>(
    on: &(impl Collectives + ?Sized),
    send: Rows<T>,
) -> RaggedOp<Rows<T>, OpError<Rows<T>>> {
    let (comm, tuning) = of(on);
    let (has, size) = (send.len(), comm.size());
    let mut ask = Ask::of(Verb::AllToAll, "all_to_all_ragged").len(1);
    if has != size {
        let sentence = format!("`send` has {has} vectors, and there are {size} ranks");
        ask = ask.wrong(sentence);
    }
    let lens = lens_of(&send);
    let first = fresh(&comm, &tuning, &ask, lens.clone());
    let second = Later::new(&comm);
    let rest = async move {
        let theirs = match first.await {
            Ok(theirs) => theirs,
            Err(OpError { error, .. }) => return Err(OpError { error, buf: send }),
        };
        let (sends, recvs) = (counts(&lens), counts(&theirs));
        let ask = Ask::of(Verb::AllToAll, "all_to_all_ragged");
        let ask = ask.counts(&sends).incoming(&recvs);
        let done = {
            let mut call = Call::later::<T>(&second.comm, &tuning, &ask, second.turn);
            let room = call.room();
            call.begin(None, (send.concat(), room), Fresh)
        };
        match done.await {
            Ok(all) => Ok(rows(&all, &recvs)),
            Err(OpError { error, .. }) => Err(OpError { error, buf: send }),
        }
    };
    RaggedOp::new(&comm, rest)
}

/// The vectors of all ranks, for `root`.
#[track_caller]
pub(crate) fn gather<T: Wire>(
    on: &(impl Collectives + ?Sized),
    root: usize,
    send: Vec<T>,
) -> RaggedOp<Option<Rows<T>>, OpError<Vec<T>>> {
    RaggedOp::new(on.communicator(), gathered(of(on), Some(root), send))
}

/// The vectors of all ranks, for everybody.
#[track_caller]
pub(crate) fn all_gather<T: Wire>(
    on: &(impl Collectives + ?Sized),
    send: Vec<T>,
) -> RaggedOp<Rows<T>, OpError<Vec<T>>> {
    let rest = gathered(of(on), None, send);
    let rest = async move { Ok(rest.await?.unwrap_or_default()) };
    RaggedOp::new(on.communicator(), rest)
}

#[track_caller]
fn gathered<T: Wire>(
    (comm, tuning): (Comm, Tuning),
    root: Option<usize>,
    send: Vec<T>,
) -> impl Future<Output = Result<Option<Rows<T>>, OpError<Vec<T>>>> + Send + use<T> {
    let lens = Ask::of(Verb::AllGather, NAMES[usize::from(root.is_some())]).len(1);
    let lens = root.filter(|root| *root >= comm.size()).map_or_else(
        || lens.clone(),
        |root| {
            let size = comm.size();
            let sentence = format!("`root` is rank {root}, and there are ranks 0..{size}");
            lens.clone().wrong(sentence)
        },
    );
    let first = fresh(&comm, &tuning, &lens, vec![send.len() as u64]);
    let second = Later::new(&comm);
    async move {
        let theirs = match first.await {
            Ok(theirs) => counts(&theirs),
            Err(OpError { error, .. }) => return Err(OpError { error, buf: send }),
        };
        let ask = match root {
            Some(root) => Ask::of(Verb::Gather, NAMES[1]).root(root),
            None => Ask::of(Verb::AllGather, NAMES[0]),
        };
        let done = {
            let ask = ask.counts(&theirs);
            let mut call = Call::later::<T>(&second.comm, &tuning, &ask, second.turn);
            let here = root.is_none_or(|root| root == second.comm.rank());
            let room = call.room();
            call.begin(None, (send, room), FreshAt(here))
        };
        Ok(done.await?.map(|all| rows(&all, &theirs)))
    }
}

fn of(on: &(impl Collectives + ?Sized)) -> (Comm, Tuning) {
    (on.communicator().clone(), *on.tuning())
}

const NAMES: [&str; 2] = ["all_gather_ragged", "gather_ragged"];

#[track_caller]
fn fresh(
    comm: &Comm,
    tuning: &Tuning,
    ask: &Ask<'_>,
    send: Vec<u64>,
) -> crate::op::FreshOp<Vec<u64>> {
    let mut call = Call::new::<u64>(comm, tuning, ask);
    let room = call.room();
    call.begin(None, (send, room), Fresh)
}

fn lens_of<T>(rows: &[Vec<T>]) -> Vec<u64> {
    rows.iter().map(|row| row.len() as u64).collect()
}

/// What another rank cannot hold in memory, this one cannot either: the call is refused.
fn counts(lens: &[u64]) -> Vec<usize> {
    let count = |len: &u64| usize::try_from(*len).unwrap_or(usize::MAX);
    lens.iter().map(count).collect()
}

fn rows<T: Wire>(mut all: &[T], counts: &[usize]) -> Rows<T> {
    let row = |count: &usize| {
        let (row, rest) = all.split_at(*count);
        all = rest;
        row.to_vec()
    };
    counts.iter().map(row).collect()
}

impl<D: Send + 'static, F: Send + 'static> RaggedOp<D, F> {
    pub(crate) fn new(
        comm: &Comm,
        rest: impl Future<Output = Result<D, F>> + Send + 'static,
    ) -> Self {
        let stage = Stage::UnderWay(Box::pin(rest), Readers::default());
        let stage = Arc::new(Mutex::new(stage));
        let begun = Arc::clone(&stage);
        let task = poll_fn(move |cx| {
            let mut stage = lock(&begun);
            let over = ready!(stage.go_on(|readers| &mut readers.task, cx.waker()));
            drop(stage);
            over.future.into_iter().for_each(Waker::wake);
            Poll::Ready(())
        });
        drop(comm.spawn(task));
        Self { stage }
    }

    /// Lets it go on by itself; same as dropping it.
    pub fn detach(self) {}
}

impl<D: Send + 'static, F: Send + 'static> Future for RaggedOp<D, F> {
    type Output = Result<D, F>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = lock(&self.stage);
        let over = ready!(stage.go_on(|readers| &mut readers.future, cx.waker()));
        let end = mem::replace(&mut *stage, Stage::Taken);
        drop(stage);
        over.task.into_iter().for_each(Waker::wake);
        match end {
            Stage::Over(outcome) => Poll::Ready(outcome),
            _ => panic!("a ragged collective was polled after it had completed"),
        }
    }
}

impl<D, F> Stage<D, F> {
    /// Goes on with it for one of the two. Who has to hear of its end, if that is now.
    fn go_on(
        &mut self,
        reader: impl Fn(&mut Readers) -> &mut Option<Waker>,
        waker: &Waker,
    ) -> Poll<Readers> {
        match mem::replace(self, Self::Taken) {
            Self::UnderWay(mut rest, mut readers) => {
                if !reader(&mut readers)
                    .as_ref()
                    .is_some_and(|known| known.will_wake(waker))
                {
                    *reader(&mut readers) = Some(waker.clone());
                    readers.waker = None;
                }
                match rest.as_mut().poll(&mut Context::from_waker(readers.both())) {
                    Poll::Ready(outcome) => {
                        *self = Self::Over(outcome);
                        Poll::Ready(readers)
                    }
                    Poll::Pending => {
                        *self = Self::UnderWay(rest, readers);
                        Poll::Pending
                    }
                }
            }
            over => {
                *self = over;
                Poll::Ready(Readers::default())
            }
        }
    }
}

impl Readers {
    fn both(&mut self) -> &Waker {
        let Self {
            future,
            task,
            waker,
        } = self;
        waker.get_or_insert_with(|| Arc::new(Both([future.clone(), task.clone()])).into())
    }
}

struct Both([Option<Waker>; 2]);

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        self.0.iter().flatten().for_each(Waker::wake_by_ref);
    }
}

/// A poll that panicked panics for whoever polls next, too.
fn lock<T>(stage: &Mutex<T>) -> MutexGuard<'_, T> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Send + 'static, F: Send + 'static> fmt::Debug for RaggedOp<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaggedOp").finish_non_exhaustive()
    }
}
