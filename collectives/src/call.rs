//! One call: its place in the order of the communicator's collectives, and its program.

use std::{panic::Location, sync::Arc};

use ripstop_rt::{
    Comm,
    buffer::{RecvBuf, SendBuf, Wire},
    internal::{
        CommInternals,
        offload::{CollectivePlace, CollectiveSignature, CollectiveSpec, ErasedReducer, ProgramOp},
    },
};

use crate::{
    CollectiveOp, Tuning,
    blocks::BlockSource,
    cache::{CachedProgram, CallerContext, ProgramCache},
    call_spec::CallSpec,
    op::ReturnBuffers,
    plan::{NodeLayout, RankLayout},
    tuning::{ChoiceContext, machine_of},
};

/// A call that has its place in the order, and begins now or later.
pub(crate) struct OrderedCall<'a> {
    comm: &'a Comm,
    name: &'static str,
    place: CollectivePlace,
    /// What this rank does, or the reason why it does nothing.
    ready: Result<CachedProgram, String>,
    /// True if the caller may ask for blocks one by one.
    by_blocks: bool,
}

/// The reserved place of a call that begins later.
pub(crate) struct DeferredCall {
    pub(crate) comm: Comm,
    pub(crate) place: CollectivePlace,
}

impl DeferredCall {
    #[track_caller]
    pub(crate) fn new(comm: &Comm) -> Self {
        Self {
            comm: comm.clone(),
            place: comm.promise_collective(),
        }
    }

    /// Begins the call from `send` into a new vector.
    pub(crate) fn begin<S: SendBuf, H: ReturnBuffers<S, Vec<S::Elem>>>(
        self,
        tuning: &Tuning,
        spec: &CallSpec<'_>,
        send: S,
        home: H,
    ) -> CollectiveOp<S, Vec<S::Elem>, H> {
        let Self { comm, place } = self;
        let mut call = OrderedCall::in_reserved_place::<S::Elem>(&comm, tuning, spec, place);
        let room = call.output_vec();
        call.begin(None, send, room, home)
    }
}

impl<'a> OrderedCall<'a> {
    #[inline(always)]
    #[track_caller]
    pub(crate) fn new<T: Wire>(comm: &'a Comm, tuning: &Tuning, spec: &CallSpec<'_>) -> Self {
        Self::of(comm, spec.name, program_for::<T>(comm, tuning, spec))
    }

    /// Makes a call in a place that was reserved earlier.
    pub(crate) fn in_reserved_place<T: Wire>(
        comm: &'a Comm,
        tuning: &Tuning,
        spec: &CallSpec<'_>,
        place: CollectivePlace,
    ) -> Self {
        Self {
            comm,
            name: spec.name,
            place,
            ready: program_for::<T>(comm, tuning, spec),
            by_blocks: false,
        }
    }

    /// Makes a call in a place that was reserved earlier, from a program that was made elsewhere.
    pub(crate) fn deferred(
        comm: &'a Comm,
        name: &'static str,
        ready: Result<CachedProgram, String>,
        place: CollectivePlace,
    ) -> Self {
        Self {
            comm,
            name,
            place,
            ready,
            by_blocks: false,
        }
    }

