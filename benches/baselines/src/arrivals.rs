//! Bytes of a whole message, wherever they are.

use ripstop_fabric::driver::PayloadView;

use crate::buffers::{ArrivedPiece, JoinedMessage, PscomBuffers};

/// Bytes of a whole message.
pub(crate) enum BaselineMessage<'a> {
    /// In its receive buffer.
    InPlace(&'a PscomBuffers, ArrivedPiece),
    /// Joined from pieces.
    Joined(&'a JoinedMessage),
}

impl BaselineMessage<'_> {
    pub(crate) fn read(&self, into: &mut [u8]) {
        match self {
            Self::InPlace(buffers, place) => buffers.read_start(*place, into),
            Self::Joined(whole) => into.copy_from_slice(&whole.bytes[..into.len()]),
        }
    }

    pub(crate) fn body(&self, after: usize) -> PayloadView<'_> {
        match self {
            Self::InPlace(buffers, place) => buffers.payload(*place, after),
            Self::Joined(whole) => PayloadView::from_slice(&whole.bytes[after..]),
        }
    }
}
