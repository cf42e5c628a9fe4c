//! How ranks connect and disconnect: mapping segments, accepting contacts, detecting deaths, and waiting for room.

use std::{io, sync::atomic::Ordering::Acquire};

use super::{
    ChangeCounts, ChangeWords, InboundRing, LinkOutcome, RetiredLink, Shm, ShmLink, ShmPeerStatus,
    ShmSegment,
    board::{BoardEntry, PeerState, index},
    doorbell::PeerDoorbell,
    handover,
    mapped_ring::NAMED_SLOTS_TAKEN,
    named_slots::{self, NamedSlotReceiver},
    process_handle::ProcessName,
};
use crate::driver::{DownCause, Sink, WorldRank};

impl Shm {
    /// Publishes this rank on the board, and wakes the ranks that may wait for it.
    pub(super) fn appear(&self) -> io::Result<()> {
        let (segment_fd, segment_len) = self.segment.published()?;
        let (pipe_fd, fence) = (self.bell.pipe_fd(), !self.bell.has_barrier());
        let entry = BoardEntry {
            segment_fd,
            segment_len,
            pipe_fd,
            fence,
            ..self.board.entry(self.rank)
        };
        if !self.board.enter(self.rank, &entry) {
            return Err(claim_error(self.rank, PeerState::Failed));
        }
        handover::ensure_fd_server(&self.board, self.rank);
        self.ring_all();
        Ok(())
    }

    /// Makes contact with a rank, if that is possible now.
    pub(super) fn connect(&mut self, to: u32) -> LinkOutcome {
        let reach = self.map(to);
        let Some(link) = self.links[index(to)]
            .as_deref_mut()
            .filter(|_| reach == LinkOutcome::Linked)
        else {
            return reach;
        };
        match link.open(self.rank, &self.board, &self.counters) {
            Ok(()) => LinkOutcome::Linked,
            Err(why) => self.give_up(to, why), // no memory for its ring
        }
    }

    /// Maps a rank's segment, if that is possible now.
    pub(super) fn map(&mut self, rank: u32) -> LinkOutcome {
        assert!(
            rank < self.board.size(),
            "rank {rank} on a node of {}",
            self.board.size()
        );
        if self.links[index(rank)].is_some() {
            return LinkOutcome::Linked;
        }
        if self.peer_status[index(rank)] == ShmPeerStatus::Down {
            return LinkOutcome::Down;
        }
        match self.board.state_of(rank) {
            PeerState::Ready => {}
            PeerState::Finished | PeerState::Failed => return LinkOutcome::Down,
            PeerState::Absent => return self.want(rank),
        }
        match self.open_segment(rank) {
            Ok(segment) if segment.is_closed_to(self.rank) => self.give_up(
                rank,
                io::Error::other(format!("rank {rank} considers this rank failed")),
            ),
            Ok(segment) => self.link(rank, segment),
            Err(why) => self.missed(rank, why),
        }
    }

    /// Starts waiting for an absent rank: until its process ends, or if it has none yet, until its time is up.
    #[cold]
    fn want(&mut self, rank: u32) -> LinkOutcome {
        self.awaits_absent = true;
        self.await_rank(rank);
        LinkOutcome::Absent
    }

    fn await_rank(&mut self, rank: u32) {
        if self.board.process_of(rank).is_some() {
            self.watch_rank(rank);
        } else {
            self.death_watch.expect(rank);
        }
    }

    /// Starts the same wait for those of `awaited` that have not opened their segment yet, because the caller waits for their
    /// messages.
    #[cold]
    pub(super) fn await_all_absent(&mut self, awaited: Vec<WorldRank>) {
        for WorldRank(rank) in awaited {
            if self.board.state_of(rank) == PeerState::Absent {
                self.await_rank(rank);
            }
        }
    }

    /// Handles a segment that could not be mapped: decides whether its rank has ended or whether this process lacks something.
    #[cold]
    fn missed(&mut self, rank: u32, why: io::Error) -> LinkOutcome {
        // The rank may have closed properly just now, while other ranks of its process live on. Otherwise the process is ending.
        let ends = why.kind() == io::ErrorKind::NotFound;
        if ends && self.board.state_of(rank) == PeerState::Ready {
            self.watch_rank(rank);
        }
        if self.board.state_of(rank) != PeerState::Ready {
            LinkOutcome::Down
        } else if ends
            && self
                .death_watch
                .watches(self.board.entry(rank).process_name)
        {
            self.awaits_absent = true;
            LinkOutcome::Absent // and soon down
        } else {
            self.give_up(rank, why)
        }
    }

    fn open_segment(&self, rank: u32) -> io::Result<ShmSegment> {
        if rank == self.rank {
            Ok(self.segment.clone())
        } else {
            ShmSegment::open(&self.board, rank, &self.board.entry(rank))
        }
    }

