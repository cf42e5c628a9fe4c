//! Every claim about backends, on every backend.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests measure the sleeps from outside"
)]

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use ripstop_fabric::{
    driver::{FutexWord, WaitOn},
    memory::Region,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    thread::futex,
};

use super::{
    backend::{Backend, Choice, Notifier, open, open_with},
    notifier::{new_eventfd, ring, silence},
};

macro_rules! claims {
    ($module:ident, $choice:ident: $($claim:ident)*) => {
        mod $module {
            $(#[test] fn $claim() { super::on(super::Choice::$choice, super::$claim); })*
        }
    };
    ($($claim:ident),* $(,)?) => {
        claims!(uring, Uring: $($claim)*);
        claims!(epoll, Epoll: $($claim)*);
    };
}

claims!(
    a_timeout_is_not_early,
    a_timeout_of_zero_returns,
    a_timeout_without_end_is_accepted,
    a_notification_before_the_sleep_is_not_lost,
    a_notification_during_the_sleep_ends_it,
    a_notification_ends_one_sleep_only,
    notifications_to_an_awake_reactor_make_no_system_call,
    a_readable_descriptor_ends_every_sleep_until_it_is_drained,
    any_of_many_descriptors_ends_the_sleep,
    all_of_many_descriptors_at_once_are_one_wake,
    ten_thousand_notified_sleeps_and_answers,
    no_wake_is_lost_when_ringing_races_with_falling_asleep,
    threads_take_turns,
    a_sleep_works_while_the_thread_that_slept_before_computes,
    a_sleep_works_after_the_thread_that_slept_before_has_ended,
    a_watched_descriptor_stays_open,
    prepared_without_events_the_descriptor_is_silent,
    prepared_the_descriptor_tells_of_every_kind_of_event,
    a_notifier_outlives_its_backend,
);

/// A backend that watches one doorbell.
struct Bed {
    backend: Box<dyn Backend>,
    bell: Bell,
}

/// What a driver would sleep on: a futex word where the backend takes one, else an eventfd.
#[derive(Clone)]
struct Bell {
    word: FutexWord,
    fd: Arc<OwnedFd>,
    by_futex: bool,
}

const AWAKE: u32 = 0;
const ARMED: u32 = 7;

fn on(choice: Choice, claim: fn(Bed)) {
    let Ok((backend, _)) = open(choice) else {
        assert_eq!(choice, Choice::Uring, "epoll is everywhere");
        return; // no io_uring on this machine: `refusals_*` below say what happens then
    };
    claim(Bed::new(backend));
}

impl Bed {
    fn new(mut backend: Box<dyn Backend>) -> Self {
        let region = Region::create("bell", 4096, false).unwrap();
        let by_futex = backend.futex();
        let bell = Bell {
            word: FutexWord::new(region, 64),
            fd: Arc::new(new_eventfd().unwrap()),
            by_futex,
        };
        backend.watch(&[bell.wait_on()]).unwrap();
        Self { backend, bell }
    }

    /// Watches some eventfds in addition.
    fn with_fds(count: usize) -> impl Fn(Self) -> (Self, Vec<Arc<OwnedFd>>) {
        move |mut bed| {
            let fds: Vec<_> = (0..count)
                .map(|_| Arc::new(new_eventfd().unwrap()))
                .collect();
            bed.backend
                .watch(&fds.iter().cloned().map(WaitOn::Fd).collect::<Vec<_>>())
                .unwrap();
            (bed, fds)
        }
    }

    /// Whether a sleep ends before `SHORT`.
    fn wakes(&mut self) -> bool {
        let start = Instant::now();
        self.backend.sleep(Some(SHORT)).unwrap();
        start.elapsed() < SHORT
    }

    /// Sleeps; a hang is a failure.
    fn sleep(&mut self) {
        guarded(|| self.backend.sleep(Some(HANG)).unwrap());
    }
}

impl Bell {
    fn wait_on(&self) -> WaitOn {
        if self.by_futex {
            WaitOn::Futex {
                word: self.word.clone(),
                armed: ARMED,
            }
        } else {
            WaitOn::Fd(Arc::clone(&self.fd))
        }
    }

    fn arm(&self) {
        self.word.get().store(ARMED, Ordering::SeqCst);
    }

    fn disarm(&self) {
        if self.word.get().swap(AWAKE, Ordering::SeqCst) == AWAKE {
            silence(&self.fd);
        }
    }

    /// What a sender does after it has written its message.
    fn ring(&self) {
        if self.word.get().swap(AWAKE, Ordering::SeqCst) == ARMED {
            if self.by_futex {
                futex::wake(self.word.get(), futex::Flags::empty(), 1).unwrap();
            } else {
                ring(&self.fd);
            }
        }
    }
}

const SHORT: Duration = Duration::from_millis(20);
const HANG: Duration = Duration::from_secs(20);

fn guarded(sleep: impl FnOnce()) {
    let start = Instant::now();
    sleep();
    assert!(start.elapsed() < HANG, "nothing ended the sleep");
}

fn until(what: impl Fn() -> bool) {
    while !what() {
        thread::yield_now();
    }
}

/// xorshift: a few turns of doing nothing, different each time.
fn jitter(seed: &mut u64) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (0..*seed % 64).for_each(|_| std::hint::spin_loop());
}

