//! Collectives that are set up once and run again and again.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use ripstop_rt::{
    Comm, ReduceOp, Result,
    buffer::{self, Wire},
    offload::{Collective, ProgramOp, Reducer},
};

use crate::{
    Collectives, Tuning,
    ask::{Ask, Verb},
    cache::Ready,
    call::{Call, ready},
    op::{CollectiveOp, Nothing},
};

/// A collective with its buffers, planned once: each [`run`](Self::run) is one call of it, and plans nothing. By messages it
/// allocates nothing either. What its steps are as tasks of an adapter is found out in the first run; the others write
/// their lists from that, with their own thresholds.
///
/// All ranks run it as often, in the same place of the order of their collectives. Made by [`Collectives::all_to_all_plan`] and
/// its like; `K` says whether it works [in place](Shared) or [from one buffer into another](Apart).
pub struct Persistent<T: Wire, K> {
    comm: Comm,
    name: &'static str,
    ready: Ready,
    op: Option<Box<dyn Fn() -> Reducer + Send>>,
    send: Vec<T>,
    recv: Vec<T>,
    kind: PhantomData<fn() -> K>,
}

/// One buffer, for what is given and what comes out.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Shared;

/// One buffer for what is given, and one for what comes out.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Apart;

/// A barrier that is planned once.
pub type BarrierPlan = Persistent<u8, Shared>;
/// A collective in place that is planned once.
pub type InPlacePlan<T> = Persistent<T, Shared>;
/// A collective from one buffer into another that is planned once.
pub type ExchangePlan<T> = Persistent<T, Apart>;

/// One run of a planned collective. It was started when it was made, and proceeds whether or not it is polled.
///
/// Dropping it lets the collective go on by itself, with the buffers: the plan then has new ones, of zeros.
#[must_use = "await it"]
pub struct PlanOp<'a, T: Wire, K> {
    run: ProgramOp<Vec<T>, Vec<T>>,
    /// `None` when it has completed.
    plan: Option<&'a mut Persistent<T, K>>,
}

/// The plan of what is asked for, once all ranks have agreed on it.
#[track_caller]
pub(crate) fn planned<T: Wire, K, C: Collectives + ?Sized>(
    on: &C,
    ask: &Ask<'_>,
) -> impl Future<Output = Result<Persistent<T, K>>> + Send + use<T, K, C> {
    let comm = on.communicator();
    let draft = Draft::<T>::new(comm, ask.name, ready::<T>(comm, on.tuning(), ask));
    draft.agreed(comm.clone(), None)
}

/// As [`planned`], with an operation that can be had again for every run.
#[track_caller]
pub(crate) fn planned_with<T: Wire, K, O: ReduceOp<T> + Clone, C: Collectives + ?Sized>(
    on: &C,
    ask: Ask<'_>,
    op: O,
) -> impl Future<Output = Result<Persistent<T, K>>> + Send + use<T, K, O, C> {
    let (comm, ask) = (on.communicator(), ask.reducing::<T, O>());
    let draft = Draft::<T>::new(comm, ask.name, ready::<T>(comm, on.tuning(), &ask));
    let again = move || Reducer::new::<T>(op.clone());
    draft.agreed(comm.clone(), Some(Box::new(again)))
}

/// What a plan asks for, until all ranks have agreed on it.
pub(crate) struct Draft<T> {
    name: &'static str,
    planned: Result<Planned<T>, String>,
    agreed: CollectiveOp<[u8; 0], [u8; 0], Nothing>,
}

/// A program, and the buffers that it works on.
struct Planned<T> {
    ready: Ready,
    send: Vec<T>,
    recv: Vec<T>,
}

impl<T: Wire> Draft<T> {
    /// Lets the ranks compare what they have planned.
    #[track_caller]
    pub(crate) fn new(comm: &Comm, name: &'static str, ready: Result<Ready, String>) -> Self {
        let barrier = Ask::of(Verb::Barrier, name);
        let mut meeting = Call::new::<u8>(comm, &Tuning::AUTO, &barrier);
        let planned = ready.and_then(Planned::of);
        match &planned {
            // Where counts are a rank's own, the first run compares them.
            Ok(Planned { ready, .. }) => meeting.agree_on(ready.signature),
            Err(sentence) => meeting.refuse(sentence.clone()),
        }
        Self {
            name,
            planned,
            agreed: meeting.begin(None, ([], []), Nothing),
        }
    }

