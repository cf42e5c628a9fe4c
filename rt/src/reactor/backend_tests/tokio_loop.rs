//! Tests with tokio, which waits for edges. An epoll instance inside another one reports edges sparingly.

use super::{BackendBed, BackendChoice, HANG, SHORT, open, until};
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
    hears(BackendChoice::Uring).await;
}

#[tokio::test]
async fn hears_every_event_and_nothing_else_through_epoll() {
    hears(BackendChoice::Epoll).await;
}

async fn hears(choice: BackendChoice) {
    let Ok((backend, _)) = open(choice) else {
        return;
    };
    let (mut bed, fds) = BackendBed::with_fds(1)(BackendBed::new(backend));
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
    // The last notification may have been counted before it arrived: the loop may have been awake then, and past its
    // last check.
    bed.backend.prepare().unwrap();
    let _ = timeout(SHORT, loop_fd.readable())
        .await
        .map(|guard| guard.unwrap().clear_ready());
    bed.backend.notifier().wake_up();
    bed.backend.prepare().unwrap();
    assert!(
        timeout(SHORT, loop_fd.readable()).await.is_err(),
        "readable without a cause"
    );
}

/// Alternates between making a descriptor readable and sending a notification, each after the previous one was handled.
fn send_events(
    fd: &Arc<OwnedFd>,
    notifier: Notifier,
    heard: Arc<AtomicU32>,
) -> thread::JoinHandle<()> {
    let fd = Arc::clone(fd);
    thread::spawn(move || {
        for event in 0..EVENTS {
            until(|| heard.load(Ordering::SeqCst) == event);
            if event % 2 == 0 {
                ring(&fd);
            } else {
                heard.store(event + 1, Ordering::SeqCst);
                notifier.notify();
            }
        }
    })
}
