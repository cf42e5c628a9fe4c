//! Which connection is kept if two ranks connect to each other at the same time.
//!
//! The connection that was opened by the lower rank is kept. A rank that has sent no hello yet has promised nothing, so its
//! attempt gives way to any hello that arrives. That matters where connections can be opened in one direction only.
//!
//! The rule holds as long as the driver does the following.
//!
//! - It opens connections to a peer only in a stage that [may dial](PairStage::may_dial). Attempts at several addresses of the
//!   peer are one dial.
//! - A pair is [`Asked`](PairStage::Asked) from the moment in which the first byte of a hello may leave.
//! - For [`AcceptInstead`](CrossingVerdict::AcceptInstead), all own attempts are closed before anything else is read. No
//!   answer that arrives on them is confirmed.
//! - Of several answers, one is confirmed, and the other attempts are closed at once.
//! - When the last attempt, or the last answered connection, ends without success, the pair is
//!   [`Unconnected`](PairStage::Unconnected) again. A refused rank waits a while before it dials again: the peer's own
//!   connection is on its way.

/// How far a rank has come with one of its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::tcp) enum PairStage {
    /// There is nothing.
    #[default]
    Unconnected,
    /// This rank opens connections, and has sent nothing.
    Connecting,
    /// This rank has sent a hello.
    Asked,
    /// This rank has agreed to a hello of the peer, which may count on that.
    Answered,
    /// A connection is ready.
    Connected,
}

/// What to do with a hello of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum CrossingVerdict {
    /// The hello is accepted.
    Accept,
    /// The rank's own attempts are closed, and the hello is accepted.
    AcceptInstead,
    /// The hello is refused as a duplicate.
    Refuse,
}

impl PairStage {
    /// Returns true if the rank may begin to connect to the peer.
    pub(in crate::tcp) const fn may_dial(self) -> bool {
        matches!(self, Self::Unconnected)
    }

    /// Judges a hello of `peer` that arrived at rank `own`.
    pub(in crate::tcp) const fn judge(self, own: u32, peer: u32) -> CrossingVerdict {
        match self {
            // In the stage `Answered`, the peer tries another of this rank's addresses beside the first. It decides which stays.
            Self::Unconnected | Self::Answered => CrossingVerdict::Accept,
            Self::Connecting => CrossingVerdict::AcceptInstead,
            Self::Asked if peer < own => CrossingVerdict::AcceptInstead,
            Self::Asked | Self::Connected => CrossingVerdict::Refuse,
        }
    }
}
