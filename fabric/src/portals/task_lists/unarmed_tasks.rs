//! Lists with tasks for which the library has no room now.
//!
//! Armed tasks of such a list proceed, and the others wait for room. Later lists do not wait behind them: tasks wait for
//! counters, not for each other, and short lists may make room.

use super::{
    super::{
        calls::{Ct, PortalsCallError},
        onesided::PortalsCommands,
        room::REFUSALS_MAX,
        transport::PortalsTransport,
    },
    PortalsTaskLists,
};
use crate::{
    driver::{CommandFailure, CommandToken},
    offload::TriggeredTask,
};

/// The unarmed rest of a list.
#[derive(Debug)]
pub(super) struct UnarmedTasks {
    pub(super) token: CommandToken,
    /// Counter of the tasks that have begun; `None` if there was no room even for that.
    begun: Option<Ct>,
    tasks: Vec<TriggeredTask>,
    /// Turns in which none of its tasks found room.
    tries: u32,
}

impl UnarmedTasks {
    /// Returns the number of tasks, if nothing counts them yet.
    pub(super) const fn unopened(&self) -> u64 {
        match self.begun {
            None => self.tasks.len() as u64,
            Some(_) => 0,
        }
    }
}

impl PortalsTaskLists {
    /// Arms a list as far as there is room.
    pub(super) fn begin_list(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        tasks: &[TriggeredTask],
        token: CommandToken,
    ) {
        let mut begun = None;
        if let Err((armed, why)) = self.arm_tasks(commands, transport, tasks, token, &mut begun) {
            let late = UnarmedTasks {
                token,
                begun,
                tasks: tasks[armed..].to_vec(),
                tries: 0,
            };
            self.keep_unarmed(transport, late, why);
        }
    }

    /// Arms tasks that found no room before.
    pub(super) fn arm_unarmed(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
    ) {
        for mut late in std::mem::take(&mut self.unarmed) {
            if self.are_ending(late.token) {
                continue;
            }
            let armed = self.arm_tasks(
                commands,
                transport,
                &late.tasks,
                late.token,
                &mut late.begun,
            );
            if let Err((armed, why)) = armed {
                late.tries = late
                    .tries
                    .saturating_add(transport.room.backoff.weight_of_asking());
                if armed > 0 {
                    late.tasks.drain(..armed);
                    late.tries = 0;
                }
                self.keep_unarmed(transport, late, why);
            }
        }
    }

    /// Arms tasks in order. On a refusal, returns the index of the refused task.
    fn arm_tasks(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        tasks: &[TriggeredTask],
        token: CommandToken,
        begun: &mut Option<Ct>,
    ) -> Result<(), (usize, PortalsCallError)> {
        let ct = match *begun {
            Some(ct) => ct,
            None => self
                .open_list(transport, token, tasks.len() as u64)
                .map_err(|why| (0, why))?,
        };
        *begun = Some(ct);
        for (armed, task) in tasks.iter().enumerate() {
            // Arming may handle events of failed tasks, so the list may be ending by now.
            if self.are_ending(token) {
                break;
            }
            self.arm_task(commands, transport, task, token, ct)
                .map_err(|why| (armed, why))?;
        }
        Ok(())
    }

    /// Keeps the rest of a list for later, or fails the list if that is hopeless.
    fn keep_unarmed(
        &mut self,
        transport: &PortalsTransport,
        late: UnarmedTasks,
        why: PortalsCallError,
    ) {
        if self.are_ending(late.token) {
            return;
        }
        if matches!(why, PortalsCallError::Transient(_)) && late.tries < REFUSALS_MAX {
            self.unarmed.push(late);
        } else {
            self.break_off(transport, late.token, CommandFailure::Transport(why.into()));
        }
    }
}
