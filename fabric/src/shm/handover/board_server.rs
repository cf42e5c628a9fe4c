//! Hands the board to ranks that cannot open it under `/proc`, in a thread of its creator, until all ranks have it.

use std::{io, os::fd::OwnedFd, sync::Arc, thread::JoinHandle, time::Duration};

use rustix::event::{EventfdFlags, eventfd};

use super::{
    super::board::Board,
    FdRequest, fd_server,
    named_sockets::{self, NamedSockets},
};

/// A thread that hands the board over, as long as this is kept.
#[derive(Debug)]
pub struct BoardServer {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl BoardServer {
    /// Starts to listen.
    pub(in super::super) fn open(board: &Board) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (board, stopped) = (board.clone(), Arc::clone(&stop));
        let serve = move || {
            let name = named_sockets::of_board(board.name());
            let mut doors = NamedSockets::open(&name);
            let mut shown = false;
            while !named_sockets::is_stop_requested(&stopped) {
                match doors.answer(Some(&stopped), Some(LOOK)) {
                    Some(socket) => {
                        fd_server::answer(&socket, board.cookie(), |wanted, give| match wanted {
                            FdRequest::Board => give(&[board.as_fd()]),
                            _ => give(&[]),
                        })
                    }
                    None if !shown && named_sockets::is_path_requested(&name) => {
                        shown = true;
                        doors.listen_in_dirs(&name);
                    }
                    None => {}
                }
            }
        };
        let thread = fd_server::thread(serve)?;
        let thread = Some(thread);
        Ok(Self { stop, thread })
    }
}

impl Drop for BoardServer {
    fn drop(&mut self) {
        let _told = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Time until the socket is also shown in a directory for ranks in other network namespaces. It is shown only if there is such a
/// rank.
const LOOK: Duration = Duration::from_millis(10);
