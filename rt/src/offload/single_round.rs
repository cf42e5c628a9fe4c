//! Programs of one round, in which no send depends on a receive.
//!
//! Short ones need no step-by-step execution: all sends leave when the program begins, and all other steps are done
//! when every message has arrived.

use ripstop_fabric::driver::SLOT_MESSAGE_MAX;

use super::{BufferSpan, CollectiveProgram, ProgramBuffer, StepAction};

/// Order in which the steps of a program of one round are done.
#[derive(Clone, Debug)]
pub(crate) struct SingleRound {
    /// All steps: first those that wait for no message, in list order.
    pub(crate) order: Box<[u32]>,
    /// Number of steps that wait for no message.
    pub(crate) sends: usize,
    /// Number of messages that are received. If it is one, its receive is the first step after `sends`.
    pub(crate) recvs: usize,
}

/// Maximum number of steps of a single-round run, because its steps are done under a lock.
const STEPS_MAX: usize = 64;

/// Maximum number of bytes that such a program sends, receives, copies and reduces, for the same reason.
const WORK_MAX: usize = 256 << 10;

/// Maximum length of a message, in bytes, that is copied twice although one copy would suffice.
///
/// Longer messages are faster by a get, although offered memory must be matched. Two copies are worth it up to
/// [`SLOT_MESSAGE_MAX`] in two cases: if ranks reduce, because they have just written the data, and if messages go in one
/// direction and one message is for all ranks, because its sender copies once and goes on while they copy. Measured
/// with `ripstop perf collective`.
pub(crate) const MOVED_MAX: usize = 32 << 10;

impl SingleRound {
    /// Returns the order for a program whose messages go to, and come from, different ranks.
    pub(super) fn of(program: &CollectiveProgram) -> Option<Self> {
        if program.len() > STEPS_MAX {
            return None;
        }
        let len_max = len_max(program);
        let mut waits = vec![false; program.len()];
        let (mut work, mut sent, mut recvs) = (0, None, 0);
        for (at, step) in program.steps.iter().enumerate() {
            let (len, len_max, waits_now) = match step.action {
                // Two messages to one rank would have the same name.
                _ if step.next.is_some() => return None,
                StepAction::Send { .. } if waits[at] => return None,
                // The same bytes already lie in the collective slot.
                StepAction::Send { from, .. } if sent == Some(from) => (0, len_max, false),
                StepAction::Send { from, .. } => {
                    sent = Some(from);
                    (from.len, len_max, false)
                }
                StepAction::Recv { into, .. } => {
                    recvs += 1;
                    (into.len, len_max, true)
                }
                StepAction::Copy { into, .. } | StepAction::Reduce { into, .. } => {
                    (into.len, WORK_MAX, waits[at])
                }
                StepAction::Join => (0, 0, waits[at]),
            };
            work += len;
            if len > len_max || work > WORK_MAX {
                return None;
            }
            waits[at] = waits_now;
            if waits_now {
                program.successors(at).for_each(|later| waits[later] = true);
            }
        }
        if fills_scratch(program, &waits) {
            return None;
        }
        let number = |(at, _): (u32, &bool)| at;
        let of = |wanted: bool| {
            (0..)
                .zip(&waits)
                .filter(move |(_, waits)| **waits == wanted)
        };
        let order: Box<[u32]> = of(false).chain(of(true)).map(number).collect();
        let sends = of(false).count();
        Some(Self {
            order,
            sends,
            recvs,
        })
    }
}

/// Returns the length of the longest message for which two copies are worth it, in bytes.
fn len_max(program: &CollectiveProgram) -> usize {
    let (mut sent, mut receives) = (Vec::new(), false);
    for action in program.actions() {
        match action {
            StepAction::Reduce { .. } => return SLOT_MESSAGE_MAX,
            StepAction::Send { from, .. } => sent.push(from),
            StepAction::Recv { .. } => receives = true,
            StepAction::Copy { .. } | StepAction::Join => {}
        }
    }
    let is_one = sent.windows(2).all(|pair| pair[0] == pair[1]);
    let one_way = sent.is_empty() || !receives;
    if is_one && one_way {
        SLOT_MESSAGE_MAX
    } else {
        MOVED_MAX
    }
}

