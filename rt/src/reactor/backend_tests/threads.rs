//! Tests of rings from other threads and processes.

use std::{
    fs::OpenOptions,
    os::fd::{AsFd, AsRawFd},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use ripstop_fabric::{
    driver::{FutexWord, WakeSource},
    memory::MemoryRegion,
};
use rustix::thread::futex;

use super::{ARMED, AWAKE, BackendBed, BackendChoice, open, until};

claims!(
    no_wake_is_lost_when_ringing_races_with_falling_asleep,
    threads_take_turns,
    a_sleep_works_while_the_thread_that_slept_before_computes,
    a_sleep_works_after_the_thread_that_slept_before_has_ended,
    a_sleep_works_after_many_threads_were_notified_before_theirs,
);

fn no_wake_is_lost_when_ringing_races_with_falling_asleep(bed: BackendBed) {
    const MESSAGES: u64 = 10_000;
    race(bed, MESSAGES, 0x5eed);
}

fn threads_take_turns(bed: BackendBed) {
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

fn a_sleep_works_while_the_thread_that_slept_before_computes(mut bed: BackendBed) {
    let done = Arc::new(AtomicBool::new(false));
    let (give, take) = mpsc::channel();
    let computing = {
        let done = Arc::clone(&done);
        thread::spawn(move || {
            bed.bell.arm();
            assert!(bed.sleeps_on());
            give.send(bed).unwrap();
            while !done.load(Ordering::Acquire) {
                std::hint::spin_loop(); // no system call, so the kernel does not run on this thread
            }
        })
    };
    sleep_and_be_rung(take.recv().unwrap());
    done.store(true, Ordering::Release);
    computing.join().unwrap();
}

fn a_sleep_works_after_the_thread_that_slept_before_has_ended(mut bed: BackendBed) {
    let bed = thread::spawn(move || {
        bed.bell.arm();
        assert!(bed.sleeps_on());
        bed
    });
    sleep_and_be_rung(bed.join().unwrap());
}

fn a_sleep_works_after_many_threads_were_notified_before_theirs(bed: BackendBed) {
    let (mut bed, _fds) = BackendBed::with_fds(5)(bed);
    for _ in 0..20 {
        let sleeper = thread::spawn(move || {
            bed.backend.notifier().notify();
            bed.sleep();
            bed
        });
        bed = sleeper.join().unwrap();
    }
    sleep_and_be_rung(bed);
}

/// Sends messages through a counter, with the doorbell's protocol of arm, check again, sleep.
fn race(mut bed: BackendBed, messages: u64, mut seed: u64) {
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

/// xorshift: spins for a short time, different each time.
fn jitter(seed: &mut u64) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (0..*seed % 64).for_each(|_| std::hint::spin_loop());
}

/// Sleeps and is woken several times. Afterwards checks that a sleep without a ring does not end.
fn sleep_and_be_rung(mut bed: BackendBed) {
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
    // The first sleeps may end by late rings, and by waits that earlier threads left.
    assert!((0..5).any(|_| bed.sleeps_on()));
}

#[test]
fn a_new_backend_on_the_same_word_is_not_robbed_of_its_wake_by_the_old_one() {
    for _ in 0..100 {
        let Ok((backend, _)) = open(BackendChoice::Uring) else {
            return;
        };
        let mut old = BackendBed::new(backend);
        old.bell.arm();
        old.backend.sleep(Some(Duration::ZERO)).unwrap();
        let bell = old.bell.clone();
        drop(old);
        let (mut backend, _) = open(BackendChoice::Uring).unwrap();
        backend.watch(&[bell.wait_on()]).unwrap();
        let mut new = BackendBed { backend, bell };
        new.backend.sleep(Some(Duration::ZERO)).unwrap();
        new.bell.ring();
        new.sleep();
    }
}

#[test]
fn another_process_ends_the_sleep_through_a_shared_word() {
    let Ok((backend, _)) = open(BackendChoice::Uring) else {
        return;
    };
    let mut bed = BackendBed::new(backend);
    if !bed.bell.by_futex {
        return;
    }
    let region = MemoryRegion::create("shared bell", 4096, false).unwrap();
    let word = FutexWord::new(&region, 0);
    bed.backend
        .watch(&[WakeSource::Futex {
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
            "reactor::backend_tests::threads::rings_from_another_process",
        ])
        .env(SHARED_BELL, path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    bed.sleep(); // ends even if the other process was faster
    assert_eq!(word.get().load(Ordering::SeqCst), AWAKE);
    assert!(child.wait().unwrap().success());
}

const SHARED_BELL: &str = "RIPSTOP_TEST_SHARED_BELL";

/// Not a test by itself: the code of the other process in the test before.
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
    let region = MemoryRegion::open(memfd.into(), 4096, true).unwrap();
    region.atomic_u32(0).store(AWAKE, Ordering::SeqCst);
    futex::wake(region.atomic_u32(0), futex::Flags::empty(), 1).unwrap();
}