fn a_timeout_is_not_early(mut bed: Bed) {
    bed.bell.arm();
    for micros in [1, 90, 1_300, 9_999, 12_345] {
        let (timeout, start) = (Duration::from_micros(micros), Instant::now());
        bed.backend.sleep(Some(timeout)).unwrap();
        assert!(
            start.elapsed() >= timeout,
            "{timeout:?} took {:?}",
            start.elapsed()
        );
    }
}

fn a_timeout_of_zero_returns(mut bed: Bed) {
    bed.bell.arm();
    guarded(|| (0..100).for_each(|_| bed.backend.sleep(Some(Duration::ZERO)).unwrap()));
}

fn a_timeout_without_end_is_accepted(mut bed: Bed) {
    bed.bell.arm();
    let notifier = bed.backend.notifier();
    for timeout in [
        Some(Duration::MAX),
        Some(Duration::from_secs(1 << 40)),
        None,
    ] {
        notifier.notify();
        guarded(|| bed.backend.sleep(timeout).unwrap());
        let waker = notify_when_asleep(&notifier);
        guarded(|| bed.backend.sleep(timeout).unwrap());
        waker.join().unwrap();
    }
}

fn notify_when_asleep(notifier: &Notifier) -> thread::JoinHandle<()> {
    let notifier = notifier.clone();
    thread::spawn(move || {
        until(|| notifier.is_asleep());
        notifier.notify();
    })
}

fn a_notification_before_the_sleep_is_not_lost(mut bed: Bed) {
    bed.bell.arm();
    bed.backend.notifier().notify();
    assert!(bed.wakes());
}

fn a_notification_during_the_sleep_ends_it(mut bed: Bed) {
    bed.bell.arm();
    let waker = notify_when_asleep(&bed.backend.notifier());
    bed.sleep();
    waker.join().unwrap();
}

fn a_notification_ends_one_sleep_only(mut bed: Bed) {
    bed.bell.arm();
    for _ in 0..3 {
        bed.backend.notifier().notify();
        assert!(bed.wakes());
        assert!(!bed.wakes());
        let waker = notify_when_asleep(&bed.backend.notifier());
        bed.sleep();
        waker.join().unwrap();
        assert!(!bed.wakes());
    }
}

fn notifications_to_an_awake_reactor_make_no_system_call(bed: Bed) {
    let notifier = bed.backend.notifier();
    (0..1000).for_each(|_| notifier.notify());
    assert!(
        !readable(&notifier.doorbell(), Duration::ZERO),
        "the doorbell was rung"
    );
}

fn a_readable_descriptor_ends_every_sleep_until_it_is_drained(bed: Bed) {
    let (mut bed, fds) = Bed::with_fds(1)(bed);
    bed.bell.arm();
    assert!(!bed.wakes());
    ring(&fds[0]);
    assert!(bed.wakes());
    assert!(bed.wakes());
    silence(&fds[0]);
    assert!(!bed.wakes());
    // Filled and drained while awake: no trace is left.
    ring(&fds[0]);
    silence(&fds[0]);
    assert!(!bed.wakes());
}

fn any_of_many_descriptors_ends_the_sleep(bed: Bed) {
    let (mut bed, fds) = Bed::with_fds(100)(bed);
    bed.bell.arm();
    for fd in &fds {
        let waker = {
            let (fd, notifier) = (Arc::clone(fd), bed.backend.notifier());
            thread::spawn(move || {
                until(|| notifier.is_asleep());
                ring(&fd);
            })
        };
        bed.sleep();
        waker.join().unwrap();
        silence(fd);
    }
    assert!(!bed.wakes());
}

