//! Prefix reductions, by recursive doubling: in round i every rank passes what it has to the rank 2ⁱ ahead (Hillis, Steele
//! 1986). Both keep the order of ranks.

use super::{
    BufferSpan, OperandSide, Plan,
    ProgramBuffer::{Input, Output},
    RankLayout,
    builder::{PlanBuilder, StepDependency},
    rank_layout::RankTeam,
    reduce::recv_and_reduce,
    shape::powers,
};

/// Makes the plan in which rank i's output becomes the combination of the outputs of ranks 0 to i, in place. lg p · (α + nβ +
/// nγ); at most 3 lg p steps, scratch for 2n, n being `len`.
#[must_use]
pub fn scan(place: &RankLayout<'_>, len: usize) -> Plan {
    let mut b = PlanBuilder::new(place);
    doubling(&mut b, &place.team(), 0, Output.span(0, len), None);
    b.build()
}

/// Makes the plan in which rank i's output becomes the combination of the inputs of ranks 0 to i − 1; rank 0's output is left
/// as it is. The inputs first move on by one rank, and a scan combines them there: 1 + lg (p − 1) rounds; scratch as for
/// [`scan`].
#[must_use]
pub fn exscan(place: &RankLayout<'_>, len: usize) -> Plan {
    let mut b = PlanBuilder::new(place);
    let team = place.team();
    if team.me + 1 < team.size {
        b.send(team.me + 1, Input.span(0, len), &[]);
    }
    if team.me > 0 {
        let result = Output.span(0, len);
        let got = b.recv(team.me - 1, result, &[]);
        doubling(&mut b, &team, 1, result, got);
    }
    b.build()
}

/// Scans among the ranks from `first` on; `acc` holds this rank's operand after `ready`.
fn doubling(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    first: usize,
    acc: BufferSpan,
    ready: StepDependency,
) {
    let place = team.me - first;
    let mut landing = b.scratch_slots(2.min(place), acc.len);
    let mut last = ready;
    for distance in powers(team.size - first) {
        let to = team.me + distance;
        let sent = if to < team.size {
            b.send(team.rank_at(to), acc, &[last])
        } else {
            None
        };
        if distance <= place {
            let from = team.rank_at(team.me - distance);
            last = recv_and_reduce(
                b,
                &mut landing,
                from,
                OperandSide::Left,
                acc,
                &[sent.or(last)],
            );
        }
    }
}