    fn link(&mut self, rank: u32, segment: ShmSegment) -> LinkOutcome {
        let mut link = ShmLink::new(&self.board, rank, segment, self.bell.has_barrier());
        // A peer that sends to this rank has mapped this rank's whole segment, including the chunks.
        link.has_mapped_chunks = self.inbound.iter().any(|inbound| inbound.from == rank);
        self.links[index(rank)] = Some(Box::new(link));
        self.linked.push(rank);
        self.death_watch.stop_expecting(rank);
        self.watch_rank(rank);
        LinkOutcome::Linked
    }

    /// Loads the current values of the shared counters.
    #[inline]
    pub(super) fn load_change_counts(&self) -> ChangeCounts {
        let ChangeWords { contacts, changes } = &self.changes;
        ChangeCounts {
            contacts: contacts.load(Acquire),
            changes: changes.load(Acquire),
        }
    }

    /// Accepts new contacts, and records which ranks came and went. Returns the number of events.
    #[inline]
    pub(super) fn poll_board(&mut self) -> u32 {
        let now = self.load_change_counts();
        if now == self.seen {
            0
        } else {
            self.handle_changes(now)
        }
    }

    #[cold]
    fn handle_changes(&mut self, now: ChangeCounts) -> u32 {
        let came = now.changes != self.seen.changes;
        // The count is noted before the scan, so that the next check notices a change during the scan.
        self.seen = now;
        for word in 0..self.board.size().div_ceil(32) {
            let bits = self.segment.contact_word(word).load(Acquire);
            for bit in (0..32).filter(|bit| bits >> bit & 1 == 1) {
                self.adopt(word * 32 + bit);
            }
        }
        if !came {
            return 0;
        }
        self.has_absent = false;
        handover::ensure_fd_server(&self.board, self.rank);
        for rank in 0..self.board.size() {
            match self.board.state_of(rank) {
                PeerState::Finished => self.record_peer_down(rank, DownCause::Finished),
                PeerState::Failed => self.record_peer_down(rank, DownCause::Failed),
                PeerState::Absent => self.has_absent = true,
                PeerState::Ready => {}
            }
        }
        self.give_up_closed_peers(&self.linked.clone());
        self.reclaim_retired_links();
        // A caller whose command was refused because a peer was absent must try again, so report an event.
        std::mem::take(&mut self.awaits_absent).into()
    }

    /// Starts to poll the ring of a rank that made contact.
    ///
    /// If its segment cannot be mapped because the rank is down, the messages in its ring here are delivered all the same.
    fn adopt(&mut self, rank: u32) {
        if rank >= self.board.size() || self.inbound.iter().any(|inbound| inbound.from == rank) {
            return;
        }
        self.open_inbox(rank);
        let bell = PeerDoorbell::new(&self.board, rank, self.bell.has_barrier());
        if self.peer_status[index(rank)] == ShmPeerStatus::Down {
            InboundRing::new(rank, &self.segment, None, bell)
                .wake_if_waiting(&self.board, &self.counters);
            return;
        }
        let mapped = self.map(rank) == LinkOutcome::Linked;
        let link = self.links[index(rank)].as_deref_mut().filter(|_| mapped);
        let chunks = link.map(|link| {
            link.has_mapped_chunks = true;
            link.segment.clone()
        });
        self.read_chunks(rank, chunks.as_ref());
        let mut inbound = InboundRing::new(rank, &self.segment, chunks, bell);
        inbound.wake_if_waiting(&self.board, &self.counters);
        self.inbound.push(inbound);
    }

    /// Prepares the named slots for messages of `rank`, because it may use them from now on. They are in this driver's segment,
    /// so they outlive `rank`.
    fn open_inbox(&mut self, rank: u32) {
        let (region, shape) = (self.segment.region(), self.segment.shape());
        let taken_at = shape.control(rank) + NAMED_SLOTS_TAKEN;
        let lines = named_slots::MappedNamedSlots::new(region, shape.named_slots(rank), taken_at);
        self.inboxes[index(rank)].get_or_insert_with(|| Box::new(NamedSlotReceiver::new(lines)));
    }

    /// Sets the memory that holds the longer messages of `rank` in named slots. There are none before this driver has mapped the
    /// segment of `rank`.
    fn read_chunks(&mut self, rank: u32, chunks: Option<&ShmSegment>) {
        if let (Some(inbox), Some(chunks)) = (&mut self.inboxes[index(rank)], chunks) {
            inbox.lines_mut().read_chunks(chunks.clone());
        }
    }