fn all_of_many_descriptors_at_once_are_one_wake(bed: Bed) {
    let (mut bed, fds) = Bed::with_fds(300)(bed);
    bed.bell.arm();
    for _ in 0..3 {
        fds.iter().for_each(ring);
        assert!(bed.wakes());
        fds.iter().for_each(silence);
        assert!(!bed.wakes());
    }
}

fn ten_thousand_notified_sleeps_and_answers(mut bed: Bed) {
    const ROUNDS: u32 = 10_000;
    bed.bell.arm();
    let (asked, answered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let asker = {
        let (notifier, asked, answered) = (
            bed.backend.notifier(),
            Arc::clone(&asked),
            Arc::clone(&answered),
        );
        thread::spawn(move || {
            for round in 1..=ROUNDS {
                asked.store(round, Ordering::Relaxed); // `notify` publishes it
                notifier.notify();
                until(|| answered.load(Ordering::Acquire) == round);
            }
        })
    };
    for round in 1..=ROUNDS {
        while asked.load(Ordering::Relaxed) < round {
            bed.sleep();
        }
        answered.store(round, Ordering::Release);
    }
    asker.join().unwrap();
}

fn no_wake_is_lost_when_ringing_races_with_falling_asleep(bed: Bed) {
    const MESSAGES: u64 = 10_000;
    race(bed, MESSAGES, 0x5eed);
}

/// Messages through a counter, with the doorbell's protocol of arm, look again, sleep.
fn race(mut bed: Bed, messages: u64, mut seed: u64) {
    let sent = Arc::new(AtomicU64::new(0));
    let sender = {
        let (bell, sent, mut seed) = (bed.bell.clone(), Arc::clone(&sent), seed.rotate_left(17));
        thread::spawn(move || {
            for _ in 0..messages {
                jitter(&mut seed);
                sent.fetch_add(1, Ordering::SeqCst);
                bell.ring();
            }
        })
    };
    let mut received = 0;
    while received < messages {
        received = sent.load(Ordering::SeqCst);
        bed.bell.arm();
        if sent.load(Ordering::SeqCst) == received && received < messages {
            jitter(&mut seed);
            // Short timeouts leave waits in flight over several armings.
            if seed.is_multiple_of(4) {
                bed.backend
                    .sleep(Some(Duration::from_nanos(seed % 5000)))
                    .unwrap();
            } else {
                bed.sleep();
            }
        }
        bed.bell.disarm();
    }
    sender.join().unwrap();
}

fn threads_take_turns(bed: Bed) {
    const TURNS: u32 = 300;
    let (bell, notifier) = (bed.bell.clone(), bed.backend.notifier());
    let (bed, woken) = (Arc::new(Mutex::new(bed)), Arc::new(AtomicU32::new(0)));
    let sleepers: Vec<_> = (0..3)
        .map(|_| {
            let (bed, woken) = (Arc::clone(&bed), Arc::clone(&woken));
            thread::spawn(move || {
                for _ in 0..TURNS {
                    let mut bed = bed.lock().unwrap();
                    bed.bell.arm();
                    bed.sleep();
                    bed.bell.disarm();
                    woken.fetch_add(1, Ordering::AcqRel);
                }
            })
        })
        .collect();
    while woken.load(Ordering::Acquire) < 3 * TURNS {
        if notifier.is_asleep() {
            bell.ring();
        }
        thread::yield_now();
    }
    sleepers
        .into_iter()
        .for_each(|sleeper| sleeper.join().unwrap());
}

fn a_sleep_works_while_the_thread_that_slept_before_computes(mut bed: Bed) {
    let done = Arc::new(AtomicBool::new(false));
    let (give, take) = mpsc::channel();
    let computing = {
        let done = Arc::clone(&done);
        thread::spawn(move || {
            bed.bell.arm();
            assert!(!bed.wakes());
            give.send(bed).unwrap();
            while !done.load(Ordering::Acquire) {
                std::hint::spin_loop(); // no system call: nothing of the kernel's runs on this thread
            }
        })
    };
    sleep_and_be_rung(take.recv().unwrap());
    done.store(true, Ordering::Release);
    computing.join().unwrap();
}

fn a_sleep_works_after_the_thread_that_slept_before_has_ended(mut bed: Bed) {
    let bed = thread::spawn(move || {
        bed.bell.arm();
        assert!(!bed.wakes());
        bed
    });
    sleep_and_be_rung(bed.join().unwrap());
}

/// A few times, and after that it still sleeps when nobody rings.
fn sleep_and_be_rung(mut bed: Bed) {
    for _ in 0..10 {
        let rung = Arc::new(AtomicBool::new(false));
        let (bell, notifier, has_rung) =
            (bed.bell.clone(), bed.backend.notifier(), Arc::clone(&rung));
        bed.bell.arm();
        let waker = thread::spawn(move || {
            until(|| notifier.is_asleep());
            has_rung.store(true, Ordering::Release);
            bell.ring();
        });
        while !rung.load(Ordering::Acquire) {
            bed.sleep();
        }
        waker.join().unwrap();
        bed.bell.disarm();
    }
    bed.bell.arm();
    let _ = bed.wakes(); // a late ring
    assert!(!bed.wakes());
}

fn a_watched_descriptor_stays_open(bed: Bed) {
    let (mut bed, fds) = Bed::with_fds(1)(bed);
    let other_end = fds[0].try_clone().unwrap();
    drop(fds);
    bed.bell.arm();
    assert!(!bed.wakes());
    ring(&other_end);
    assert!(bed.wakes());
}

fn readable(fd: &impl AsFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&within.try_into().unwrap())).unwrap() > 0
}

