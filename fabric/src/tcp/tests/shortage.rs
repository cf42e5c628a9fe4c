//! What a process or its host has too little of: descriptors, places in the queue of a listener, and ports that it may take.
//!
//! Limits hold for a whole process. So some of these tests run in one of their own: this program again, with that test alone.

use std::{
    env,
    fs::{self, File},
    net::Ipv4Addr,
    process::Command,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Resource, Rlimit, geteuid, getrlimit, setrlimit},
};

use super::{HangGuard, HeardEvents, Pair, ranks};
use crate::{
    driver::{ArmResult, Driver, DriverCommand, PostResult, WorldRank},
    tcp::{
        PreparedTcp, Tcp, TcpConfig,
        injected_errors::{FailingCall, inject, left},
        interfaces::port_range,
    },
};

/// Returns true in a process of its own. Elsewhere, starts that process, with these words before its command, and checks that its
/// test passes.
fn is_alone(test: &str, before: &[&str]) -> bool {
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let program = env::current_exe().unwrap();
    let mut words: Vec<_> = before.iter().map(Into::into).collect();
    words.push(program.into_os_string());
    let module = module_path!().split_once("::").unwrap().1;
    let ended = Command::new(&words[0])
        .args(&words[1..])
        .args([&format!("{module}::{test}"), "--exact", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let [out, error] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text));
    let passed = ended.status.success() && out.contains("1 passed");
    assert!(passed, "{}\n{out}\n{error}", ended.status);
    false
}

fn say_hello(from: &mut Tcp) {
    let hello = DriverCommand::Message {
        to: WorldRank(0),
        header: b"hello",
        body: b"",
    };
    assert!(matches!(from.post(hello), PostResult::Posted));
}

/// Opens files until this process may have no more.
fn take_all_descriptors() -> Vec<File> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(100),
        maximum,
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut files = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(why) => {
                assert_eq!(why.raw_os_error(), Some(libc::EMFILE));
                return files;
            }
        }
    }
}

#[test]
fn a_rank_without_descriptors_rests_and_meets_its_peers_when_there_are_some() {
    let test = "a_rank_without_descriptors_rests_and_meets_its_peers_when_there_are_some";
    if !is_alone(test, &[]) {
        return;
    }
    let [mut zero, mut one] = ranks([0, 1]);
    let (mut heard, mut ignored) = (HeardEvents::default(), HeardEvents::default());
    let mut files = take_all_descriptors();
    say_hello(&mut one);
    assert_eq!(one.core().counters.connecting.get(), 0, "no socket");
    files.pop();
    let guard = HangGuard::new("a socket");
    while one.core().counters.connecting.get() == 0 {
        let _ = one.progress(16, &mut ignored);
        guard.check();
    }
    // Rank 0 has no descriptor for the connection that has arrived.
    let (start, guard) = (Instant::now(), HangGuard::new("ten naps"));
    let asleep = zero.core().wait_on();
    let mut naps = 0;
    while naps < 10 {
        let turn = zero.progress(16, &mut heard);
        if turn.events == 0 && zero.arm() == ArmResult::Ready {
            let limit = Timespec::try_from(Duration::from_secs(60)).unwrap();
            poll(&mut [PollFd::new(&*asleep, PollFlags::IN)], Some(&limit)).unwrap();
            naps += 1;
        }
        guard.check();
    }
    let slept = start.elapsed();
    assert!(slept > Duration::from_millis(500), "spins: {slept:?}");
    assert_eq!((heard.messages, &heard.down[..]), (0, &[][..]));
    drop(files);
    let guard = HangGuard::new("the hello");
    while heard.messages == 0 {
        let _ = zero.progress(16, &mut heard);
        let _ = one.progress(16, &mut ignored);
        guard.check();
    }
    assert_eq!((heard.down, ignored.down), (vec![], vec![]));
}

/// Has rank 1 say hello to rank 0 while the next calls fail with these errors. The hello arrives, once.
#[track_caller]
fn hello_arrives_after(call: FailingCall, errors: &[i32]) {
    let [mut zero, mut one] = ranks([0, 1]);
    inject(call, errors);
    say_hello(&mut one);
    let (mut heard, mut ignored) = (HeardEvents::default(), HeardEvents::default());
    let guard = HangGuard::new("the hello");
    while heard.messages == 0 {
        let _ = zero.progress(16, &mut heard);
        let _ = one.progress(16, &mut ignored);
        guard.check();
    }
    assert_eq!(left(), 0, "errors that no call has met");
    assert_eq!((heard.down, ignored.down), (vec![], vec![]));
}

