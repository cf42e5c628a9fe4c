use std::{os::fd::AsFd, time::Duration};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{
    super::{PeerState, Shm, ShmConfig, WakeMethod},
    *,
};

#[test]
fn a_request_comes_as_it_was_sent() {
    for wanted in [
        FdRequest::Board,
        FdRequest::Memory(7),
        FdRequest::Pipe(8),
        FdRequest::ProcessHandle,
    ] {
        let cookie = 0x0123_4567_89ab_cdef;
        assert_eq!(
            FdRequest::decode(&wanted.encode(cookie)),
            Some((wanted, cookie))
        );
    }
    for len in (0..=20).filter(|len| *len != REQUEST_LEN) {
        assert_eq!(FdRequest::decode(&vec![1; len]), None);
    }
    assert_eq!(FdRequest::decode(&[9; REQUEST_LEN]), None);
}

/// Returns the answer to `request` at a process with this cookie.
fn answered(request: &[u8], cookie: u64) -> io::Result<Vec<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC;
    let (here, there) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::send(&here, request, SendFlags::NOSIGNAL).unwrap();
    fd_server::answer(&there, cookie, |_, give| give(&[there.as_fd()]));
    receive(&here)
}

#[test]
fn a_request_without_the_cookie_gets_no_descriptor() {
    let given = answered(&FdRequest::Board.encode(5), 5).unwrap();
    assert_eq!(given.len(), 1);
    let refused = answered(&FdRequest::Board.encode(5), 6).unwrap_err();
    assert!(refused.to_string().contains("another job"), "{refused}");
    for garbage in [&[][..], &[1], &[0xff; 17], &[0xff; 400]] {
        assert!(answered(garbage, 5).is_err());
    }
}

#[test]
fn a_board_is_had_at_its_meeting_and_nothing_is_left_of_it() {
    let made = Board::create(2).unwrap();
    let ask = |cookie| board(made.name(), cookie, Duration::ZERO);
    let name = named_sockets::of_board(made.name());
    let files =
        || ["/dev/shm", "/tmp"].map(|folder| std::path::Path::new(folder).join(&name).exists());
    assert!(ask(made.cookie()).is_err());
    let meeting = made.meet().unwrap();
    let given = board(made.name(), made.cookie(), PATIENCE);
    assert!(given.is_ok(), "{given:?}");
    assert!(ask(made.cookie() ^ 1).is_err());
    assert!(!files().contains(&true), "no rank needs a file");
    let knock = NamedSockets::request_path(&name);
    while !files().contains(&true) {
        std::thread::yield_now(); // until the file for ranks in other network namespaces is there
    }
    drop(knock);
    drop(meeting);
    assert!(ask(made.cookie()).is_err() && !files().contains(&true));
}

#[test]
fn a_rank_hands_over_what_it_has_published_and_nothing_else() {
    let board = Board::create(2).unwrap();
    let config = ShmConfig {
        wake: WakeMethod::Fd,
        ..ShmConfig::new(0)
    };
    let shm = Shm::open(&board, config).unwrap();
    board.split();
    ensure_fd_server(&board, 0);
    let ask = |wanted| of_rank(&board, 0, wanted, PATIENCE);
    let entry = board.entry(0);
    let pipe = entry.pipe_fd.unwrap();
    assert_eq!(ask(FdRequest::Memory(entry.segment_fd)).unwrap().len(), 1);
    assert_eq!(ask(FdRequest::Pipe(pipe)).unwrap().len(), 2);
    assert_eq!(ask(FdRequest::ProcessHandle).unwrap().len(), 1);
    for wrong in [
        FdRequest::Memory(pipe),
        FdRequest::Pipe(entry.segment_fd),
        FdRequest::Memory(0),
        FdRequest::Board,
    ] {
        assert_eq!(ask(wrong).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
    drop(shm);
    assert_eq!(board.state_of(0), PeerState::Finished);
    let late = of_rank(&board, 0, FdRequest::ProcessHandle, Duration::from_secs(60));
    assert_eq!(late.unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_rank_that_does_not_answer_is_not_waited_for_longer() {
    let board = Board::create(2).unwrap();
    let silent = of_rank(&board, 1, FdRequest::ProcessHandle, Duration::ZERO).unwrap_err();
    assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
    assert!(silent.to_string().contains("does not answer"), "{silent}");
}