    /// Records that a rank is down. Nothing more is sent to it, and the messages it left are delivered before the sink is
    /// notified.
    fn record_peer_down(&mut self, rank: u32, how: DownCause) {
        if rank == self.rank || self.peer_status[index(rank)] == ShmPeerStatus::Down {
            return;
        }
        self.accept_last_contact(rank);
        self.peer_status[index(rank)] = ShmPeerStatus::Down;
        if let Some(link) = self.links[index(rank)].take() {
            self.retired_links.push(link.into_retired());
            self.reclaim_retired_links();
            self.linked.retain(|linked| *linked != rank);
        }
        self.rma_queue.fail(rank);
        self.unreported_down.push((rank, how));
        self.rare = true;
    }

    /// Accepts the contact of a rank that made contact, sent and left between two checks here, before the rank counts as down.
    ///
    /// The rank had no answer yet, so none of its messages is in chunks, unless this driver had made contact before.
    fn accept_last_contact(&mut self, rank: u32) {
        let contact = self.segment.contact_word(rank / 32).load(Acquire) >> (rank % 32) & 1 == 1;
        if contact && !self.inbound.iter().any(|inbound| inbound.from == rank) {
            self.open_inbox(rank);
            let bell = PeerDoorbell::new(&self.board, rank, self.bell.has_barrier());
            let link = self.links[index(rank)].as_ref();
            let chunks = link.map(|link| link.segment.clone());
            self.read_chunks(rank, chunks.as_ref());
            self.inbound
                .push(InboundRing::new(rank, &self.segment, chunks, bell));
        }
    }

    /// Treats a rank as failed that this driver cannot work with, although it may be alive.
    #[cold]
    pub(super) fn give_up(&mut self, rank: u32, why: io::Error) -> LinkOutcome {
        self.record_peer_down(rank, DownCause::Failed);
        self.close_to(rank);
        for inbound in self
            .inbound
            .iter_mut()
            .filter(|inbound| inbound.from == rank)
        {
            inbound.refuse(&self.board, &self.counters);
        }
        self.leave_ring(rank);
        self.give_up_reasons.push((rank, why));
        LinkOutcome::Down
    }

    /// Stops reading the ring of this rank. Its messages in named slots do not wait for ring messages any more.
    fn leave_ring(&mut self, rank: u32) {
        self.inbound.retain(|inbound| inbound.from != rank);
        if let Some(inbox) = self.inboxes[index(rank)].as_deref_mut() {
            inbox.leave_ring();
            self.unread.push(rank);
            self.let_go_of_read();
        }
    }

    /// Unmaps the chunks of ranks that are down and whose messages in named slots were all taken.
    fn let_go_of_read(&mut self) {
        let Self {
            unread, inboxes, ..
        } = self;
        unread.retain(|rank| {
            let inbox = inboxes[index(*rank)].as_deref_mut();
            let inbox = inbox.filter(|inbox| inbox.names().is_empty());
            inbox
                .map(|inbox| inbox.lines_mut().forget_chunks())
                .is_none()
        });
    }

    /// Reports the ranks that are down and whose messages are all delivered.
    #[cold]
    pub(super) fn report_peer_down(&mut self, sink: &mut dyn Sink) -> u32 {
        let leaving = std::mem::take(&mut self.unreported_down);
        let mut events = 0;
        for (rank, how) in leaving {
            if self
                .inbound
                .iter()
                .any(|inbound| inbound.from == rank && inbound.is_ready())
            {
                self.unreported_down.push((rank, how));
                continue;
            }
            self.leave_ring(rank);
            sink.peer_down(WorldRank(rank), how);
            events += 1;
        }
        events
    }

    /// Checks for dead processes: after a sleep, after much work without one, and while commands wait for a death.
    pub(super) fn check_deaths_if_due(&mut self) {
        let slept = self.bell.is_armed();
        if slept {
            self.bell.disarm(&self.counters);
        }
        if slept || self.unchecked >= WORK_PER_CHECK || self.rma_queue.has_dying() {
            self.handle_deaths();
        }
    }

    /// Returns true if a command waits for the end of a process that is not watched.
    pub(super) fn has_unwatched_dying(&self) -> bool {
        let unwatched = |rank| {
            !self
                .death_watch
                .watches(self.board.entry(rank).process_name)
        };
        self.rma_queue.dying().any(unwatched)
    }

    #[cold]
    fn handle_deaths(&mut self) {
        self.unchecked = 0;
        self.let_go_of_read();
        self.counters.checks.add(1);
        let dying: Vec<u32> = self.rma_queue.dying().collect();
        self.give_up_closed_peers(&dying);
        for rank in dying {
            self.watch_rank(rank); // it may have had no descriptor to watch the process before
        }
        for process in self.death_watch.poll() {
            self.mark_dead(process);
        }
        for rank in self.death_watch.overdue() {
            if self.board.process_of(rank).is_some() {
                self.watch_rank(rank); // it came while this rank slept
            } else if self.board.fail_overdue(rank) {
                self.ring_all_unconditionally();
            }
        }
    }

