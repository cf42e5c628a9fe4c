//! Short commands of one turn leave together, because the kernel's work for a call that sends is many times that of a short
//! command.
//!
//! What a rank posts between two turns leaves at these times:
//!
//! - The first command for a peer leaves at once if nothing is queued for the peer, and so does a long one, with all before it.
//! - Further short commands are staged: they wait in the peer's queue. They leave when [`STAGE_LEN`] bytes wait, with the next
//!   long command, and at the latest when the rank begins its next turn, prepares a sleep, or ends.
//! - Nothing is staged while the rank may sleep, that is from [`arm`](crate::driver::Driver::arm) to the next turn. So a thread
//!   that posts while another one sleeps need not wake it.
//!
//! A rank that posts and then computes has its first command for each peer on the way, and may keep up to [`STAGE_LEN`] bytes
//! of further ones until a turn is made for it: within a millisecond by the runtime's agent, and without one in its next `await`.

use super::core::TcpCore;

impl TcpCore {
    /// Returns true if a peer's socket takes bytes as far as is known.
    pub(super) fn can_send(&self, rank: u32) -> bool {
        let connection = self.peers[rank as usize].connection.as_ref();
        let entry = connection.and_then(|connection| self.sockets.get(connection.socket));
        entry.is_some_and(|entry| entry.writable)
    }

    /// Returns true if a command of `len` bytes may wait for further ones of the same turn.
    pub(super) fn may_stage(&self, rank: u32, len: usize) -> bool {
        let peer = &self.peers[rank as usize];
        let first = peer.sent_in != Some(self.turns);
        !self.armed && !first && len <= STAGED_MAX
    }

    /// Sends what was queued for a peer, of which the last `len` bytes are new, or has it wait for more of the same turn.
    pub(super) fn send_soon(&mut self, rank: u32, len: usize) {
        if self.may_stage(rank, len) {
            self.stage(rank);
        } else {
            self.peers[rank as usize].sent_in = Some(self.turns);
            self.flush(rank);
        }
    }

    /// Has what is queued for a peer sent by the end of the turn, or now if it is long.
    pub(super) fn stage(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        if peer.queue.copied() >= STAGE_LEN {
            self.flush(rank);
        } else if !std::mem::replace(&mut peer.staged, true) {
            self.staged.push(rank);
        }
    }

    /// Sends what has waited for more of a turn that is over.
    pub(super) fn send_staged(&mut self) {
        while let Some(rank) = self.staged.pop() {
            self.peers[rank as usize].staged = false;
            self.flush(rank);
        }
    }
}

/// Longest command that waits for others, in bytes. Copying it costs less than a call.
pub(super) const STAGED_MAX: usize = 2 << 10;

/// Bytes that are worth a call.
const STAGE_LEN: usize = 16 << 10;
