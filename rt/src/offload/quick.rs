//! Programs of one round: what they send does not depend on what they receive.
//!
//! Short ones need nobody to carry them on. All they send leaves when they begin, and the rest is done at once when everything
//! has come.

use super::{Action, Program};

/// The order in which a program of one round is gone through.
#[derive(Clone, Debug)]
pub(crate) struct Quick {
    /// All steps: those that wait for no message first, in the order of the list.
    pub(crate) order: Box<[u32]>,
    /// How many wait for none.
    pub(crate) sends: usize,
}

/// Steps of a quick program at the most: it is gone through under a lock.
const STEPS_MAX: usize = 64;

/// Bytes of its longest copy or reduction at the most, for the same reason.
const WORK_MAX: usize = 1 << 10;

impl Quick {
    /// Of a program whose messages have at most `len_max` bytes and go to and come from different ranks.
    pub(super) fn of(program: &Program, len_max: usize) -> Option<Self> {
        if program.len() > STEPS_MAX {
            return None;
        }
        let mut waits = vec![false; program.len()];
        let mut peers = Vec::new();
        for (at, step) in program.steps.iter().enumerate() {
            let (room, waits_now) = match step.action {
                // Two to one rank would have one name.
                _ if step.next.is_some() => return None,
                Action::Send { .. } if waits[at] => return None,
                Action::Send { to, from } => {
                    peers.push(to);
                    (from.len <= len_max, false)
                }
                Action::Recv { into, .. } => (into.len <= len_max, true),
                Action::Copy { into, .. } | Action::Reduce { into, .. } => {
                    (into.len <= WORK_MAX, waits[at])
                }
                Action::Join => (true, waits[at]),
            };
            if !room {
                return None;
            }
            waits[at] = waits_now;
            if waits_now {
                program.successors(at).for_each(|later| waits[later] = true);
            }
        }
        let number = |(at, _): (u32, &bool)| at;
        let of = |wanted: bool| (0..).zip(&waits).filter(move |(_, waits)| **waits == wanted);
        let order: Box<[u32]> = of(false).chain(of(true)).map(number).collect();
        let sends = of(false).count();
        Some(Self { order, sends })
    }
}
