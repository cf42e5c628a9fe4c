//! Tests of what is reported if the system does not allow a backend.

use std::io;

use ripstop_fabric::{
    driver::{FutexWord, WakeSource},
    memory::MemoryRegion,
};

use super::{
    super::backend::{BackendChoice, open_with},
    ARMED, open,
};

#[test]
fn where_io_uring_is_refused_auto_takes_epoll_and_says_why() {
    for (errno, reason) in [
        (libc::ENOSYS, "ENOSYS"),
        (libc::EPERM, "io_uring is forbidden here"),
        (libc::EMFILE, "ulimit -n"),
        (libc::ENOMEM, "ulimit -l"),
        (libc::EINVAL, "does not work here"),
    ] {
        let (backend, why) = open_with(BackendChoice::Auto, refusal(errno)).unwrap();
        assert_eq!(backend.name(), "epoll");
        assert!(why.contains(reason), "{why}");
    }
}

#[test]
fn where_io_uring_is_refused_asking_for_it_is_an_error_that_tells_what_to_set() {
    let error = open_with(BackendChoice::Uring, refusal(libc::EPERM)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    for part in [
        "RIPSTOP_REACTOR=uring",
        "forbidden",
        "RIPSTOP_REACTOR=epoll",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn epoll_that_was_asked_for_never_touches_io_uring() {
    let (backend, why) = open_with(BackendChoice::Epoll, |_| unreachable!()).unwrap();
    assert_eq!(backend.name(), "epoll");
    assert!(why.contains("RIPSTOP_REACTOR=epoll"));
}

#[test]
fn epoll_refuses_a_futex_word_and_says_what_to_do() {
    let (mut backend, _) = open(BackendChoice::Epoll).unwrap();
    let word = FutexWord::new(&MemoryRegion::create("word", 4096, false).unwrap(), 0);
    let error = backend
        .watch(&[WakeSource::Futex { word, armed: ARMED }])
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert!(error.to_string().contains("doorbell"), "{error}");
}

fn refusal(errno: i32) -> fn(u32) -> io::Result<io_uring::IoUring> {
    match errno {
        libc::ENOSYS => |_| Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        libc::EPERM => |_| Err(io::Error::from_raw_os_error(libc::EPERM)),
        libc::EMFILE => |_| Err(io::Error::from_raw_os_error(libc::EMFILE)),
        libc::ENOMEM => |_| Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        _ => |_| Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}
