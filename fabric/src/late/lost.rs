//! Stands in for the driver if it is never learned where the other ranks are.

use std::io;

use crate::driver::{Command, Down, Failure, Peer, Post, Progress, Sink, Token};

/// A driver that reaches no other rank.
#[derive(Debug)]
pub(super) struct Lost {
    why: String,
    kind: io::ErrorKind,
    /// Ranks whose failure was not reported yet.
    untold: Vec<Peer>,
    failed: Vec<(Token, Failure)>,
}

impl Lost {
    pub(super) fn new(why: io::Error, (rank, ranks): (u32, u32)) -> Self {
        Self {
            kind: why.kind(),
            why: why.to_string(),
            untold: (0..ranks).filter(|peer| *peer != rank).map(Peer).collect(),
            failed: Vec::new(),
        }
    }

    pub(super) fn sentence(&self) -> &str {
        &self.why
    }

    pub(super) fn why(&self) -> io::Error {
        io::Error::new(self.kind, self.why.clone())
    }

    pub(super) const fn has_news(&self) -> bool {
        !self.untold.is_empty() || !self.failed.is_empty()
    }

    /// Treats commands like those for peers that are down, once that was reported.
    pub(super) fn post<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        let failed = match command {
            Command::Message { to, .. } if self.untold.contains(&to) => return Post::Full(command),
            Command::Put { token, .. }
            | Command::Get { token, .. }
            | Command::Atomic { token, .. }
            | Command::List { token, .. } => Some((token, Failure::PeerDown)),
            Command::Cancel { token } => Some((token, Failure::Cancelled)),
            _ => None,
        };
        self.failed.extend(failed);
        Post::Posted
    }

    pub(super) fn progress(&mut self, sink: &mut dyn Sink) -> Progress {
        let events = self.untold.len() + self.failed.len();
        for peer in self.untold.drain(..) {
            sink.peer_down(peer, Down::Failed);
        }
        for (token, why) in self.failed.drain(..) {
            sink.failed(token, why);
        }
        Progress {
            events: u32::try_from(events).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn give_up(&mut self, peer: Peer, how: Option<Down>) -> Down {
        self.untold.retain(|one| *one != peer);
        how.unwrap_or(Down::Failed)
    }
}