/// Returns true if the program writes to scratch before messages have arrived, because scratch is not kept until then.
fn fills_scratch(program: &CollectiveProgram, waits: &[bool]) -> bool {
    let in_scratch = |span: &BufferSpan| span.buffer == ProgramBuffer::Scratch && span.len > 0;
    let mut steps = program.actions().zip(waits);
    steps.any(|(action, waits)| !waits && action.writes().is_some_and(in_scratch))
}

#[cfg(test)]
mod tests {
    use crate::offload::{
        CollectiveProgram, CommRank, OperandSide, Plan, single_round::SLOT_MESSAGE_MAX,
    };
    use crate::offload::{
        ProgramBuffer::Input, ProgramBuffer::Output, ProgramBuffer::Scratch, StepAction,
    };

    fn program(steps: &[(StepAction, &[usize])]) -> CollectiveProgram {
        let mut plan = Plan::new(0, 4);
        plan.add_scratch(100_000);
        let mut made = Vec::new();
        for (action, after) in steps {
            let after: Vec<_> = after.iter().map(|&at| made[at]).collect();
            made.push(plan.push(*action, &after));
        }
        plan.program::<u8>(100_000, 64).unwrap()
    }

    fn send(to: usize, len: usize) -> StepAction {
        let from = Input.span(0, len);
        StepAction::Send {
            to: CommRank(to),
            from,
        }
    }

    fn recv(from: usize, len: usize) -> StepAction {
        let into = Scratch.span(0, len);
        StepAction::Recv {
            from: CommRank(from),
            into,
        }
    }

    const fn reduce() -> StepAction {
        StepAction::Reduce {
            from: Scratch.span(0, 8),
            into: Output.span(0, 8),
            side: OperandSide::Left,
        }
    }

    #[test]
    fn what_waits_for_no_message_comes_first() {
        let steps = [
            (recv(1, 8), &[][..]),
            (reduce(), &[0]),
            (send(1, 8), &[]),
            (recv(2, 0), &[1]),
            (send(2, 65_536), &[2]),
        ];
        let program = program(&steps);
        let single_round = program.single_round().unwrap();
        assert_eq!(
            (&*single_round.order, single_round.sends),
            (&[2, 4, 0, 1, 3][..], 2)
        );
        assert_eq!(single_round.recvs, 2);
    }

    #[test]
    fn one_message_for_all_may_be_long_and_is_counted_once() {
        let to_all = |len| program(&[1, 2, 3].map(|to| (send(to, len), &[][..])));
        assert!(to_all(SLOT_MESSAGE_MAX).single_round().is_some());
        assert!(to_all(SLOT_MESSAGE_MAX + 8).single_round().is_none());
        assert!(
            program(&[(recv(0, SLOT_MESSAGE_MAX), &[])])
                .single_round()
                .is_some()
        );
        let other = StepAction::Send {
            to: CommRank(2),
            from: Input.span(8, SLOT_MESSAGE_MAX),
        };
        let different = program(&[(send(1, SLOT_MESSAGE_MAX), &[]), (other, &[])]);
        assert!(different.single_round().is_none());
    }

    #[test]
    fn one_round_of_short_messages_to_and_from_different_ranks_is_single_round_and_nothing_else() {
        let two_rounds: [(StepAction, &[usize]); 2] = [(recv(1, 8), &[]), (send(2, 8), &[0])];
        let two_to_one: [(StepAction, &[usize]); 2] = [(send(1, 8), &[]), (send(1, 8), &[])];
        let long: [(StepAction, &[usize]); 2] = [(send(1, 32_776), &[]), (recv(1, 8), &[])];
        let kept = StepAction::Copy {
            from: Input.span(0, 8),
            into: Scratch.span(8, 8),
        };
        let keeps: [(StepAction, &[usize]); 2] = [(kept, &[]), (recv(1, 8), &[])];
        for steps in [&two_rounds[..], &two_to_one, &long, &keeps] {
            assert!(program(steps).single_round().is_none(), "{steps:?}");
        }
        let both_ways: [(StepAction, &[usize]); 2] = [(send(1, 8), &[]), (recv(1, 8), &[])];
        assert!(program(&both_ways).single_round().is_some());
        let reduced: [(StepAction, &[usize]); 3] =
            [(send(1, 65_536), &[]), (recv(1, 8), &[]), (reduce(), &[1])];
        assert!(program(&reduced).single_round().is_some());
    }
}
