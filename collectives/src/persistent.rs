//! Collectives that are set up once and run again and again.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use ripstop_rt::{
    Comm, Error, Result,
    buffer::Wire,
    internal::{
        CommInternals,
        offload::{CollectivePlace, ErasedReducer, LocalCopy, ProgramOp, poll_proceed},
        zeros,
    },
};

use crate::{
    Collectives, Reduction,
    cache::CachedProgram,
    call::{OrderedCall, program_for},
    call_spec::{CallSpec, CollectiveKind},
    op::{CollectiveOp, Nothing},
    tuning::AUTO,
};

/// A collective with its buffers, planned once: each [`run`](Self::run) is one call of it, and plans nothing. Runs by messages
/// allocate nothing either. On a driver that runs task lists, the first run finds out which tasks the steps become; later runs
/// write their lists from that, with their own thresholds. A [`ReproducibleSum`](crate::ReproducibleSum) allocates the widened
/// elements and the result in every run.
///
/// All ranks run it equally often, at the same places in the order of their collectives. It is made by
/// [`Collectives::all_to_all_plan`] and similar methods. `K` says whether it works [in place](OneBuffer) or [from one buffer into
/// another](TwoBuffers).
pub struct Persistent<T: Wire, K> {
    comm: Comm,
    name: &'static str,
    ready: CachedProgram,
    /// What a run does, if this rank is alone.
    alone: Option<LocalCopy>,
    /// Bytes that travel for each element.
    elem: usize,
    reduces: Option<PlanReduction<T>>,
    /// True from the call of a run until its future has returned the buffers.
    is_running: bool,
    send: Vec<T>,
    recv: Vec<T>,
    kind: PhantomData<fn() -> K>,
}

/// One buffer for both input and output.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OneBuffer;

/// One buffer for the input and one for the output.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TwoBuffers;

/// A barrier that is planned once.
pub type BarrierPlan = Persistent<u8, OneBuffer>;
/// A collective in place that is planned once.
pub type InPlacePlan<T> = Persistent<T, OneBuffer>;
/// A collective from one buffer into another that is planned once.
pub type ExchangePlan<T> = Persistent<T, TwoBuffers>;

/// One run of a planned collective. It started when it was made, and proceeds whether or not it is polled.
///
/// Dropping it detaches the collective together with its buffers; the plan then gets new ones, of zeros.
#[must_use = "await it"]
pub struct PlanOp<'a, T: Wire, K> {
    run: PlanRun<T>,
    /// `None` after completion.
    plan: Option<&'a mut Persistent<T, K>>,
}

/// The reduction that the runs of a plan use.
pub(crate) struct PlanReduction<T: Wire> {
    again: Box<dyn Fn() -> ErasedReducer + Send>,
    /// Conversion of elements that are widened before they are sent.
    widen: Option<WidenElements<T>>,
}

/// Widens the elements of both buffers, and returns a function that begins a run with them once it gets the buffers too.
type WidenElements<T> = fn(&[T], &[T]) -> BeginWideRun<T>;
type BeginWideRun<T> = Box<dyn FnOnce(PlanRunStart<'_>, PlanBuffers<T>) -> PlanRun<T>>;
type PlanBuffers<T> = (Vec<T>, Vec<T>);

/// A run that has its place in the order of collectives.
struct PlanRunStart<'a> {
    comm: &'a Comm,
    name: &'static str,
    place: CollectivePlace,
    /// What this rank does, or the reason why it does nothing.
    work: Result<CachedProgram, String>,
    reducer: Option<ErasedReducer>,
}

enum PlanRun<T: Wire> {
    /// The run completed at its call, between the buffers of the plan.
    Done,
    Direct(ProgramOp<Vec<T>, Vec<T>>),
    Wide(Box<dyn ErasedWideRun<T>>),
}

/// A run on elements that are wider than the plan's.
trait ErasedWideRun<T>: fmt::Debug + Send {
    fn is_done(&self) -> bool;

    /// Polls for the outcome and the buffers of the plan.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Result<()>, PlanBuffers<T>)>;
}

