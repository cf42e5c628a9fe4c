//! Finds steps that may run at the same time and touch the same element.

use super::{GroupStep, Plan, PlanFault, ProgramStepId};
use crate::plan::ProgramBuffer;

/// Finds the first race. The list of steps is a topological order. So a write that is ordered after the last write, and after
/// all reads since, is ordered after all earlier accesses, and only those need a check.
pub(super) fn find_race(plan: &Plan, output: usize) -> Result<(), PlanFault> {
    let before = HappensBefore::of(plan);
    let mut elements = [
        vec![ElementAccesses::default(); output],
        vec![ElementAccesses::default(); plan.scratch()],
    ];
    for (step, action) in plan.steps() {
        let ordered = |earlier: &ProgramStepId| {
            let fine = *earlier == step || before.has(step, *earlier);
            if fine {
                Ok(())
            } else {
                Err(PlanFault::Race(GroupStep::new(plan.rank(), step), *earlier))
            }
        };
        for (buffer, element) in action.reads().into_iter().flatten().copied().flat_map(each) {
            let touched = &mut elements[buffer][element];
            touched.written.iter().try_for_each(ordered)?;
            touched.read.push(step);
        }
        for (buffer, element) in action.writes().into_iter().copied().flat_map(each) {
            let touched = &mut elements[buffer][element];
            touched
                .written
                .iter()
                .chain(&touched.read)
                .try_for_each(ordered)?;
            *touched = ElementAccesses {
                written: Some(step),
                read: Vec::new(),
            };
        }
    }
    Ok(())
}

#[derive(Clone, Default)]
struct ElementAccesses {
    written: Option<ProgramStepId>,
    read: Vec<ProgramStepId>,
}

/// Returns the elements of a span, except those of the input, which no step writes.
fn each(span: crate::plan::BufferSpan) -> impl Iterator<Item = (usize, usize)> {
    let buffer = match span.buffer {
        ProgramBuffer::Input => None,
        ProgramBuffer::Output => Some(0),
        ProgramBuffer::Scratch => Some(1),
    };
    let elements = span.runs().flatten();
    elements.filter_map(move |element| Some((buffer?, element)))
}

/// For each step, a bit for each step that has completed when it begins.
struct HappensBefore {
    rows: Vec<Vec<u64>>,
}

impl HappensBefore {
    fn of(plan: &Plan) -> Self {
        let mut rows: Vec<Vec<u64>> = Vec::with_capacity(plan.len());
        for (step, _) in plan.steps() {
            let mut row = vec![0; plan.len().div_ceil(64)];
            for earlier in plan.after(step) {
                for (word, theirs) in row.iter_mut().zip(&rows[earlier.index()]) {
                    *word |= theirs;
                }
                row[earlier.index() / 64] |= 1 << (earlier.index() % 64);
            }
            rows.push(row);
        }
        Self { rows }
    }

    fn has(&self, step: ProgramStepId, earlier: ProgramStepId) -> bool {
        self.rows[step.index()][earlier.index() / 64] >> (earlier.index() % 64) & 1 == 1
    }
}
