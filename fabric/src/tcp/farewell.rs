//! The end of a rank: what it has posted still arrives, and its peers learn that it has ended.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    core::TcpCore,
    frame::FrameKind,
    receive::{FAILED, FINISHED},
    socket_calls::{end_sending, receive, unacknowledged},
    sockets::SocketRole,
};
use crate::{
    driver::{ArmResult, DownCause},
    timer::picoseconds,
};

impl TcpCore {
    /// Begins the end. From now on, no memory of the application is accessed.
    pub(super) fn begin_close(&mut self, how: DownCause) {
        if let Some(ends) = &self.ends {
            ends.record_exit(crate::driver::WorldRank(self.me), how);
        }
        self.closing = Some(how);
        self.sockets.report_all();
        self.exports.close();
        self.events.clear();
        self.inbox.clear();
        self.watches = crate::offload::ThresholdWatches::new();
        for rank in (0..).take(self.peers.len()) {
            let peer = &mut self.peers[rank as usize];
            peer.pending.clear();
            peer.queue.copy_memory();
            if let Some(connection) = &mut peer.connection {
                connection.stream = None;
            }
            if peer.queue.is_empty() {
                self.cancel_reach(rank, None);
            }
        }
        self.begin_unmet_goodbyes(how);
    }

    /// Makes turns until everything has left or `limit` has passed. Returns true if everything has left.
    pub(super) fn finish(&mut self, limit: Duration) -> bool {
        let end = self.timer.now().saturating_add(picoseconds(limit));
        let mut idle = 0;
        loop {
            let mut leaving = self.say_unmet_goodbyes() || !self.notices.is_empty();
            for rank in (0..).take(self.peers.len()) {
                leaving |= self.is_leaving(rank);
            }
            self.poll();
            let looks = self.look_around();
            idle = if leaving { 0 } else { idle + 1 };
            // Ranks that have connected just now want a goodbye as well, but a flood keeps no rank from ending.
            if !leaving && (looks == 0 || idle >= IDLE_MAX) {
                return true;
            }
            if self.timer.now() >= end {
                return false;
            }
            self.events.clear();
            if self.arm() == ArmResult::Ready {
                self.nap();
            }
        }
    }

    /// Looks at some sockets of which something changed. Returns their number.
    fn look_around(&mut self) -> u32 {
        let mut looks = 0;
        while looks < LOOKS_MAX
            && let Some(name) = self.sockets.next_ready()
        {
            looks += 1;
            match self.sockets.get(name).map(|entry| &entry.role) {
                Some(SocketRole::Peer(rank)) => {
                    let rank = *rank;
                    self.drain(rank);
                }
                Some(_) => self.look_at(name),
                None => {}
            }
        }
        looks
    }

    /// Sends what is left for a peer, and the goodbye after it. Returns false if the peer has it all.
    fn is_leaving(&mut self, rank: u32) -> bool {
        let how = match self.closing {
            Some(DownCause::Finished) => FINISHED,
            Some(DownCause::Failed) | None => FAILED,
        };
        let peer = &mut self.peers[rank as usize];
        let Some(connection) = &mut peer.connection else {
            if peer.queue.is_empty() {
                return self.is_leaving_unconfirmed(rank, how);
            }
            self.reach(rank);
            return self.peers[rank as usize].ended.is_none();
        };
        if !std::mem::replace(&mut connection.said_bye, true) {
            self.queue_record(rank, FrameKind::Bye, &how);
        }
        self.flush(rank);
        let Self { peers, sockets, .. } = self;
        let peer = &mut peers[rank as usize];
        let Some(connection) = &mut peer.connection else {
            return false;
        };
        if !peer.queue.is_empty() {
            return true;
        }
        let Some(socket) = sockets
            .get(connection.socket)
            .and_then(|entry| entry.fd.as_ref())
        else {
            return false;
        };
        if !std::mem::replace(&mut connection.shut, true) {
            end_sending(socket);
        }
        unacknowledged(socket) > 0
    }

    /// Says goodbye to a peer that has not confirmed that it is one. It may not make turns for long, so nothing waits for it. The
    /// goodbye is no secret: the hello may have been a stranger's recorded one.
    fn is_leaving_unconfirmed(&mut self, rank: u32, how: u32) -> bool {
        let Self { peers, sockets, .. } = self;
        let bye = self.form.with_record(FrameKind::Bye, &how);
        let mut leaving = false;
        for name in &peers[rank as usize].agreed.names {
            let Some(entry) = sockets.get_mut(*name) else {
                continue;
            };
            if let (Some(socket), SocketRole::Arrival(arrival)) = (&entry.fd, &mut entry.role) {
                leaving |= arrival.say_bye(socket, &bye);
            }
        }
        leaving
    }

    /// Takes some of what a peer still sends, so that its kernel need not refuse it, which would also discard what this rank has
    /// sent.
    pub(super) fn drain(&mut self, rank: u32) {
        let Some(connection) = &self.peers[rank as usize].connection else {
            return;
        };
        let name = connection.socket;
        let Some(entry) = self.sockets.get_mut(name) else {
            return;
        };
        let received = entry
            .socket()
            .and_then(|socket| receive(socket, &mut self.inbox.bytes));
        match received {
            Ok(0) => {
                let place = self.peers[rank as usize].place(rank);
                let text = format!("{place} closed the connection while this rank ended");
                self.lose(rank, DownCause::Finished, text);
            }
            Ok(_) => self.sockets.look_at(name),
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => entry.readable = false,
            Err(why) => {
                let place = self.peers[rank as usize].place(rank);
                let text =
                    format!("the TCP connection to {place} failed while this rank ended: {why}");
                self.lose(rank, DownCause::Failed, text);
            }
        }
    }

    fn nap(&self) {
        // What is acknowledged is not reported, so the sleep is short.
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let fd = self.wait_on();
        // An interrupted sleep is a short one.
        let _ = poll(&mut [PollFd::new(&*fd, PollFlags::IN)], Some(&limit));
    }
}

/// Sockets that are looked at before the time is looked at.
const LOOKS_MAX: u32 = 256;

/// Rounds for peers that still send, when everything has left.
const IDLE_MAX: u32 = 16;