struct WideRun<T, A: Wire> {
    run: ProgramOp<Vec<A>, Vec<A>>,
    buffers: PlanBuffers<T>,
    narrow: fn(&[A]) -> Vec<T>,
}

/// Plans what is asked for, and completes when all ranks have agreed on it.
#[track_caller]
pub(crate) fn propose_plan<T: Wire, K, C: Collectives + ?Sized>(
    on: &C,
    spec: &CallSpec<'_>,
) -> impl Future<Output = Result<Persistent<T, K>>> + Send + use<T, K, C> {
    let comm = on.communicator();
    let draft = PlanProposal::<T>::new(comm, spec.name, program_for::<T>(comm, on.tuning(), spec));
    draft.await_agreement(comm.clone(), None)
}

/// Like [`propose_plan`], with an operation that can be made anew for every run.
#[track_caller]
pub(crate) fn propose_plan_with<T: Wire, K, O: Reduction<T> + Clone, C: Collectives + ?Sized>(
    on: &C,
    spec: CallSpec<'_>,
    op: O,
) -> impl Future<Output = Result<Persistent<T, K>>> + Send + use<T, K, O, C> {
    let (comm, spec) = (on.communicator(), spec.reducing::<T, O>());
    let ready = program_for::<O::Acc>(comm, on.tuning(), &spec);
    let draft = PlanProposal::<T>::travelling(comm, spec.name, ready, size_of::<O::Acc>());
    let reduces = PlanReduction {
        again: Box::new(move || op.clone().reducer()),
        widen: O::widen(&[]).map(|_| widen::<T, O> as WidenElements<T>),
    };
    draft.await_agreement(comm.clone(), Some(reduces))
}

fn widen<T: Wire, O: Reduction<T>>(send: &[T], recv: &[T]) -> BeginWideRun<T> {
    let wide = |elems| O::widen(elems).unwrap_or(Ok(Vec::new()));
    let wide = wide(send).and_then(|send| Ok((send, wide(recv)?)));
    Box::new(move |mut start, buffers| {
        let (send, recv) = wide.unwrap_or_else(|why| {
            start.work = Err(why);
            Default::default()
        });
        PlanRun::Wide(Box::new(WideRun {
            run: start.begin(send, recv),
            buffers,
            narrow: O::narrow,
        }))
    })
}

/// A plan that the ranks have not agreed on yet.
pub(crate) struct PlanProposal<T> {
    name: &'static str,
    planned: Result<BufferedProgram<T>, String>,
    agreed: CollectiveOp<[u8; 0], [u8; 0], Nothing>,
}

/// A program, and the buffers that it works on.
struct BufferedProgram<T> {
    ready: CachedProgram,
    elem: usize,
    send: Vec<T>,
    recv: Vec<T>,
}

impl<T: Wire> PlanProposal<T> {
    /// Starts the comparison of what the ranks have planned.
    #[track_caller]
    pub(crate) fn new(
        comm: &Comm,
        name: &'static str,
        ready: Result<CachedProgram, String>,
    ) -> Self {
        Self::travelling(comm, name, ready, size_of::<T>())
    }

    /// Like [`new`](Self::new), with `elem` bytes that travel for each element.
    #[track_caller]
    fn travelling(
        comm: &Comm,
        name: &'static str,
        ready: Result<CachedProgram, String>,
        elem: usize,
    ) -> Self {
        let barrier = CallSpec::of(CollectiveKind::Barrier, name);
        let mut meeting = OrderedCall::new::<u8>(comm, &AUTO, &barrier);
        let planned = ready.and_then(|ready| BufferedProgram::of(ready, elem));
        match &planned {
            // If counts belong to one rank alone, the first run compares them.
            Ok(BufferedProgram { ready, .. }) => meeting.agree_on(ready.signature),
            Err(sentence) => meeting.refuse(sentence.clone()),
        }
        Self {
            name,
            planned,
            agreed: meeting.begin(None, [], [], Nothing),
        }
    }

