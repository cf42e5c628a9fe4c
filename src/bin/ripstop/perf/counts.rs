//! The cost of a measurement's messages, counted on all ranks.

use ripstop::{Comm, Result, Runtime};

use super::{TAG_TALLY, allocations, clock};

/// Counts at one moment, or the difference of two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PerfCounts {
    pub(super) system_calls: u64,
    pub(super) copies: u64,
    pub(super) wakes: u64,
    pub(super) allocations: u64,
    /// Messages of the driver, including those of the runtime itself.
    pub(super) messages: u64,
    pub(super) entries: u64,
    pub(super) placed: u64,
    pub(super) events: u64,
    pub(super) acks: u64,
    pub(super) posts: u64,
    pub(super) registrations: u64,
    /// Notices of the adapter to the host about task lists.
    pub(super) list_words: u64,
    /// Interrupts of the host, by an adapter that raises them.
    pub(super) interrupts: u64,
    /// Processor time, in nanoseconds.
    pub(super) cpu_ns: u64,
}

impl PerfCounts {
    pub(super) fn now(runtime: &Runtime) -> Self {
        Self::of(&runtime.counters())
    }

    pub(super) fn of(counters: &ripstop_fabric::counters::StatsSnapshot) -> Self {
        Self {
            system_calls: counters.system_calls,
            copies: counters.copies,
            wakes: counters.wakes_sent,
            allocations: allocations::count(),
            messages: counters.messages_sent,
            entries: counters.entries,
            placed: counters.placed,
            events: counters.events,
            acks: counters.acks,
            posts: counters.posts,
            registrations: counters.registrations,
            list_words: counters.list_words,
            interrupts: counters.interrupts,
            cpu_ns: clock::cpu(),
        }
    }

    pub(super) fn since(self, earlier: Self) -> Self {
        let (mut numbers, earlier) = (self.numbers(), earlier.numbers());
        for (number, earlier) in numbers.iter_mut().zip(earlier) {
            *number -= earlier;
        }
        Self::from_numbers(numbers)
    }

    /// Returns the sum over all ranks on rank 0, and the rank's own counts elsewhere.
    pub(super) async fn gather(self, world: &Comm) -> Result<Self> {
        let mut sum = self.numbers();
        if world.rank() != 0 {
            world.send(0, TAG_TALLY, sum).await?;
            return Ok(self);
        }
        for rank in 1..world.size() {
            let (theirs, _) = world.recv_into(rank, TAG_TALLY, [0_u64; COUNTS]).await?;
            for (sum, theirs) in sum.iter_mut().zip(theirs) {
                *sum += theirs;
            }
        }
        Ok(Self::from_numbers(sum))
    }

    const fn numbers(self) -> [u64; COUNTS] {
        [
            self.system_calls,
            self.copies,
            self.wakes,
            self.allocations,
            self.messages,
            self.entries,
            self.placed,
            self.events,
            self.acks,
            self.posts,
            self.registrations,
            self.list_words,
            self.interrupts,
            self.cpu_ns,
        ]
    }

    const fn from_numbers(numbers: [u64; COUNTS]) -> Self {
        let [
            system_calls,
            copies,
            wakes,
            allocations,
            messages,
            entries,
            placed,
            events,
            acks,
            posts,
            registrations,
            list_words,
            interrupts,
            cpu_ns,
        ] = numbers;
        Self {
            system_calls,
            copies,
            wakes,
            allocations,
            messages,
            entries,
            placed,
            events,
            acks,
            posts,
            registrations,
            list_words,
            interrupts,
            cpu_ns,
        }
    }
}

const COUNTS: usize = 14;
