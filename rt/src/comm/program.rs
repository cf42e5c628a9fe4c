//! The futures of collectives that the engine carries out by itself.

use std::{
    fmt, mem,
    panic::{Location, resume_unwind},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{Call, Comm, spare};
use crate::{
    buffer::{RecvBuf, SendBuf, Wire},
    engine::{Core, Engine, Look, QuickRun, RunTicket, Taken},
    error::{ErrorKind, OpError},
    executor::{self, poll_proceed},
    offload::{Builder, Collective, Lens, Loaded, Signature},
    ops::{Failure, Pair},
    settings::Executor,
};

/// A collective under way. It was started when it was made, and proceeds whether or not it is polled.
///
/// It completes when nobody needs its two buffers any more, and gives them back, also with an error. Dropping it detaches it: the
/// collective goes on, so that the other ranks complete, and the buffers are dropped afterwards. A runtime that is closed
/// waits for it.
#[must_use = "await it, or call `detach`"]
pub struct ProgramOp<I: SendBuf, O: RecvBuf> {
    name: &'static str,
    /// `None` when the buffers were given back.
    flight: Option<Flight<I, O>>,
}

struct Flight<I: SendBuf, O: RecvBuf> {
    way: Way<I, O>,
    comm: Comm,
    /// It goes on only when it is polled.
    hosted: bool,
}

enum Way<I, O> {
    Quick(QuickRun<I, O>),
    Run(RunTicket<I, O>),
    /// On its way from the one to the other.
    Between,
    /// Two ranks disagree, and are to say what they called.
    Disagrees(Box<Disagreement<I, O>>),
}

struct Disagreement<I, O> {
    failure: Failure,
    buffers: (I, O),
    /// They may be gone, or compute.
    limit: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// How long an error waits for ranks to say what they called.
const WORDS_MAX: Duration = Duration::from_secs(1);

/// A place in the order of a communicator's collectives, and the line of the program that took it.
#[must_use = "the other ranks wait for the collective that begins in it"]
#[derive(Debug)]
pub struct Turn {
    call: Call,
    /// It begins when its rank comes to it.
    waits: bool,
    promise: Option<Promise>,
}

impl Turn {
    /// The same place, taken by another line of the program.
    #[doc(hidden)]
    pub fn called_at(self, at: &'static Location<'static>) -> Self {
        let call = Call { at, ..self.call };
        Self { call, ..self }
    }
}

/// A runtime that closes waits for the collective, as for one under way.
#[derive(Debug)]
struct Promise(Comm);

impl Promise {
    /// None where the runtime closes already.
    fn new(comm: &Comm) -> Option<Self> {
        let promised = comm.shared().with(|engine| engine.core.promise());
        promised.then(|| Self(comm.clone()))
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let shared = self.0.shared();
        shared.with(|engine| engine.core.promised -= 1);
    }
}

impl Comm {
    /// Runs a program, as the next collective of this communicator: all ranks begin collectives in the same order.
    ///
    /// Several may be in flight. The input is read, the output is read and filled; both are at least as long as the program
    /// says, and a vector ends as long as that. The line of the call is shown where a job hangs.
    ///
    /// # Errors
    /// Of the future: a buffer that is too short, a program for another number of ranks, a missing reducer
    /// (`InvalidArgument`; `Aborted` on the other ranks); a member that failed or finished; ranks that call different
    /// collectives (`Mismatch`); and `Revoked` after any of these, for collectives begun later on this communicator.
    ///
    /// # Panics
    /// When the future is polled, if the reduction panicked, with its panic.
    #[doc(hidden)]
    #[track_caller]
    pub fn run_program<I: SendBuf, O: RecvBuf>(
        &self,
        collective: Collective,
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        self.run_program_in(self.reserve_collective(), collective, input, output)
    }

    /// A place in the order of this communicator's collectives, for one that is begun later.
    ///
    /// Whoever has it begins a collective in it: the other ranks wait for that.
    #[doc(hidden)]
    #[track_caller]
    pub fn reserve_collective(&self) -> Turn {
        Turn {
            call: self.next_collective(),
            waits: false,
            promise: None,
        }
    }

    /// As [`reserve_collective`](Self::reserve_collective), for one that begins when its rank comes to it: others may have begun
    /// before that whose turns come later. By task lists it would take what was sent to one of those: they tell collectives apart
    /// by the order in which they begin.
    #[doc(hidden)]
    #[track_caller]
    pub fn promise_collective(&self) -> Turn {
        Turn {
            call: self.next_collective(),
            waits: true,
            promise: Promise::new(self),
        }
    }

    /// As [`run_program`](Self::run_program), in the place of an earlier call.
    #[doc(hidden)]
    #[inline(always)]
    pub fn run_program_in<I: SendBuf, O: RecvBuf>(
        &self,
        turn: Turn,
        collective: Collective,
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        self.begin_program(turn, collective, None, (input, output))
    }

    /// A collective that this rank cannot begin, because of an argument: `InvalidArgument` with this sentence here, and
    /// `Aborted` on the other ranks.
    #[doc(hidden)]
    #[cold]
    pub fn refuse_program<I: SendBuf, O: RecvBuf>(
        &self,
        turn: Turn,
        name: &'static str,
        sentence: String,
        buffers: (I, O),
    ) -> ProgramOp<I, O> {
        let collective = Collective {
            name,
            signature: Signature::of(name),
            program: Builder::new::<u8>(self.size(), Lens::default())
                .finish()
                .into(),
            reducer: None,
            by_blocks: false,
        };
        self.begin_program(turn, collective, Some(sentence), buffers)
    }

    /// Whether processors reach the memory of all, though there is an adapter: that would only copy more slowly.
    fn is_among_neighbours(&self) -> bool {
        let (group, near) = (self.group(), &self.shared().place.neighbours);
        group.len() <= near.len()
            && group
                .members()
                .all(|rank| near.binary_search(&rank).is_ok())
    }

    #[inline(always)]
    fn begin_program<I: SendBuf, O: RecvBuf>(
        &self,
        Turn {
            call: Call { tag, at },
            waits,
            promise,
        }: Turn,
        collective: Collective,
        refused: Option<String>,
        (input, output): (I, O),
    ) -> ProgramOp<I, O> {
        let executor = self.shared().settings.collectives;
        let lists = match executor {
            Executor::Offload => !collective.program.is_short() && !self.is_among_neighbours(),
            Executor::Lists => true,
            Executor::Messages | Executor::Host => false,
        };
        let by_lists = lists && !waits;
        let buffers = Pair::new(input, output, &collective.program, by_lists);
        let Loaded(mut call) = collective.program;
        (call.ctx, call.tag, call.sig) = (self.id() + 1, tag, collective.signature.0.0);
        call.at = at;
        if !call.group.is(self.group()) {
            call.group = self.group().clone();
        }
        (call.reducer, call.refused) = (collective.reducer, refused);
        (call.offload, call.by_blocks) = (by_lists, collective.by_blocks);
        let mut op = ProgramOp {
            name: collective.name,
            flight: Some(Flight {
                way: Way::Quick(QuickRun::new(call, buffers)),
                comm: spare::clone(self),
                hosted: false,
            }),
        };
        if executor == Executor::Host {
            return op.hosted();
        }
        if let Some(flight) = &mut op.flight {
            flight.begin();
        }
        drop(promise); // it is kept
        op
    }
}

impl<I: SendBuf, O: RecvBuf> ProgramOp<I, O> {
    /// Lets it go on by itself; same as dropping it.
    pub fn detach(self) {}

    /// From now on it goes on only when it is polled, as without offload: the baseline to compare with, as with the setting
    /// `RIPSTOP_COLLECTIVES=host`. Dropping it lets it go on by itself again.
    #[doc(hidden)]
    pub fn hosted(mut self) -> Self {
        if let Some(flight) = &mut self.flight
            && !flight.has_ended()
        {
            flight.with_run(|engine, ticket| engine.core.host_run(ticket));
            flight.hosted = true;
        }
        self
    }

    /// Whether awaiting it would not wait.
    pub fn is_done(&self) -> bool {
        self.flight.as_ref().is_none_or(|flight| {
            let shared = flight.comm.shared();
            flight.has_ended()
                || shared.is_so(|engine| match &flight.way {
                    Way::Quick(quick) => engine.is_quick_done(quick),
                    Way::Run(ticket) => engine.core.is_done(ticket.buffers.op),
                    Way::Between | Way::Disagrees(_) => true,
                })
        })
    }

    /// Has it remember which of its receives are over, for [`poll_landed`](Self::poll_landed).
    #[doc(hidden)]
    pub fn watch(&mut self) {
        if let Some(flight) = &mut self.flight
            && !flight.has_ended()
        {
            flight.with_run(Engine::watch_run);
        }
    }

    /// A receive step that is over, in the order they ended: the rank that sent, and a copy of what it sent.
    ///
    /// `None` when the program is over: what was not told of by then is in the output. Each receive is told of once at the
    /// most, and only as long as no other step is at work on its bytes.
    #[doc(hidden)]
    pub fn poll_landed<T: Wire>(&mut self, cx: &Context<'_>) -> Poll<Option<(usize, Vec<T>)>> {
        ready!(poll_proceed(cx));
        let Some(flight) = self.flight.as_mut().filter(|flight| !flight.has_ended()) else {
            return Poll::Ready(None);
        };
        flight.poll_by(|flight| {
            flight.with_run(|engine, ticket| engine.core.poll_landed(ticket, cx.waker()))
        })
    }
}

impl<I: SendBuf, O: RecvBuf> Future for ProgramOp<I, O> {
    type Output = Result<(I, O), OpError<(I, O)>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(poll_proceed(cx));
        let Some(flight) = &mut self.flight else {
            panic!("a collective was polled after it had completed")
        };
        if flight.is_over_quickly()
            && let Some(Flight {
                way: Way::Quick(quick),
                comm,
                ..
            }) = self.flight.take()
        {
            let (filled, call) = quick.into_filled();
            spare::keep(comm);
            spare::keep_call(call);
            return Poll::Ready(Ok(filled));
        }
        let flight = self.flight.as_mut().expect("just seen");
        if let Way::Disagrees(_) = &flight.way {
            return self.poll_words(cx);
        }
        let polled = flight.poll_by(|flight| flight.poll(cx));
        let (outcome, input, output, panic) = ready!(polled);
        let mut flight = self.flight.take().expect("just seen");
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        match outcome {
            Ok(_) => {
                spare::keep(flight.comm);
                Poll::Ready(Ok((input, output)))
            }
            Err(failure) => {
                flight.way = Way::Disagrees(Box::new(Disagreement {
                    limit: Box::pin(executor::sleep(flight.comm.shared(), WORDS_MAX)),
                    failure: *failure,
                    buffers: (input, output),
                }));
                self.flight = Some(flight);
                self.poll_words(cx)
            }
        }
    }
}

impl<I: SendBuf, O: RecvBuf> ProgramOp<I, O> {
    /// The error, when those that disagree have said what they called.
    #[cold]
    fn poll_words(&mut self, cx: &mut Context<'_>) -> Poll<<Self as Future>::Output> {
        let flight = self.flight.as_mut().expect("it has failed just now");
        if let Way::Disagrees(its) = &mut flight.way
            && let ErrorKind::Mismatch { .. } = &its.failure.kind
        {
            let (ctx, shared) = (flight.comm.id() + 1, flight.comm.shared());
            let said = shared.with(|engine| engine.core.poll_words(ctx, cx.waker()));
            if said.is_pending() {
                ready!(its.limit.as_mut().poll(cx));
            }
        }
        let Some(Flight {
            way: Way::Disagrees(its),
            comm,
            ..
        }) = self.flight.take()
        else {
            unreachable!("just seen")
        };
        let Disagreement {
            mut failure,
            buffers: buf,
            ..
        } = *its;
        if let ErrorKind::Mismatch { rank, other, calls } = &mut failure.kind {
            let (ctx, ranks) = (comm.id() + 1, [*rank, *other]);
            *calls = comm.shared().with(|engine| engine.core.words(ctx, ranks));
        }
        let error = comm.error(self.name, failure.kind, None, None);
        let error = error.called_at(failure.about.at);
        Poll::Ready(Err(OpError { error, buf }))
    }
}

impl<I: SendBuf, O: RecvBuf> Flight<I, O> {
    /// Sends all that can go by cells, and looks once for what has come. Who runs ahead of its receivers waits a moment for them:
    /// to send messages to the slower would cost both more.
    #[inline]
    fn begin(&mut self) {
        if let Way::Quick(quick) = &mut self.way {
            let shared = self.comm.shared();
            if shared.poll_quick(|engine| engine.send_quick(quick)) != Look::Over {
                self.run();
            }
        }
    }

    /// Whether all that a quick one waits for has come.
    #[inline]
    fn is_over_quickly(&mut self) -> bool {
        let Way::Quick(quick) = &mut self.way else {
            return false;
        };
        if quick.has_ended() {
            return true;
        }
        let shared = self.comm.shared();
        shared.poll_quick(|engine| engine.look(quick)) == Look::Over
    }

    /// Whether it is over, and nothing has to be looked at for that.
    const fn has_ended(&self) -> bool {
        match &self.way {
            Way::Quick(quick) => quick.has_ended(),
            Way::Disagrees(_) => true,
            Way::Run(_) | Way::Between => false,
        }
    }

    /// The engine knows of it from here on.
    fn run(&mut self) -> (&RunTicket<I, O>, &Comm) {
        if let Way::Quick(_) = &self.way
            && let Way::Quick(quick) = mem::replace(&mut self.way, Way::Between)
        {
            let shared = self.comm.shared();
            let (ticket, room) = shared.with(|engine| engine.adopt(quick));
            self.way = Way::Run(ticket);
            spare::keep_call(room);
        }
        match &self.way {
            Way::Run(ticket) => (ticket, &self.comm),
            _ => unreachable!("made just now"),
        }
    }

    fn with_run<R>(&mut self, work: impl FnOnce(&mut Engine, &RunTicket<I, O>) -> R) -> R {
        let (ticket, comm) = self.run();
        comm.shared().with(|engine| work(engine, ticket))
    }

    #[inline]
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Taken<I, O>> {
        let (ticket, comm) = self.run();
        let take = |core: &mut Core| core.take_run(ticket);
        comm.shared().poll(ticket.buffers.op, cx.waker(), take)
    }

    /// Polls; first has the program go on, if only polls do that.
    #[inline]
    fn poll_by<R>(&mut self, mut poll: impl FnMut(&mut Self) -> Poll<R>) -> Poll<R> {
        if !self.hosted {
            return poll(self);
        }
        loop {
            self.with_run(Engine::carry_on);
            let polled = poll(self);
            // What happened while it was polled has woken nobody.
            if polled.is_ready() || !self.with_run(|engine, ticket| engine.core.is_stirred(ticket))
            {
                return polled;
            }
        }
    }
}

impl<I: SendBuf, O: RecvBuf> Drop for ProgramOp<I, O> {
    fn drop(&mut self) {
        if let Some(flight) = &mut self.flight
            && !flight.is_over_quickly()
            // What panicked on its way from the one to the other is not there any more.
            && !matches!(flight.way, Way::Between | Way::Disagrees(_))
        {
            flight.with_run(|engine, ticket| {
                engine.core.detach_run(ticket);
                engine.flush();
            });
        }
    }
}

// Buffers are moved, never pinned.
impl<I: SendBuf, O: RecvBuf> Unpin for ProgramOp<I, O> {}

impl<I: SendBuf, O: RecvBuf> fmt::Debug for ProgramOp<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramOp")
            .field("name", &self.name)
            .field("done", &self.is_done())
            .finish()
    }
}
