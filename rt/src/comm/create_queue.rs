//! The order of creations by the same members: each begins when the one before it has ended.

use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use crate::contexts::ContextIds;

/// Names the creations that must follow each other: the context of the communicator, and the signature of the members.
pub(super) type CreationKey = (u32, u64);

/// Creations in flight on this rank, in the order of their calls.
#[derive(Debug, Default)]
pub(crate) struct CreateQueues(Mutex<QueuedCreations>);

#[derive(Debug, Default)]
struct QueuedCreations {
    /// Number of the next creation.
    next: u64,
    of_members: BTreeMap<CreationKey, VecDeque<QueuedCreation>>,
}

#[derive(Debug)]
struct QueuedCreation {
    number: u64,
    /// Wakes the creation when its turn comes, if it waits.
    waker: Option<Waker>,
}

/// A creation's place in its queue. Dropping it begins the next creation of the same members.
#[derive(Debug)]
#[must_use = "it leaves the queue when it is dropped"]
pub(super) struct CreatePlace {
    contexts: Arc<ContextIds>,
    key: CreationKey,
    number: u64,
}

impl CreatePlace {
    /// Takes the last place of the queue.
    pub(super) fn last(contexts: Arc<ContextIds>, key: CreationKey) -> Self {
        let mut queued = contexts.creates.lock();
        let number = queued.next;
        queued.next += 1;
        let waker = None;
        let queue = queued.of_members.entry(key).or_default();
        queue.push_back(QueuedCreation { number, waker });
        drop(queued);
        Self {
            contexts,
            key,
            number,
        }
    }

    /// Waits until all creations before this one have ended.
    pub(super) async fn turn(&self) {
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut queued = self.contexts.creates.lock();
            let mut queue = queued.of_members.get_mut(&self.key).into_iter().flatten();
            // The queue has this place until it is dropped. What is left over is dropped without the lock.
            let (is_first, left) = match queue.next() {
                Some(first) if first.number != self.number => {
                    let mine = queue.find(|its| its.number == self.number);
                    (false, mine.and_then(|mine| mine.waker.replace(waker)))
                }
                _ => (true, Some(waker)),
            };
            drop(queued);
            drop(left);
            if is_first {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

impl Drop for CreatePlace {
    fn drop(&mut self) {
        let mut queued = self.contexts.creates.lock();
        let Some(queue) = queued.of_members.get_mut(&self.key) else {
            return;
        };
        queue.retain(|its| its.number != self.number);
        let next = queue.front_mut().and_then(|first| first.waker.take());
        if queue.is_empty() {
            queued.of_members.remove(&self.key);
        }
        drop(queued);
        if let Some(next) = next {
            next.wake(); // without the lock, because the creation goes on here
        }
    }
}

impl CreateQueues {
    fn lock(&self) -> MutexGuard<'_, QueuedCreations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::{Context, Wake, Waker},
    };

    use super::CreatePlace;
    use crate::contexts::ContextIds;

    #[derive(Default)]
    struct WakeCount(AtomicU32);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_creation_of_the_same_members_waits_for_the_ones_before() {
        let contexts = Arc::<ContextIds>::default();
        let take = |key| CreatePlace::last(Arc::clone(&contexts), key);
        let [first, second, third] = [(); 3].map(|()| take((0, 7)));
        let others = [take((0, 8)), take((2, 7))];
        let wakes = Arc::<WakeCount>::default();
        let waker = Waker::from(Arc::clone(&wakes));
        let is_first = |place: &CreatePlace| {
            let turn = pin!(place.turn());
            turn.poll(&mut Context::from_waker(&waker)).is_ready()
        };
        assert!(!is_first(&third) && !is_first(&second) && is_first(&first));
        assert!(others.iter().all(is_first), "they have other members");
        drop(second); // it gives up
        assert!(!is_first(&third) && is_first(&first));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        drop(first);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(is_first(&third));
        drop((third, others));
        assert!(contexts.creates.lock().of_members.is_empty());
        assert!(is_first(&take((0, 7))));
    }
}