fn prepared_without_events_the_descriptor_is_silent(bed: Bed) {
    let (mut bed, fds) = Bed::with_fds(1)(bed);
    let fd = bed.backend.readable_fd();
    for _ in 0..3 {
        bed.bell.arm();
        ring(&fds[0]);
        silence(&fds[0]);
        bed.backend.prepare().unwrap();
        bed.backend.prepare().unwrap();
        assert!(!readable(&fd, SHORT));
    }
}

fn prepared_the_descriptor_tells_of_every_kind_of_event(bed: Bed) {
    let (mut bed, fds) = Bed::with_fds(1)(bed);
    let (fd, bell, notifier) = (
        bed.backend.readable_fd(),
        bed.bell.clone(),
        bed.backend.notifier(),
    );
    let events: [&dyn Fn(); 3] = [&|| bell.ring(), &|| ring(&fds[0]), &|| notifier.notify()];
    for event in events.iter().cycle().take(9) {
        for after in [true, false] {
            bed.bell.arm();
            if after {
                bed.backend.prepare().unwrap();
            }
            event();
            if !after {
                bed.backend.prepare().unwrap();
            }
            assert!(readable(&fd, HANG));
            silence(&fds[0]);
            bed.bell.disarm();
            silence(&bed.bell.fd);
        }
        bed.bell.arm();
        // The notifier's state is known only to the next `prepare`.
        bed.backend.prepare().unwrap();
        bed.backend.prepare().unwrap();
        assert!(!readable(&fd, Duration::ZERO));
    }
}

fn a_notifier_outlives_its_backend(bed: Bed) {
    let notifier = bed.backend.notifier();
    drop(bed);
    notifier.notify();
}

#[test]
fn a_new_backend_on_the_same_word_is_not_robbed_of_its_wake_by_the_old_one() {
    for _ in 0..100 {
        let Ok((backend, _)) = open(Choice::Uring) else {
            return;
        };
        let mut old = Bed::new(backend);
        old.bell.arm();
        old.backend.sleep(Some(Duration::ZERO)).unwrap();
        let bell = old.bell.clone();
        drop(old);
        let (mut backend, _) = open(Choice::Uring).unwrap();
        backend.watch(&[bell.wait_on()]).unwrap();
        let mut new = Bed { backend, bell };
        new.backend.sleep(Some(Duration::ZERO)).unwrap();
        new.bell.ring();
        new.sleep();
    }
}

#[test]
fn another_process_ends_the_sleep_through_a_shared_word() {
    let Ok((backend, _)) = open(Choice::Uring) else {
        return;
    };
    let mut bed = Bed::new(backend);
    if !bed.bell.by_futex {
        return;
    }
    let region = Region::create("shared bell", 4096, false).unwrap();
    let word = FutexWord::new(region.clone(), 0);
    bed.backend
        .watch(&[WaitOn::Futex {
            word: word.clone(),
            armed: ARMED,
        }])
        .unwrap();
    bed.bell.arm();
    word.get().store(ARMED, Ordering::SeqCst);
    let path = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        region.as_fd().as_raw_fd()
    );
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "reactor::backend_tests::rings_from_another_process",
        ])
        .env(SHARED_BELL, path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    bed.sleep(); // ends even if the other process was first
    assert_eq!(word.get().load(Ordering::SeqCst), AWAKE);
    assert!(child.wait().unwrap().success());
}

const SHARED_BELL: &str = "RIPSTOP_TEST_SHARED_BELL";