    /// Waits until all ranks agree, and returns the plan.
    pub(crate) async fn await_agreement<K>(
        self,
        comm: Comm,
        reduces: Option<PlanReduction<T>>,
    ) -> Result<Persistent<T, K>> {
        self.agreed.await?;
        let BufferedProgram {
            ready,
            elem,
            send,
            recv,
        } = self.planned.expect("a refused call does not succeed");
        let is_wide = reduces
            .as_ref()
            .is_some_and(|reduces| reduces.widen.is_some());
        let alone = ready.program.local_copy();
        Ok(Persistent {
            comm,
            name: self.name,
            ready,
            alone: alone.filter(|_| !is_wide),
            elem,
            reduces,
            is_running: false,
            send,
            recv,
            kind: PhantomData,
        })
    }
}

impl<T: Wire> BufferedProgram<T> {
    fn of(ready: CachedProgram, elem: usize) -> Result<Self, String> {
        let (mut send, mut recv) = (Vec::new(), Vec::new());
        fit(&ready, elem, &mut send, &mut recv)?;
        Ok(Self {
            ready,
            elem,
            send,
            recv,
        })
    }
}

/// Makes the missing buffers of a plan.
///
/// # Errors
/// There is no memory for one.
fn fit<T: Wire>(
    ready: &CachedProgram,
    elem: usize,
    send: &mut Vec<T>,
    recv: &mut Vec<T>,
) -> Result<(), String> {
    let lens = ready.program.lens();
    for (buffer, bytes) in [(send, lens.input), (recv, lens.output)] {
        let len = bytes / elem;
        if buffer.len() != len {
            let made = zeros(len);
            *buffer = made.ok_or_else(|| format!("no memory for a buffer of {bytes} bytes"))?;
        }
    }
    Ok(())
}

impl<T: Wire, K> Persistent<T, K> {
    /// Runs the collective. The future resolves to the output, which is borrowed from the plan.
    ///
    /// Output: `Result<&[T]>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.all_reduce_plan::<f64, _>(1, Sum).await?;
    /// plan.data_mut()[0] = 1.5;
    /// let running = plan.run(); // in flight from here on
    /// let inside: f64 = (0..100).map(f64::from).sum(); // no future is polled meanwhile
    /// assert_eq!(running.await?, [3.0]);
    /// # assert_eq!(inside, 4950.0);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of the collective's calls. The plan stays valid, but its communicator allows no more collectives.
    #[inline]
    #[track_caller]
    pub fn run(&mut self) -> PlanOp<'_, T, K> {
        let alone = self.alone;
        let run = match alone {
            Some(copy) if !self.is_running || self.fit().is_ok() => {
                match self.comm.try_alone(copy, &self.send, &mut self.recv) {
                    Ok(()) => PlanRun::Done,
                    Err(place) => self.begin(Some(place)),
                }
            }
            _ => self.begin(None),
        };
        self.is_running = true;
        PlanOp {
            run,
            plan: Some(self),
        }
    }

    /// Begins a run of the program, in its place in the order if that was reserved already.
    #[inline(never)]
    #[track_caller]
    fn begin(&mut self, reserved: Option<CollectivePlace>) -> PlanRun<T> {
        let fits = self.fit();
        let work = CachedProgram {
            program: Arc::clone(&self.ready.program),
            signature: self.ready.signature,
        };
        let reducer = self.reduces.as_ref().map(|reduces| (reduces.again)());
        let widen = self.reduces.as_ref().and_then(|reduces| reduces.widen);
        let wide = widen.map(|widen| widen(&self.send, &self.recv));
        let buffers = (
            std::mem::take(&mut self.send),
            std::mem::take(&mut self.recv),
        );
        let start = PlanRunStart {
            comm: &self.comm,
            name: self.name,
            // The user's code above may panic, so the place is reserved only here: a reserved place must be used.
            place: match reserved {
                Some(place) => place,
                None => self.comm.reserve_collective(), // not in a closure, which would hide the caller's line
            },
            work: fits.map(|()| work),
            reducer,
        };
        match wide {
            Some(begin) => begin(start, buffers),
            None => PlanRun::Direct(start.begin(buffers.0, buffers.1)),
        }
    }

    /// Makes new buffers if the last run was dropped with them.
    fn fit(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.is_running) {
            // A run that completed at its call has left the buffers here, but they are those of the run.
            (self.send, self.recv) = Default::default();
        }
        fit(&self.ready, self.elem, &mut self.send, &mut self.recv)
    }

    fn have_fit(&mut self) {
        self.fit().unwrap_or_else(|why| panic!("{why}"));
    }
}

