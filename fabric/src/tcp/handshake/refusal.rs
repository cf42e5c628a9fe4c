//! Why a handshake ended without a connection.

use std::{error::Error, fmt};

use super::{RankGoodbye, hello::TcpIdentity};

/// Reason for which one side of a handshake refuses the other, or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum HandshakeRefusal {
    /// The other side is no rank of any job, or sends what no rank sends.
    Stranger,
    /// The other side does not know the token: it belongs to another job, or has the address of a rank that has gone.
    WrongToken,
    /// The hello is meant for another rank, or comes from a rank that the job does not have.
    WrongRank {
        /// The rank that the other side named.
        named: u32,
    },
    /// A rank runs in another incarnation than the other side expects.
    OtherIncarnation {
        /// The rank, and the incarnation that runs.
        running: TcpIdentity,
        /// The incarnation that was expected.
        expected: u32,
    },
    /// The two sides speak different versions.
    OtherVersion {
        /// Version of this rank.
        own: u16,
        /// Version of the other side.
        peer: u16,
    },
    /// Another connection between the two ranks is kept.
    Duplicate,
    /// The other side wants no connection, and says why.
    Goodbye {
        /// The rank that says it.
        of: TcpIdentity,
        /// What it says.
        said: RankGoodbye,
    },
}

impl HandshakeRefusal {
    /// Returns true if the listening side must close the connection without an answer: the other side is none of the job's ranks,
    /// or waits for no answer.
    pub(in crate::tcp) const fn is_silent(self) -> bool {
        matches!(
            self,
            Self::Stranger | Self::WrongToken | Self::WrongRank { .. } | Self::Goodbye { .. }
        )
    }
}

impl fmt::Display for HandshakeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger => write!(f, "the other side is not a rank of a Ripstop job"),
            Self::WrongToken => write!(
                f,
                "the other side does not know this job's token: it belongs to another job"
            ),
            Self::WrongRank { named } => write!(
                f,
                "the other side named rank {named}: it belongs to another job, or the address to another rank"
            ),
            Self::OtherIncarnation { running, expected } => write!(
                f,
                "rank {} runs in incarnation {}, and not in the expected {expected}",
                running.rank, running.incarnation
            ),
            Self::OtherVersion { own, peer } => write!(
                f,
                "the other side speaks version {peer} of the protocol, and this rank version {own}: start all ranks with the \
                 same version of Ripstop"
            ),
            Self::Duplicate => write!(f, "another connection between the two ranks is kept"),
            Self::Goodbye { of, .. } => write!(f, "rank {} wants no connection", of.rank),
        }
    }
}

impl Error for HandshakeRefusal {}
