//! What happened, in numbers.

/// What happened on a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Virtual time, in nanoseconds.
    pub time_ns: u64,
    /// Events, of all kinds.
    pub events: u64,
    /// Messages that were posted.
    pub messages: u64,
    /// Their bytes, headers included, and those of puts and gets.
    pub bytes: u64,
    /// Packets that entered the network: messages, chunks of puts and gets, requests and answers.
    pub packets: u64,
    /// Packets that were lost.
    pub drops: u64,
    /// Packets that were repeated by a fault.
    pub duplicates: u64,
    /// Packets that an adapter sent again.
    pub retransmissions: u64,
    /// Bytes that the simulator takes now, without the ranks' programs.
    pub state_bytes: u64,
}

/// What happened on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankStats {
    /// Messages that it posted.
    pub messages_sent: u64,
    /// Messages that it took.
    pub messages_received: u64,
    /// Bytes that it posted: messages with headers, puts, and gets.
    pub bytes_sent: u64,
    /// Turns that its host made.
    pub turns: u64,
    /// Peers that it exchanged something with.
    pub peers: u64,
    /// Bytes that the simulator keeps for it now.
    pub state_bytes: u64,
}