    /// The plan that all ranks have agreed on.
    pub(crate) async fn agreed<K>(
        self,
        comm: Comm,
        op: Option<Box<dyn Fn() -> Reducer + Send>>,
    ) -> Result<Persistent<T, K>> {
        self.agreed.await?;
        let Planned { ready, send, recv } = self.planned.expect("a refused call does not succeed");
        Ok(Persistent {
            comm,
            name: self.name,
            ready,
            op,
            send,
            recv,
            kind: PhantomData,
        })
    }
}

impl<T: Wire> Planned<T> {
    fn of(ready: Ready) -> Result<Self, String> {
        let mut planned = Self {
            ready,
            send: Vec::new(),
            recv: Vec::new(),
        };
        let Self { ready, send, recv } = &mut planned;
        fit(ready, send, recv)?;
        Ok(planned)
    }
}

/// Makes the buffers of a plan that are not there.
///
/// # Errors
/// There is no memory for one.
fn fit<T: Wire>(ready: &Ready, send: &mut Vec<T>, recv: &mut Vec<T>) -> Result<(), String> {
    let lens = ready.program.lens();
    for (buffer, bytes) in [(send, lens.input), (recv, lens.output)] {
        let len = bytes / size_of::<T>();
        if buffer.len() != len {
            let made = buffer::zeros(len);
            *buffer = made.ok_or_else(|| format!("no memory for a buffer of {bytes} bytes"))?;
        }
    }
    Ok(())
}

impl<T: Wire, K> Persistent<T, K> {
    /// Runs it. The result is the output, as long as nobody needs it for the next run.
    ///
    /// # Errors
    /// As the calls of the collective. The plan stays whole, but there are no more collectives on its communicator.
    #[track_caller]
    pub fn run(&mut self) -> PlanOp<'_, T, K> {
        let fits = self.fit();
        let collective = Collective {
            name: self.name,
            signature: self.ready.signature,
            program: Arc::clone(&self.ready.program),
            reducer: self.op.as_ref().map(|op| op()),
            by_blocks: false,
        };
        let (send, recv) = (
            std::mem::take(&mut self.send),
            std::mem::take(&mut self.recv),
        );
        // What was the user's code may have panicked before: a turn that is taken has to be used.
        let turn = self.comm.reserve_collective();
        let run = match fits {
            Ok(()) => self.comm.run_program_in(turn, collective, send, recv),
            Err(why) => self.comm.refuse_program(turn, self.name, why, (send, recv)),
        };
        PlanOp {
            run,
            plan: Some(self),
        }
    }

    /// New buffers, if the last run went off with them.
    fn fit(&mut self) -> Result<(), String> {
        fit(&self.ready, &mut self.send, &mut self.recv)
    }

    fn have_fit(&mut self) {
        self.fit().unwrap_or_else(|why| panic!("{why}"));
    }
}

impl<T: Wire> Persistent<T, Apart> {
    /// What the next run sends; zeros at the start.
    ///
    /// # Panics
    /// A run that was dropped went off with the buffers, and there is no memory for others.
    pub fn send_mut(&mut self) -> &mut [T] {
        self.have_fit();
        &mut self.send
    }

    /// What the last run received; zeros at the start.
    ///
    /// # Panics
    /// A run that was dropped went off with the buffers, and there is no memory for others.
    pub fn recv_mut(&mut self) -> &mut [T] {
        self.have_fit();
        &mut self.recv
    }
}

impl<T: Wire> Persistent<T, Shared> {
    /// What the next run works on, and what the last one left; zeros at the start.
    ///
    /// # Panics
    /// A run that was dropped went off with the buffers, and there is no memory for others.
    pub fn data_mut(&mut self) -> &mut [T] {
        self.have_fit();
        &mut self.recv
    }
}

impl<T: Wire, K> PlanOp<'_, T, K> {
    /// Whether awaiting it would not wait.
    pub fn is_done(&self) -> bool {
        self.run.is_done()
    }
}

impl<'a, T: Wire, K> Future for PlanOp<'a, T, K> {
    type Output = Result<&'a [T]>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.run).poll(cx));
        let plan = self.plan.take().expect("a program completes once");
        match outcome {
            Ok((send, recv)) => {
                (plan.send, plan.recv) = (send, recv);
                Poll::Ready(Ok(&plan.recv))
            }
            Err(failure) => {
                let (error, (send, recv)) = failure.into_parts();
                (plan.send, plan.recv) = (send, recv);
                Poll::Ready(Err(error))
            }
        }
    }
}

impl<T: Wire, K> fmt::Debug for Persistent<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.ready.program.len();
        write!(f, "plan of {} with {steps} steps", self.name)
    }
}

impl<T: Wire, K> fmt::Debug for PlanOp<'_, T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(f)
    }
}
