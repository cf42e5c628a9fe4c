//! What a view says about its rank, as plain data.

/// State of a rank when a snapshot was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSnapshot {
    /// Number of the snapshot, from 1 on.
    pub number: u64,
    /// Time of the machine's monotonic clock, in nanoseconds.
    pub taken: u64,
    /// Time since which no operation has begun or ended, as far as snapshots show it.
    pub quiet_since: u64,
    /// What the rank was doing.
    pub phase: RankPhase,
    /// Thread id, as the rank sees it, of the thread of the application that slept in the runtime last, or that joined the job.
    /// 0 if it is not known.
    pub thread: u32,
    /// True if nothing happens in this rank without another one: no time limit runs, and no bytes are in flight.
    pub is_passive: bool,
    /// True if the view had no room for everything.
    pub is_truncated: bool,
    /// Receives that were entered into the matching so far.
    pub posted: u64,
    /// Messages that have arrived so far.
    pub arrived: u64,
    /// Operations that have ended: messages that were sent or received, also as parts of collectives, and collectives. Only a
    /// change tells something, and the number may go back: when a communicator is dropped, and when a count of 32 bits begins
    /// again.
    pub ended: u64,
    /// Events of the driver that the rank had handled, as [`RankFlight::events`](super::RankFlight::events) counts them.
    pub events: u64,
    /// True if `peers` has all peers in contact.
    pub has_all_peers: bool,
    /// Peers in contact.
    pub peers: Vec<PublishedPeer>,
    /// Operations in flight.
    pub waits: Vec<PublishedWait>,
    /// Communicators of the rank.
    pub comms: Vec<PublishedComm>,
    /// Messages that no receive has taken, and those that probes have reserved.
    pub stored: Vec<StoredGroup>,
    /// Ranks that hold the lock of this rank's memory in a window, for which others wait.
    pub locks: Vec<PublishedLock>,
    /// The operation of the application that ended last, as `recv from rank 2, file:line`. Empty if it is not known.
    pub last_ended: String,
    /// The sleep of the application that began first, if a future awaits one.
    pub sleep: Option<PublishedSleep>,
    /// What the operations of the application have moved and waited for so far; `None` unless the rank records a trace.
    pub recorded: Option<RecordedTotals>,
}

/// Sums over the operations that a trace has recorded, apart from those in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedTotals {
    /// Bytes of messages that this rank has sent.
    pub sent_bytes: u64,
    /// Bytes of messages that this rank has received.
    pub received_bytes: u64,
    /// Nanoseconds for which futures waited: for sends, receives, probes, collectives and windows.
    pub waited: [u64; 5],
}

/// What a rank was doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the command is of the same version, and handles every case"
)]
pub enum RankPhase {
    /// It has not joined its job yet.
    #[default]
    Starting = 0,
    /// Its threads sleep in the runtime, and wait for what is in flight.
    Waiting = 1,
    /// It makes no turns, and only its agent sleeps in the runtime: it computes, or waits for something else.
    Elsewhere = 2,
    /// It has left its job.
    Left = 3,
}

/// Kind of an operation in flight, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the command is of the same version, and handles every case"
)]
pub enum WaitKind {
    /// A receive that waits for its message.
    Recv = 0,
    /// A receive whose bytes are on their way.
    RecvMoving = 1,
    /// A probe.
    Probe = 2,
    /// A send that waits for room at the receiver.
    SendQueued = 3,
    /// A send that waits for its receive.
    SendOffered = 4,
    /// A send whose bytes are on their way.
    SendMoving = 5,
    /// A collective.
    Collective = 6,
    /// An access to a window.
    Remote = 7,
    /// An agreement of all ranks of a communicator.
    Agree = 8,
    /// An epoch that cannot start before another rank posts its window.
    WindowPost = 9,
    /// An epoch that cannot end before another rank completes its accesses.
    WindowComplete = 10,
    /// A lock of another rank's window.
    WindowLock = 11,
    /// A fence.
    WindowFence = 12,
    /// The making of a communicator or a window, a fence by messages, or the freeing of a window.
    Creation = 13,
    /// A receive whose sender is packing the message.
    RecvPacking = 14,
}

/// An operation in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedWait {
    /// Kind and progress.
    pub kind: WaitKind,
    /// Name of the operation in its rank. No other operation has had it.
    pub id: u64,
    /// Even number of the communicator.
    pub comm: u32,
    /// World rank of the peer; `None` for any.
    pub peer: Option<u32>,
    /// Tag; `None` for any. The number of a collective or a window.
    pub tag: Option<u32>,
    /// Signature of the element type, or of the collective.
    pub sig: u64,
    /// Length of the message, or of the room for it, in bytes.
    pub bytes: u64,
    /// True if a future waits for the operation.
    pub is_awaited: bool,
    /// Time when the operation was first seen in flight, of the machine's monotonic clock, in nanoseconds.
    pub since: u64,
    /// Name of the collective with its arguments, or the elements of a message. May be empty.
    pub name: String,
    /// Source line, as `file:line`. May be empty.
    pub at: String,
}