    fn mark_dead(&self, process: ProcessName) {
        let mut news = false;
        for rank in 0..self.board.size() {
            let died = self.board.process_of(rank) == Some(process) && self.board.fail_dead(rank);
            news |= died || self.board.claim_exit_notice(rank, process);
        }
        if news {
            self.ring_all_unconditionally();
        }
    }

    fn watch_rank(&mut self, rank: u32) {
        if !self.death_watch.watch(&self.board, rank) {
            self.mark_dead(self.board.entry(rank).process_name);
        }
    }

    /// Unmaps the memory that one peer has released, before a sleep. It is another peer each time.
    pub(super) fn unmap_freed_regions(&mut self) {
        self.let_go_of_read();
        let count = self.linked.len().max(1);
        let next = self.linked.get(self.turns as usize % count);
        if let Some(link) = next.and_then(|rank| self.links[index(*rank)].as_deref_mut()) {
            link.unmap_freed_regions();
        }
    }

    /// Watches the processes of the next ranks on the board.
    pub(super) fn watch(&mut self) {
        for process in self.death_watch.watch_next(&self.board) {
            self.mark_dead(process);
        }
    }

    /// Wakes every rank that sleeps.
    pub(super) fn ring_all(&self) {
        self.bells()
            .for_each(|mut bell| bell.ring(&self.board, &self.counters));
    }

    /// Wakes every rank that may sleep, even one that a dead rank was about to wake. Makes a system call for each.
    fn ring_all_unconditionally(&self) {
        self.bells()
            .for_each(|mut bell| bell.ring_unconditionally(&self.board, &self.counters));
    }

    fn bells(&self) -> impl Iterator<Item = PeerDoorbell> {
        let others = (0..self.board.size()).filter(|rank| *rank != self.rank);
        let ready = others.filter(|rank| self.board.state_of(*rank) == PeerState::Ready);
        ready.map(|rank| PeerDoorbell::new(&self.board, rank, self.bell.has_barrier()))
    }

    /// Takes back the chunks that any peer has released. Returns true if there is a free chunk now.
    pub(super) fn reclaim(&mut self) -> bool {
        for rank in &self.linked {
            if let Some(link) = self.links[index(*rank)].as_deref_mut() {
                link.reclaim(&mut self.pool);
            }
        }
        self.reclaim_retired_links();
        !self.pool.is_dry()
    }

    /// Asks the peers whose rings are full to ring when they have made room, before a sleep.
    pub(super) fn ask_for_room(&self) {
        if self.stalled {
            let links = self.links.iter().flatten();
            links.for_each(|link| link.ask_for_room(self.pool.is_dry()));
            self.retired_links
                .iter()
                .for_each(RetiredLink::request_wakeup);
        }
    }

    /// Returns true if a message that was refused would be taken now.
    pub(super) fn could_send(&mut self) -> bool {
        self.reclaim();
        let Self { links, pool, .. } = self;
        links.iter_mut().flatten().any(|link| link.could_send(pool))
    }

    /// Ends the stalls whose reason has ended, and returns how many. Each is an event, so that the caller tries again.
    #[cold]
    pub(super) fn unstall(&mut self) -> u32 {
        self.reclaim();
        let Self { links, pool, .. } = self;
        let mut events = 0;
        for link in links.iter_mut().flatten() {
            if link.could_send(pool) {
                link.stall = None;
                events += 1;
            }
        }
        self.stalled = self.links.iter().flatten().any(|link| link.stall.is_some());
        events
    }
}

/// Returns the error for a rank whose line on the board could not be claimed for a driver.
pub(super) fn claim_error(rank: u32, state: PeerState) -> io::Error {
    let (kind, why) = match state {
        PeerState::Failed => (
            io::ErrorKind::TimedOut,
            "is considered failed by the other ranks: it joined too late, or had failed before",
        ),
        _ => (
            io::ErrorKind::AddrInUse,
            "has already opened its driver: open the driver once on each rank",
        ),
    };
    io::Error::new(kind, format!("rank {rank} of this node {why}"))
}

/// Work between two checks of a rank that never sleeps, which takes 5 to 10 ms. A driver has no clock, so it counts turns of at
/// least 20 ns, and messages.
pub(super) const WORK_PER_CHECK: u32 = 1 << 18;
/// Work that a turn with a copy counts as. Such a turn takes from some hundred nanoseconds to some dozen microseconds.
pub(super) const WORK_OF_A_COPY: u32 = 1 << 9;
