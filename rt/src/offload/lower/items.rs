//! Turns one step into tasks and duties of the host, and counts how many of them take a place in a list.

use super::{
    CounterThreshold, LoweredAction, LoweredCounter, LoweredItem, ProgramLowering,
    lowered_program::LoweredStep,
};
use crate::offload::{BufferSpan, LOOKAHEAD_MIN, StepAction};

impl ProgramLowering {
    /// Returns the number of the step's waiting tasks.
    pub(super) fn tasks_of(&self, at: usize) -> Option<usize> {
        let step = self.form.steps.get(at)?;
        let fans = if self.is_wide(at) {
            0
        } else {
            step.fans as usize
        };
        Some(if self.is_early(at) { 0 } else { self.acts(at) } + fans)
    }

    /// Returns the number of tasks of the step itself.
    fn acts(&self, at: usize) -> usize {
        match self.program.step(at).action {
            StepAction::Join => usize::from(self.form.steps[at].fans == 0),
            action if self.is_for_host(&action) => 0,
            _ => 1,
        }
    }

    /// Returns true if too many steps wait for the step: any [`LOOKAHEAD_MIN`] consecutive steps must fit into a list and one
    /// more task.
    fn is_wide(&self, at: usize) -> bool {
        let tasks_max = (self.list_max() + 1) / LOOKAHEAD_MIN;
        self.acts(at) + self.form.steps[at].fans as usize > tasks_max
    }

    /// Returns true if the step begins as soon as it is posted.
    pub(super) fn is_early(&self, at: usize) -> bool {
        let action = self.program.step(at).action;
        let is_quiet = matches!(action, StepAction::Recv { .. } | StepAction::Copy { .. });
        self.form.steps[at].go.is_none() && is_quiet && !self.is_for_host(&action)
    }

    pub(super) fn emit(&self, at: usize, items: &mut Vec<LoweredItem>) {
        let (step, action) = (self.form.steps[at], self.program.step(at).action);
        let joins = matches!(action, StepAction::Join);
        if !(joins && step.fans > 0) {
            items.push(self.act(at));
        }
        if step.fans == 0 {
            return;
        }
        let counter = LoweredCounter::Own(step.end);
        let over = CounterThreshold {
            counter,
            value: step.passes_at(),
        };
        let when = if joins { step.may_begin() } else { over };
        if self.is_wide(at) {
            let action = LoweredAction::Spread { step: at };
            items.push(LoweredItem {
                when,
                and: None,
                action,
            });
        } else {
            self.pass_on(at, when, items);
        }
    }

    /// Returns the item of the step itself.
    fn act(&self, at: usize) -> LoweredItem {
        let (step, action) = (self.form.steps[at], self.program.step(at).action);
        let (end, when) = (step.end, step.may_begin());
        let (and, lowered) = match action {
            StepAction::Send { to, from } => {
                let (lane, nth) = self.place_of(&step, to);
                let allowed = CounterThreshold {
                    counter: LoweredCounter::Landing(lane),
                    value: nth,
                };
                let put = LoweredAction::Put {
                    lane,
                    nth,
                    from,
                    end,
                };
                (Some(allowed), put)
            }
            StepAction::Recv { from, into } => {
                let (lane, nth) = self.place_of(&step, from);
                let invite = LoweredAction::PublishLanding {
                    lane,
                    nth,
                    into,
                    end,
                };
                (None, invite)
            }
            StepAction::Join => (None, LoweredAction::Pass { to: end }),
            StepAction::Copy { from, into } if are_rows(&from, &into) => {
                (None, LoweredAction::Copy { from, into, end })
            }
            action => {
                let host = LoweredAction::Host { step: at, end };
                (None, self.combine(&action, end).unwrap_or(host))
            }
        };
        LoweredItem {
            when,
            and,
            action: lowered,
        }
    }

    /// Returns the reduction as an adapter's task, if it can do it. Its operators commute, so the side of the operand
    /// does not matter.
    fn combine(&self, action: &StepAction, end: u32) -> Option<LoweredAction> {
        let (StepAction::Reduce { from, into, .. }, Some(how)) =
            (*action, self.form.means.combining.how)
        else {
            return None;
        };
        let fits = are_rows(&from, &into) && from.len <= self.form.means.combining.max;
        fits.then_some(LoweredAction::Combine {
            from,
            into,
            how,
            end,
        })
    }

    /// Returns true if an adapter cannot do this action.
    fn is_for_host(&self, action: &StepAction) -> bool {
        match action {
            StepAction::Reduce { .. } => self.combine(action, 0).is_none(),
            StepAction::Copy { from, into } => !are_rows(from, into),
            _ => false,
        }
    }

    fn pass_on(&self, at: usize, when: CounterThreshold, items: &mut Vec<LoweredItem>) {
        items.extend(self.waiting(at).map(|to| LoweredItem {
            when,
            and: None,
            action: LoweredAction::Pass { to },
        }));
    }
}

impl LoweredStep {
    fn may_begin(self) -> CounterThreshold {
        // A step that waits for no other begins immediately.
        let (counter, value) = self.go.unwrap_or((0, 0));
        CounterThreshold {
            counter: LoweredCounter::Own(counter),
            value: value.into(),
        }
    }
}

fn are_rows(from: &BufferSpan, into: &BufferSpan) -> bool {
    from.is_contiguous() && into.is_contiguous()
}