#[test]
fn a_host_without_descriptors_or_memory_for_sockets_delays_a_connection() {
    for error in [libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
        hello_arrives_after(FailingCall::Socket, &[error; 3]);
        hello_arrives_after(FailingCall::Accept, &[error; 3]);
    }
}

#[test]
fn a_connection_that_ends_before_it_is_accepted_does_not_disturb_the_next_one() {
    let errors = [libc::ECONNABORTED, libc::EPERM, libc::ENETDOWN, libc::EINTR];
    hello_arrives_after(FailingCall::Accept, &errors);
}

#[test]
fn errors_of_the_network_delay_a_connection() {
    let errors = [libc::EPERM, libc::EHOSTUNREACH, libc::ETIMEDOUT];
    hello_arrives_after(FailingCall::Socket, &errors);
}

#[test]
fn what_the_kernel_has_no_memory_to_send_is_sent_later_and_only_once() {
    for (error, body_len) in [
        (libc::ENOBUFS, 8),
        (libc::ENOMEM, 8),
        (libc::ENOBUFS, 60_000),
    ] {
        let mut pair = Pair::new();
        inject(FailingCall::Send, &[error; 3]);
        let body = vec![7; body_len];
        for number in 2..5 {
            let message = DriverCommand::Message {
                to: WorldRank(0),
                header: b"short",
                body: &body,
            };
            assert!(matches!(pair.ranks[1].post(message), PostResult::Posted));
            if number == 2 {
                assert!(left() < 3, "no call has failed");
            }
        }
        pair.until("all messages", |heard| heard.messages == 4);
        assert_eq!(left(), 0, "errors that no call has met");
        assert_eq!(pair.heard.down, []);
    }
}

#[test]
fn a_rank_sleeps_until_the_kernel_may_have_memory_again() {
    let mut pair = Pair::new();
    inject(FailingCall::Send, &[libc::ENOBUFS]);
    say_hello(&mut pair.ranks[1]);
    let guard = HangGuard::new("the pause");
    let asleep = pair.ranks[1].core().wait_on();
    while !pair.ranks[1].core().peers[0].queue.is_empty() {
        let turn = pair.ranks[1].progress(16, &mut HeardEvents::default());
        if turn.events == 0 && pair.ranks[1].arm() == ArmResult::Ready {
            let limit = Timespec::try_from(Duration::from_secs(60)).unwrap();
            let woken = poll(&mut [PollFd::new(&*asleep, PollFlags::IN)], Some(&limit)).unwrap();
            assert_eq!(woken, 1, "nothing wakes the rank");
        }
        guard.check();
    }
    pair.until("the hello", |heard| heard.messages == 2);
}

#[test]
fn all_peers_come_at_once_to_a_listener_that_keeps_one_connection() {
    let mut all = ranks([0, 1, 2, 3, 4, 5]);
    for listener in all[0].core().sockets.listeners() {
        rustix::net::listen(listener, 1).unwrap();
    }
    all[1..].iter_mut().for_each(say_hello);
    let (mut heard, mut ignored) = (HeardEvents::default(), HeardEvents::default());
    let guard = HangGuard::new("all of them");
    while heard.messages < 5 {
        let _ = all[0].progress(16, &mut heard);
        for peer in &mut all[1..] {
            let _ = peer.progress(16, &mut ignored);
        }
        guard.check();
    }
    assert_eq!((heard.down, ignored.down), (vec![], vec![]));
}

#[test]
#[expect(
    clippy::print_stderr,
    reason = "says what a host without such ports leaves out"
)]
fn ports_that_need_a_right_are_an_error_that_names_it() {
    let without_right = [
        "setpriv",
        "--inh-caps",
        "-net_bind_service",
        "--bounding-set",
        "-net_bind_service",
    ];
    let before = if geteuid().is_root() {
        &without_right[..]
    } else {
        &[]
    };
    if !is_alone("ports_that_need_a_right_are_an_error_that_names_it", before) {
        return;
    }
    let free = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    if free.trim().parse::<u16>().unwrap() <= 81 {
        eprintln!("no port of this host needs a right");
        return;
    }
    let config = TcpConfig::new(0, Ipv4Addr::LOCALHOST.into());
    let why = PreparedTcp::open(config, port_range("80-81").unwrap()).unwrap_err();
    let text = why.to_string();
    for word in [
        "127.0.0.1",
        "80-81",
        "CAP_NET_BIND_SERVICE",
        "RIPSTOP_TCP_PORTS",
    ] {
        assert!(text.contains(word), "{text}");
    }
}

/// The variable that a process of its own has.
const ALONE: &str = "RIPSTOP_TEST_ALONE";
