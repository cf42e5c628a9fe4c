//! Recovery from lost events: the counters show what has happened.

use super::{
    super::{onesided::PortalsCommands, transport::PortalsTransport},
    PolledWait, PortalsTaskLists,
    trigger_slots::{SlotTask, TaskFallback},
};
use crate::driver::CommandFailure;

impl PortalsTaskLists {
    /// Finds out from the counters what lost events would have reported. Failed lists end with `why`.
    pub(super) fn recover_lost_events(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        why: impl Fn() -> CommandFailure,
    ) {
        let ni = std::sync::Arc::clone(&transport.resources.ni);
        let lists = self.lists.iter();
        let begun = lists.filter(|(_, list)| ni.ct_get(list.begun).sum() >= list.count);
        let begun: Vec<u32> = begun.map(|(id, _)| *id).collect();
        begun
            .into_iter()
            .for_each(|id| self.list_begun(transport, id));
        // The other watches are still waiting, so no event was due for them.
        let met = self.watches.iter();
        let met = met.filter(|(_, watch)| self.is_met(transport, watch.waits()));
        let met: Vec<u32> = met.map(|(id, _)| *id).collect();
        let is_new =
            |polled: &PolledWait| !matches!(polled, PolledWait::Watch(id) if met.contains(id));
        self.polled.retain(is_new);
        self.polled.extend(met.into_iter().map(PolledWait::Watch));
        let mut broken = Vec::new();
        let mut due = Vec::new();
        for (id, slot) in &self.trigger_slots {
            let count = ni.ct_get(slot.pair.go);
            match &slot.task {
                Some(work) if count.failure > 0 => broken.push(work.token),
                Some(SlotTask {
                    fallback: TaskFallback::Task(_),
                    waits,
                    ..
                }) if count.sum() >= waits.len() as u64 => {
                    due.push(*id);
                }
                _ => {}
            }
        }
        due.into_iter()
            .for_each(|id| self.task_due(commands, transport, id));
        for token in broken {
            self.break_off(transport, token, why());
        }
    }
}