    /// Makes a call from a program that was made elsewhere.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn of(
        comm: &'a Comm,
        name: &'static str,
        ready: Result<CachedProgram, String>,
    ) -> Self {
        Self {
            comm,
            name,
            place: comm.reserve_collective(),
            ready,
            by_blocks: false,
        }
    }

    /// Replaces the line of the program that errors blame, for a call on behalf of another function.
    pub(crate) fn called_at(self, at: &'static Location<'static>) -> Self {
        let place = self.place.called_at(at);
        Self { place, ..self }
    }

    /// Adds `signature` to what the ranks must agree on.
    pub(crate) fn agree_on(&mut self, signature: CollectiveSignature) {
        if let Ok(ready) = &mut self.ready {
            ready.signature = ready.signature.and(signature);
            let name = self.name;
            self.comm
                .name_signature(ready.signature, || name.to_owned());
        }
    }

    /// Lets the caller ask for blocks one by one.
    pub(crate) fn allow_blocks(self) -> Self {
        let by_blocks = true;
        Self { by_blocks, ..self }
    }

    /// Refuses the call with this reason.
    pub(crate) fn refuse(&mut self, sentence: String) {
        self.ready = Err(sentence);
    }

    /// Like [`refuse`](Self::refuse), and returns an empty vector in place of the elements.
    pub(crate) fn refused<T>(&mut self, sentence: String) -> Vec<T> {
        self.refuse(sentence);
        Vec::new()
    }

    /// Returns where the blocks of the ranks are in the result, unless the call was refused.
    pub(crate) fn blocks(&self) -> Option<BlockSource> {
        let ready = self.ready.as_ref().ok()?;
        let program = Arc::clone(&ready.program);
        Some(BlockSource::Program(self.comm.rank(), program))
    }

    /// Returns an empty vector with capacity for the output. Refuses the call if there is no memory for it.
    pub(crate) fn output_vec<T>(&mut self) -> Vec<T> {
        let mut room = Vec::new();
        let bytes = self.ready.as_ref().map(CachedProgram::output);
        if let Ok(bytes) = bytes
            && let Err(why) = room.try_reserve_exact(bytes / size_of::<T>())
        {
            self.refuse(format!("no memory for an output of {bytes} bytes: {why}"));
        }
        room
    }

    /// Concatenates the vectors into the input. Refuses the call if there is no memory for it.
    pub(crate) fn concat_input<T: Copy>(&mut self, rows: &[Vec<T>]) -> Vec<T> {
        let mut all = Vec::new();
        if self.ready.is_err() {
            return all;
        }
        match all.try_reserve_exact(rows.iter().map(Vec::len).sum()) {
            Ok(()) => rows.iter().for_each(|row| all.extend_from_slice(row)),
            Err(why) => self.refuse(format!("no memory for a copy of `send`: {why}")),
        }
        all
    }

    /// Begins the call. Inlined with all of its callers: passing a call from one function to the next took as long as sending
    /// it.
    #[inline(always)]
    pub(crate) fn begin<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>>(
        self,
        reducer: Option<ErasedReducer>,
        input: I,
        output: O,
        home: H,
    ) -> CollectiveOp<I, O, H> {
        let Self {
            comm,
            name,
            place,
            by_blocks,
            ready,
        } = self;
        let ready = match input.fault().or_else(|| output.fault()) {
            None => ready,
            Some(fault) => Err(format!("the buffer cannot be used: {fault}")),
        };
        let run = match ready {
            Ok(ready) => ready.begin(comm, place, (name, reducer, by_blocks), (input, output)),
            Err(sentence) => comm.refuse_program(place, name, sentence, input, output),
        };
        CollectiveOp::new(run, home)
    }
}

impl CachedProgram {
    /// Returns the length of the output in bytes.
    fn output(&self) -> usize {
        self.program.lens().output
    }

    /// Begins the program. `by_blocks` is true if the caller may ask for blocks one by one.
    #[inline(always)]
    pub(crate) fn begin<I: SendBuf, O: RecvBuf>(
        self,
        comm: &Comm,
        place: CollectivePlace,
        (name, reducer, by_blocks): (&'static str, Option<ErasedReducer>, bool),
        (input, output): (I, O),
    ) -> ProgramOp<I, O> {
        let collective = CollectiveSpec {
            name,
            signature: self.signature,
            program: self.program,
            reducer,
            with_block_events: by_blocks,
        };
        comm.run_program_in(place, collective, input, output)
    }
}

/// Returns the program of a call, from the cache or newly made.
#[inline(always)]
pub(crate) fn program_for<T: Wire>(
    comm: &Comm,
    tuning: &Tuning,
    spec: &CallSpec<'_>,
) -> Result<CachedProgram, String> {
    let caller = CallerContext {
        place: RankLayout::new(comm.rank(), comm.size()),
        per_node: comm.per_node(),
        elem: (T::SIG.0, align_of::<T>()),
        tuning,
    };
    let cache = comm.attached::<ProgramCache>();
    cache.get(&caller, spec, |caller, spec| {
        make_program::<T>(comm, caller, spec)
    })
}

fn make_program<T: Wire>(
    comm: &Comm,
    caller: &CallerContext<'_>,
    spec: &CallSpec<'_>,
) -> Result<CachedProgram, String> {
    let CallerContext {
        place,
        per_node,
        tuning,
        ..
    } = *caller;
    let guide = ChoiceContext {
        tuning,
        settings: comm.settings(),
        machine: machine_of(comm.choices(), per_node),
    };
    let several = (2..place.size()).contains(&per_node);
    let nodes = several.then(|| NodeLayout::regular(place.size(), per_node));
    let place = nodes.as_ref().map_or(place, |nodes| place.on(nodes));
    let made = spec.build_program::<T>(&place, &guide)?;
    comm.name_signature(made.signature, || spec.describe::<T>());
    Ok(made)
}
