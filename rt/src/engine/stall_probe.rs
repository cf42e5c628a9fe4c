//! Stall probe: programs that have waited for long ask their peers whether they wait in vain.
//!
//! Ranks that call different collectives may send each other nothing. For example, two ranks that each take the other for the
//! root would wait forever. So a rank that is about to sleep on a program sets a timer. When it expires, the rank asks the peers
//! for which its programs wait:
//! - A peer that runs another collective in this place reports a mismatch, as always.
//! - A peer that has completed this collective answers that it has. Its messages and acknowledgments have arrived before that
//!   answer, in order. So if the asking rank still lacks something of that peer, the peer has called another collective.
//! - A peer that has dropped the communicator, or is leaving, gives the same answer.
//!
//! Adapters that run task lists count puts in no order with messages. There the answer counts only if the same is still lacking
//! when it is time to ask again.
//!
//! Agreements use the same probe: they continue without a rank that has dropped the communicator. So do collectives that create
//! communicators and windows: their receives then fail.
//!
//! The probe needs a driver that keeps messages in order. A simulation detects by itself that nothing can happen, and then lets
//! its ranks ask.

use std::time::Duration;

use super::{EngineCore, sleeper};
use crate::{
    clock::ClockTime,
    group::WorldRank,
    proto::{collective_id::CollectiveId, wire::ProgramHeader},
    reactor::TimerId,
};

/// Time that a rank sleeps on its programs before it asks. Long enough to cost nothing, short enough when a job hangs.
const PATIENCE: Duration = Duration::from_secs(1);

/// Start time while no thread sleeps on a program.
const NEVER: ClockTime = ClockTime::from_nanos(u64::MAX);

/// Key of the timer. It differs from the keys of operations and of sleepers.
pub(super) const KEY: u64 = sleeper::KEYS - (1 << 32);

/// State of the stall probe.
pub(super) struct StallProbe {
    timer: TimerId,
    /// Time since when a thread sleeps on the programs in progress, or [`NEVER`].
    since: ClockTime,
    /// True if the timer stays when the programs are complete, so that a sleeping thread need not be notified of it for the next
    /// ones.
    stays: bool,
}

impl EngineCore {
    /// Starts the probe, because this thread is about to sleep. The timer `stays` if another thread is asleep that may not know
    /// of a new program.
    pub(crate) fn arm_stall_probe(&mut self, stays: bool, now: impl FnOnce() -> ClockTime) {
        if !self.is_asking() || !self.p2p.hears_in_order() {
            return;
        }
        match &mut self.programs.stall_probe {
            None => self.set_doubt(now(), stays),
            Some(stall_probe) if stall_probe.since == NEVER => stall_probe.since = now(),
            Some(_) => {}
        }
    }

    /// Returns true if there may be something to ask for.
    #[inline]
    fn is_asking(&self) -> bool {
        self.programs.any()
            || self.recovery.is_agreeing()
            || !self.p2p.common.calls.agreeing.is_empty()
    }

    fn set_doubt(&mut self, since: ClockTime, stays: bool) {
        let timer = self.p2p.common.timers.insert(since + PATIENCE, KEY);
        self.programs.stall_probe = Some(StallProbe {
            timer,
            since,
            stays,
        });
    }

    /// Stops the probe after a collective, if nothing is left to ask for.
    #[inline]
    pub(super) fn stop_stall_probe(&mut self) {
        if self.programs.stall_probe.is_some() && !self.is_asking() {
            self.doubt_no_more();
        }
    }

    fn doubt_no_more(&mut self) {
        match &mut self.programs.stall_probe {
            Some(stall_probe) if stall_probe.stays => stall_probe.since = NEVER,
            stall_probe => {
                if let Some(StallProbe { timer, .. }) = stall_probe.take() {
                    self.p2p.common.timers.cancel(timer);
                }
            }
        }
    }

    /// Handles the timer: asks if the programs in progress have waited long enough, and sets it again otherwise.
    #[cold]
    pub(super) fn ask_for_programs(&mut self, now: ClockTime) {
        let since = self
            .programs
            .stall_probe
            .take()
            .map_or(NEVER, |stall_probe| stall_probe.since);
        if since == NEVER {
            return;
        }
        if since + PATIENCE > now {
            self.set_doubt(since, true);
        } else {
            self.ask_all(false);
        }
    }

    /// Asks on behalf of all programs in a simulation in which nothing else can happen; unless `again`, only of those for which
    /// it has not asked before. Returns true if it asked for any program.
    pub(crate) fn ask_in_vain(&mut self, again: bool) -> bool {
        self.is_asking() && self.ask_all(!again)
    }

    fn ask_all(&mut self, once: bool) -> bool {
        self.recovery().ask_agreed(once) | self.collectives().ask_programs(once)
    }

    /// Records that the creation of a communicator or a window has ended.
    pub(crate) fn record_creation_end(&mut self, id: CollectiveId) {
        self.collectives().end_creating(id);
        self.stop_stall_probe();
    }

    /// Handles the question of a peer that waits for this rank in a collective or an agreement.
    pub(super) fn handle_stall_probe(&mut self, rank: WorldRank, header: &ProgramHeader) {
        if is_of_agreement(header) {
            self.in_recovery(|part| part.handle_ask_agreed(rank, header));
        } else {
            self.collectives().answer_stall_probe(rank, header);
        }
    }

    /// Handles a peer's answer that it has completed a collective or an agreement.
    pub(super) fn handle_program_done(&mut self, rank: WorldRank, header: &ProgramHeader) {
        if is_of_agreement(header) {
            self.in_recovery(|part| part.handle_over_agreed(rank, header));
        } else {
            self.collectives().note_program_done(rank, header);
        }
    }
}

/// Returns true for a question or an answer about an agreement. The contexts of collectives are odd.
fn is_of_agreement(header: &ProgramHeader) -> bool {
    header.ctx.is_multiple_of(2)
}
