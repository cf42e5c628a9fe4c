//! Collectives of one rank, which complete at their call: nothing is awaited, so there is no program, no handle and no waker.

use super::{CollectiveCall, Comm, program::CollectivePlace, program::ProgramOp};
use crate::{
    buffer::{RecvBuf, SendBuf},
    engine::{CollectiveExecution, Engine},
    offload::{CollectiveSpec, LocalCopy},
};

/// A rank makes a turn once in this many collectives of a communicator, because these alone make none. They take about a
/// microsecond.
const TURN_EVERY: u32 = 64;

impl Comm {
    /// Does the next collective of this rank alone.
    ///
    /// # Errors
    /// Something is unusual (a buffer that is too short, a revoked communicator, a runtime that is closing): the collective,
    /// which has this place, must be begun in the way of all collectives, which has the errors.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn try_alone<I: SendBuf, O: RecvBuf>(
        &self,
        copy: LocalCopy,
        input: &I,
        output: &mut O,
    ) -> Result<(), CollectivePlace> {
        let call = self.next_collective();
        if self.is_done_alone(call, copy, input, output) {
            return Ok(());
        }
        Err(CollectivePlace::of(call))
    }

    /// Does this collective unless something is unusual. Returns true if it is done.
    #[inline(always)]
    fn is_done_alone<I: SendBuf, O: RecvBuf>(
        &self,
        call: CollectiveCall,
        copy: LocalCopy,
        input: &I,
        output: &mut O,
    ) -> bool {
        if call.tag.is_multiple_of(TURN_EVERY) {
            self.shared().make_due_turn();
        }
        let is_calm = |engine: &Engine| engine.core.is_calm_alone(self.id() + 1);
        let is_usual = self.shared().look(is_calm);
        CollectiveExecution::of_copy(is_usual) == CollectiveExecution::AtCall
            && copy.apply(input, output)
    }

    /// Begins a collective of this rank alone, in its place, in the way of all collectives.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_alone<I: SendBuf, O: RecvBuf>(
        &self,
        place: CollectivePlace,
        (name, copy): (&'static str, LocalCopy),
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        let collective = CollectiveSpec::plain(name, copy.program(output.elems()));
        self.begin_program(place, collective, None, input, output)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use crate::{
        Runtime,
        error::ErrorKind,
        offload::{LocalCopy, ProgramOp},
    };

    #[test]
    fn a_call_of_one_rank_completes_at_once_or_has_the_errors_of_all_collectives() {
        let runtime = Runtime::builder().init().unwrap();
        let world = runtime.world();
        let call = |input: Vec<u32>, mut output: Vec<u32>| {
            let copy = LocalCopy::Bytes(8);
            match world.try_alone(copy, &input, &mut output) {
                Ok(()) => ProgramOp::completed(input, output),
                Err(place) => world.begin_alone(place, ("gather_into", copy), input, output),
            }
        };
        runtime.block_on(async {
            let done = call(vec![1, 2, 3], vec![0; 4]);
            assert!(done.is_done());
            assert_eq!(done.await.unwrap(), (vec![1, 2, 3], vec![1, 2]));
            let short = call(vec![1], vec![0; 4]).await.unwrap_err();
            let said = short.error.to_string();
            assert!(
                said.contains("`send` has 1 elements, and 2 are needed"),
                "{said}"
            );
            assert_eq!(short.buf.0, [1]);
            let later = call(vec![1, 2], vec![0; 2]).await.unwrap_err();
            assert!(
                matches!(later.error.kind, ErrorKind::Revoked),
                "{}",
                later.error
            );
        });
    }
}
