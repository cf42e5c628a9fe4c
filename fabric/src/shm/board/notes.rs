//! Notes that ranks leave for one another on the board, such as the addresses of their ends of another fabric.

use std::{
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
    time::Duration,
};

use super::{Board, PeerState, RANK_LEN, RANKS_AT, index};
use crate::driver::ADDRESS_MAX;

impl Board {
    /// Longest note in bytes: the name of a rank's host, and what the rank says about the three networks over which it could join
    /// its job.
    pub const NOTE_MAX: usize = 760;

    /// Leaves a note about `rank` for the other ranks, such as its address in another fabric. To be called once per rank.
    ///
    /// # Panics
    /// Panics if there is no such rank, or the note is empty or longer than [`NOTE_MAX`](Self::NOTE_MAX).
    pub fn leave_note(&self, rank: u32, note: &[u8]) {
        self.write_note(self.note_at(rank), note);
        self.notify_waiters();
    }

    /// Returns the note of a rank, if it is there.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    #[must_use]
    pub fn note_of(&self, rank: u32) -> Option<Vec<u8>> {
        self.read_note(self.note_at(rank))
    }

    /// Returns the notes of all ranks, once they are there.
    ///
    /// # Errors
    /// The first rank without a note, if nothing new happened for `limit`, or if that rank has failed.
    pub fn notes(&self, limit: Duration) -> Result<Vec<Vec<u8>>, u32> {
        let has_failed = |rank| self.state_of(rank) == PeerState::Failed;
        self.read_notes(limit, self.size, |rank| self.note_at(rank), has_failed)
    }

    /// Leaves a note about each rank of the job for the ranks of this node. The creator of the board does this, once.
    ///
    /// # Panics
    /// Panics if there is not one note per rank of the job; otherwise like [`leave_note`](Self::leave_note).
    pub fn leave_notes_of_job(&self, notes: &[Vec<u8>]) {
        assert_eq!(notes.len(), index(self.job), "notes for the ranks of a job");
        for (rank, note) in (0..).zip(notes) {
            self.write_note(self.job_at(rank), note);
        }
        self.notify_waiters();
    }

    /// Returns the notes about all ranks of the job, once they are there.
    ///
    /// # Errors
    /// The first rank without a note, if nothing new happened for `limit`.
    pub fn notes_of_job(&self, limit: Duration) -> Result<Vec<Vec<u8>>, u32> {
        self.read_notes(limit, self.job, |rank| self.job_at(rank), |_| false)
    }

    fn write_note(&self, at: usize, note: &[u8]) {
        let fits = (1..=Self::NOTE_MAX).contains(&note.len());
        assert!(fits, "a note of {} bytes", note.len());
        for (nth, bytes) in note.chunks(8).enumerate() {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            let word = self.region.atomic_u64(at + 8 + 8 * nth);
            word.store(u64::from_le_bytes(padded), Relaxed);
        }
        let len = u32::try_from(note.len()).unwrap_or(0);
        // The length is stored last, because it publishes the bytes.
        self.region.atomic_u32(at).store(len, Release);
    }

    fn read_note(&self, at: usize) -> Option<Vec<u8>> {
        let len = index(self.region.atomic_u32(at).load(Acquire)).min(Self::NOTE_MAX);
        let words = (0..len.div_ceil(8)).map(|word| self.region.atomic_u64(at + 8 + 8 * word));
        let mut note: Vec<u8> = words
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        note.truncate(len);
        (len > 0).then_some(note)
    }

    fn read_notes(
        &self,
        limit: Duration,
        ranks: u32,
        at: impl Fn(u32) -> usize,
        has_failed: impl Fn(u32) -> bool,
    ) -> Result<Vec<Vec<u8>>, u32> {
        let mut notes = Vec::new();
        let mut failed = None;
        self.wait(limit, || {
            loop {
                let next = u32::try_from(notes.len()).unwrap_or(u32::MAX);
                if next >= ranks {
                    return Ok(());
                }
                match self.read_note(at(next)) {
                    Some(note) => notes.push(note),
                    None if has_failed(next) => {
                        failed = Some(next);
                        return Ok(());
                    }
                    None => return Err(next),
                }
            }
        })?;
        failed.map_or(Ok(notes), Err)
    }

    fn note_at(&self, rank: u32) -> usize {
        assert!(rank < self.size, "rank {rank} on a node of {}", self.size);
        self.notes_at() + index(rank) * NOTE_LEN
    }

    fn job_at(&self, rank: u32) -> usize {
        assert!(rank < self.job, "rank {rank} of a job of {}", self.job);
        self.notes_at() + index(self.size + rank) * NOTE_LEN
    }

    const fn notes_at(&self) -> usize {
        RANKS_AT + index(self.size) * RANK_LEN
    }
}

// The lines are followed by the notes of the node's ranks, then those of all ranks of the job. Without another fabric, these
// pages stay untouched.
/// Length of a note in memory: 8 bytes for its length, and the note.
pub(super) const NOTE_LEN: usize = 8 + Board::NOTE_MAX;

const _: () = assert!(
    Board::NOTE_MAX >= ADDRESS_MAX && Board::NOTE_MAX.is_multiple_of(8),
    "a note holds the address of any rank, and is written in words"
);