impl<T: Wire> Persistent<T, TwoBuffers> {
    /// Returns the input of the next run; zeros at the start.
    ///
    /// # Panics
    /// Panics if a dropped run took the buffers and there is no memory for new ones.
    pub fn send_mut(&mut self) -> &mut [T] {
        self.have_fit();
        &mut self.send
    }

    /// Returns the output of the last run; zeros at the start.
    ///
    /// # Panics
    /// Panics if a dropped run took the buffers and there is no memory for new ones.
    pub fn recv_mut(&mut self) -> &mut [T] {
        self.have_fit();
        &mut self.recv
    }
}

impl<T: Wire> Persistent<T, OneBuffer> {
    /// Returns the buffer that holds the result of the last run and the input of the next; zeros at the start.
    ///
    /// # Panics
    /// Panics if a dropped run took the buffers and there is no memory for new ones.
    pub fn data_mut(&mut self) -> &mut [T] {
        self.have_fit();
        &mut self.recv
    }
}

impl PlanRunStart<'_> {
    fn begin<A: Wire>(self, input: Vec<A>, output: Vec<A>) -> ProgramOp<Vec<A>, Vec<A>> {
        let Self {
            comm,
            name,
            place,
            work,
            reducer,
        } = self;
        match work {
            Ok(work) => work.begin(comm, place, (name, reducer, false), (input, output)),
            Err(why) => comm.refuse_program(place, name, why, input, output),
        }
    }
}

impl<T: Wire> PlanRun<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Result<()>, PlanBuffers<T>)> {
        match self {
            Self::Done => unreachable!("the buffers of this run are the plan's"),
            Self::Wide(run) => run.poll(cx),
            Self::Direct(run) => Poll::Ready(match ready!(Pin::new(run).poll(cx)) {
                Ok(buffers) => (Ok(()), buffers),
                Err(failure) => {
                    let (error, buffers) = failure.into_parts();
                    (Err(error), buffers)
                }
            }),
        }
    }
}

impl<T: Wire, A: Wire> ErasedWideRun<T> for WideRun<T, A> {
    fn is_done(&self) -> bool {
        self.run.is_done()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Result<()>, PlanBuffers<T>)> {
        let outcome = ready!(Pin::new(&mut self.run).poll(cx));
        let outcome = outcome.map(|(_, wide)| self.buffers.1 = (self.narrow)(&wide));
        let buffers = std::mem::take(&mut self.buffers);
        Poll::Ready((outcome.map_err(Error::from), buffers))
    }
}

impl<T: Wire, K> PlanOp<'_, T, K> {
    /// Polls a run that did not complete at its call. Returns its buffers to the plan.
    #[inline(never)]
    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let (outcome, buffers) = ready!(self.run.poll(cx));
        if let Some(plan) = &mut self.plan {
            (plan.send, plan.recv) = buffers;
        }
        Poll::Ready(outcome)
    }

    /// Returns true if awaiting the future would not wait.
    pub fn is_done(&self) -> bool {
        match &self.run {
            PlanRun::Done => true,
            PlanRun::Direct(run) => run.is_done(),
            PlanRun::Wide(run) => run.is_done(),
        }
    }
}

impl<'a, T: Wire, K> Future for PlanOp<'a, T, K> {
    type Output = Result<&'a [T]>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.run {
            PlanRun::Done => {
                ready!(poll_proceed(cx));
                Ok(())
            }
            _ => ready!(self.poll_run(cx)),
        };
        let plan = self.plan.take().expect("a program completes once");
        plan.is_running = false;
        Poll::Ready(outcome.map(|()| plan.recv.as_slice()))
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
        match &self.run {
            PlanRun::Done => f.write_str("a run that is complete"),
            PlanRun::Direct(run) => run.fmt(f),
            PlanRun::Wide(run) => run.fmt(f),
        }
    }
}

impl<T, A: Wire> fmt::Debug for WideRun<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(f)
    }
}