/// How many messages a rank has exchanged with a peer, also as parts of collectives, modulo 2³².
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishedPeer {
    /// World rank of the peer.
    pub rank: u32,
    /// Messages that this rank has sent to the peer.
    pub sent: u32,
    /// Messages of the peer that have arrived here.
    pub received: u32,
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedComm {
    /// Even number of the communicator. Communicators without a common member may have the same.
    pub comm: u32,
    /// Number of members.
    pub size: u32,
    /// Hash of the world ranks of the members.
    pub members: u64,
    /// Number after that of the last collective that the rank has begun.
    pub next: u32,
    /// The last collective, if it has ended, as `barrier #16, file:line`. May be empty.
    pub last: String,
}

/// A sleep in the runtime that a future awaits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedSleep {
    /// Number of the sleep in its rank. Later sleeps have other numbers.
    pub number: u32,
    /// Nanoseconds that it takes.
    pub nanos: u64,
    /// Source line, as `file:line`.
    pub at: String,
}

/// Messages of one kind that have come and were not received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredGroup {
    /// True if probes have reserved the messages. Otherwise, no receive takes them.
    pub is_probed: bool,
    /// World rank of the sender.
    pub source: u32,
    /// Even number of the communicator.
    pub comm: u32,
    /// Tag of the messages.
    pub tag: u32,
    /// Signature of the element type.
    pub sig: u64,
    /// Number of messages.
    pub count: u64,
    /// Bytes of all messages together.
    pub bytes: u64,
    /// Elements of the first message.
    pub name: String,
}

/// A rank that holds the lock of the memory which the rank of the view has in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedLock {
    /// Even number of the window's communicator.
    pub comm: u32,
    /// Number of the window.
    pub window: u32,
    /// World rank of the holder.
    pub holder: u32,
}

impl RankSnapshot {
    /// Returns how many messages this rank has sent to peers and received from them since an earlier snapshot. The counts of a
    /// peer wrap around.
    #[must_use]
    pub fn exchanged_since(&self, earlier: &Self) -> [u64; 2] {
        let mut counts = [0_u64; 2];
        for peer in &self.peers {
            let before = earlier.peers.iter().find(|before| before.rank == peer.rank);
            let [sent, received] = match before {
                Some(before) => [
                    Self::grown(peer.sent, before.sent),
                    Self::grown(peer.received, before.received),
                ],
                None => [peer.sent, peer.received].map(u64::from),
            };
            counts[0] += sent;
            counts[1] += received;
        }
        counts
    }

    /// Returns by how much a count has grown that wraps around. A count may go back a little, because a message did not leave
    /// after all, and has not grown then. A count that grows by 2³¹ or more is taken for one that went back.
    pub(crate) fn grown(now: u32, before: u32) -> u64 {
        u64::try_from(now.wrapping_sub(before).cast_signed()).unwrap_or(0)
    }
}

impl PublishedWait {
    /// Returns true if all members of the communicator take part, and `tag` is the number of the call.
    #[must_use]
    pub fn is_collective(&self) -> bool {
        match self.kind {
            WaitKind::Collective => true,
            // Only some members make a communicator by `create`, and each message of theirs is an operation.
            WaitKind::Creation => self.peer.is_none(),
            _ => false,
        }
    }
}

impl RecordedTotals {
    /// Returns the fields, in their order.
    pub(super) const fn words(self) -> [u64; 7] {
        let [send, recv, probe, collective, remote] = self.waited;
        [
            self.sent_bytes,
            self.received_bytes,
            send,
            recv,
            probe,
            collective,
            remote,
        ]
    }

    pub(super) const fn of_words([sent_bytes, received_bytes, waited @ ..]: [u64; 7]) -> Self {
        Self {
            sent_bytes,
            received_bytes,
            waited,
        }
    }
}

impl RankPhase {
    pub(super) fn of_code(code: u32) -> Option<Self> {
        let all = [Self::Starting, Self::Waiting, Self::Elsewhere, Self::Left];
        all.into_iter().find(|phase| *phase as u32 == code)
    }
}

impl WaitKind {
    pub(super) const ALL: [Self; 15] = [
        Self::Recv,
        Self::RecvMoving,
        Self::Probe,
        Self::SendQueued,
        Self::SendOffered,
        Self::SendMoving,
        Self::Collective,
        Self::Remote,
        Self::Agree,
        Self::WindowPost,
        Self::WindowComplete,
        Self::WindowLock,
        Self::WindowFence,
        Self::Creation,
        Self::RecvPacking,
    ];

    pub(super) fn of_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == code)
    }

    /// Returns true for receives and probes.
    #[must_use]
    pub const fn is_receive(self) -> bool {
        matches!(
            self,
            Self::Recv | Self::RecvMoving | Self::RecvPacking | Self::Probe
        )
    }

    /// Returns true for sends.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendQueued | Self::SendOffered | Self::SendMoving
        )
    }
}