/// Not a test by itself: the other process of the test before.
#[test]
fn rings_from_another_process() {
    let Ok(path) = std::env::var(SHARED_BELL) else {
        return;
    };
    let memfd = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let region = Region::open(memfd.into(), 4096, true).unwrap();
    region.atomic_u32(0).store(AWAKE, Ordering::SeqCst);
    futex::wake(region.atomic_u32(0), futex::Flags::empty(), 1).unwrap();
}

#[test]
fn where_io_uring_is_refused_auto_takes_epoll_and_says_why() {
    for (errno, reason) in [
        (libc::ENOSYS, "ENOSYS"),
        (libc::EPERM, "io_uring is forbidden here"),
        (libc::EMFILE, "ulimit -n"),
        (libc::ENOMEM, "ulimit -l"),
        (libc::EINVAL, "does not work here"),
    ] {
        let (backend, why) = open_with(Choice::Auto, refusal(errno)).unwrap();
        assert_eq!(backend.name(), "epoll");
        assert!(why.contains(reason), "{why}");
    }
}

#[test]
fn where_io_uring_is_refused_asking_for_it_is_an_error_that_tells_what_to_set() {
    let error = open_with(Choice::Uring, refusal(libc::EPERM)).unwrap_err();
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
    let (backend, why) = open_with(Choice::Epoll, |_| unreachable!()).unwrap();
    assert_eq!(backend.name(), "epoll");
    assert!(why.contains("RIPSTOP_REACTOR=epoll"));
}

#[test]
fn epoll_refuses_a_futex_word_and_says_what_to_do() {
    let (mut backend, _) = open(Choice::Epoll).unwrap();
    let word = FutexWord::new(Region::create("word", 4096, false).unwrap(), 0);
    let error = backend
        .watch(&[WaitOn::Futex { word, armed: ARMED }])
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

/// Tokio waits for edges, which an epoll instance inside another gives sparingly.
#[cfg(feature = "tokio")]
mod tokio_loop {
    use super::{Bed, Choice, HANG, SHORT, open};
    use crate::reactor::notifier::{Notifier, ring};
    use rustix::fd::OwnedFd;
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        thread,
    };
    use tokio::{io::unix::AsyncFd, time::timeout};

    const EVENTS: u32 = 2_000;

    #[tokio::test]
    async fn hears_every_event_and_nothing_else_through_uring() {
        hears(Choice::Uring).await;
    }

    #[tokio::test]
    async fn hears_every_event_and_nothing_else_through_epoll() {
        hears(Choice::Epoll).await;
    }

    async fn hears(choice: Choice) {
        let Ok((backend, _)) = open(choice) else {
            return;
        };
        let (mut bed, fds) = Bed::with_fds(1)(Bed::new(backend));
        bed.bell.arm();
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe, for descriptors that are closed too early"
        )]
        let loop_fd = AsyncFd::new(bed.backend.readable_fd()).unwrap();
        let heard = Arc::new(AtomicU32::new(0));
        let sender = send_events(&fds[0], bed.backend.notifier(), Arc::clone(&heard));
        while heard.load(Ordering::SeqCst) < EVENTS {
            bed.backend.prepare().unwrap();
            timeout(HANG, loop_fd.readable())
                .await
                .expect("a lost event")
                .unwrap()
                .clear_ready();
            bed.backend.notifier().wake_up();
            if rustix::io::read(&fds[0], &mut [0; 8]).is_ok() {
                heard.fetch_add(1, Ordering::SeqCst);
            }
        }
        sender.join().unwrap();
        let _ = timeout(SHORT, loop_fd.readable())
            .await
            .map(|guard| guard.unwrap().clear_ready()); // of the last event
        bed.backend.prepare().unwrap();
        assert!(
            timeout(SHORT, loop_fd.readable()).await.is_err(),
            "readable without a cause"
        );
    }

    /// In turns a descriptor that becomes readable, and a notification; each after the one before has been heard.
    fn send_events(
        fd: &Arc<OwnedFd>,
        notifier: Notifier,
        heard: Arc<AtomicU32>,
    ) -> thread::JoinHandle<()> {
        let fd = Arc::clone(fd);
        thread::spawn(move || {
            for event in 0..EVENTS {
                super::until(|| heard.load(Ordering::SeqCst) == event);
                if event % 2 == 0 {
                    ring(&fd);
                } else {
                    heard.store(event + 1, Ordering::SeqCst);
                    notifier.notify();
                }
            }
        })
    }
}
