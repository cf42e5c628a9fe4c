//! Waiting for many descriptors at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::rank::StdStream;

/// The owner of a ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollToken {
    Signals,
    Connection(u32),
    Output(u32),
    Errors(u32),
    /// An output of this process, standard output or standard error.
    Room(StdStream),
    /// Frames from a host.
    Frames(u32),
    /// Room for frames to a host, or to the launcher.
    FrameRoom,
    /// Standard error of a host's starter.
    HostErrors(u32),
    /// Input of rank 0: there is some, or there is room for some.
    Input,
}

#[derive(Debug)]
pub(super) struct JobPoller {
    epoll: OwnedFd,
    /// Number of descriptors that may be ready at a time.
    most: usize,
}

impl JobPoller {
    /// Makes a poller for a job of this many ranks.
    pub(super) fn new(ranks: u32) -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            most: OF_A_RANK * ranks as usize + OF_A_JOB,
        })
    }

    /// Makes room for more ranks than the poller was made for.
    pub(super) fn make_room(&mut self, ranks: u32) {
        self.most = OF_A_RANK * ranks as usize + OF_A_JOB;
    }

    /// Watches for input.
    pub(super) fn watch(&self, fd: impl AsFd, token: PollToken) -> io::Result<()> {
        self.add(fd, token, epoll::EventFlags::IN)
    }

    pub(super) fn watch_for_room(&self, fd: impl AsFd, token: PollToken) -> io::Result<()> {
        self.add(fd, token, epoll::EventFlags::OUT)
    }

    fn add(&self, fd: impl AsFd, token: PollToken, events: epoll::EventFlags) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.pack());
        Ok(epoll::add(&self.epoll, fd, data, events)?)
    }

    /// Stops watching a descriptor. A closed descriptor needs this only if a duplicate of it stays open.
    pub(super) fn forget(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd); // It was not watched; then there is nothing to forget.
    }

    /// Returns all that is ready now, or becomes ready within `time`. Signals come last, so that requests of a rank are read
    /// before its end is handled.
    pub(super) fn wait(&self, time: Option<Duration>) -> Vec<PollToken> {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let mut ready: Vec<epoll::Event> = Vec::with_capacity(self.most);
        // An interrupted wait returns nothing ready. Any other error would be a bug in this file.
        let _ = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut ready),
            time.as_ref(),
        );
        let mut tokens: Vec<PollToken> = ready
            .iter()
            .map(|event| PollToken::unpack(event.data.u64()))
            .collect();
        tokens.sort_by_key(|token| *token == PollToken::Signals);
        tokens
    }
}

/// Waits until a descriptor is ready, for at most `time`. Returns true if it is.
pub(super) fn is_ready(fd: impl AsFd, what: PollFlags, time: Duration) -> bool {
    let time = Timespec::try_from(time).unwrap_or_default();
    poll(&mut [PollFd::new(&fd, what)], Some(&time)).is_ok_and(|ready| ready > 0)
}

impl PollToken {
    fn pack(self) -> u64 {
        let (kind, rank) = match self {
            Self::Signals => (0, 0),
            Self::Connection(rank) => (1, rank),
            Self::Output(rank) => (2, rank),
            Self::Errors(rank) => (3, rank),
            Self::Room(which) => (4, which as u32),
            Self::Frames(host) => (5, host),
            Self::FrameRoom => (6, 0),
            Self::HostErrors(host) => (7, host),
            Self::Input => (8, 0),
        };
        kind << 32 | u64::from(rank)
    }

    fn unpack(data: u64) -> Self {
        let rank = u32::try_from(data & 0xffff_ffff).unwrap_or(0); // It always fits, because it is masked.
        match data >> 32 {
            1 => Self::Connection(rank),
            2 => Self::Output(rank),
            3 => Self::Errors(rank),
            4 if rank == StdStream::Out as u32 => Self::Room(StdStream::Out),
            4 => Self::Room(StdStream::Err),
            5 => Self::Frames(rank),
            6 => Self::FrameRoom,
            7 => Self::HostErrors(rank),
            8 => Self::Input,
            _ => Self::Signals,
        }
    }
}

/// Descriptors: a connection and two pipes of each rank, or three pipes of its host; signals, and the job's input and outputs.
const OF_A_RANK: usize = 3;
const OF_A_JOB: usize = 4;

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn signals_come_after_all_that_is_ready_however_many_those_are() {
        let ranks = 300;
        let poller = JobPoller::new(ranks).unwrap();
        let (signals, mut from) = UnixStream::pair().unwrap();
        poller.watch(&signals, PollToken::Signals).unwrap();
        from.write_all(b"!").unwrap();
        let pairs: Vec<_> = (0..ranks)
            .map(|rank| {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                poller.watch(&ours, PollToken::Connection(rank)).unwrap();
                theirs.write_all(b"!").unwrap();
                (ours, theirs)
            })
            .collect();
        let ready = poller.wait(None);
        assert_eq!(ready.len(), pairs.len() + 1);
        assert_eq!(ready.last(), Some(&PollToken::Signals));
    }

    #[test]
    fn a_token_comes_back_as_it_was() {
        for token in [
            PollToken::Signals,
            PollToken::Connection(u32::MAX),
            PollToken::Output(0),
            PollToken::Errors(7),
            PollToken::Room(StdStream::Out),
            PollToken::Room(StdStream::Err),
            PollToken::Frames(7),
            PollToken::FrameRoom,
            PollToken::HostErrors(9),
            PollToken::Input,
        ] {
            assert_eq!(PollToken::unpack(token.pack()), token);
        }
    }
}
