//! Synchronization primitives and parking: from `std`, or from loom when a model is built.

#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicUsize},
    },
    thread::{Thread, current, park},
};

#[cfg(loom)]
pub(crate) use self::model::{
    AtomicBool, AtomicU8, AtomicUsize, Mutex, MutexGuard, Thread, current, park,
};

#[cfg(all(test, loom))]
pub(crate) use self::model::explore;

/// Locks a mutex, and ignores poisoning.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
#[expect(dead_code, reason = "every atomic has the same methods")]
mod model {
    use std::{cell::Cell, sync::Arc};

    use loom::sync::{Condvar, atomic::Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    /// Runs a model in every interleaving with at most four preemptions; blocking does not count. Bugs need one or two.
    pub(crate) fn explore(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(4);
        builder.check(model);
    }

    loom::thread_local! {
        /// True if this thread has stored with `SeqCst`, and not loaded with it since.
        static STORED: Cell<bool> = Cell::new(false);
        static CURRENT: Thread = Thread::stand_in();
    }

    loom::lazy_static! {
        static ref FENCE: loom::sync::atomic::AtomicU8 = loom::sync::atomic::AtomicU8::new(0);
    }

    /// Loom treats `SeqCst` accesses as weaker ones.
    ///
    /// This crate uses their single order only for a store followed by a load of another location, so this adds a fence
    /// between the two. A relaxed access on either side gets no fence. The fence is an access to one location, because
    /// loom does not explore the order of two of its own fences.
    fn before_load(ordering: Ordering) {
        if ordering == Ordering::SeqCst && STORED.with(|stored| stored.replace(false)) {
            FENCE.fetch_add(0, Ordering::AcqRel);
        }
    }

    fn after_store(ordering: Ordering) {
        STORED.with(|stored| stored.set(ordering == Ordering::SeqCst));
    }

    macro_rules! atomics {
        ($($name:ident of $value:ty: $($add:ident)*;)*) => {$(
            #[derive(Debug, Default)]
            pub(crate) struct $name(loom::sync::atomic::$name);

            impl $name {
                pub(crate) fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub(crate) fn load(&self, ordering: Ordering) -> $value {
                    before_load(ordering);
                    self.0.load(ordering)
                }

                pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                    self.0.store(value, ordering);
                    after_store(ordering);
                }

                pub(crate) fn swap(&self, value: $value, ordering: Ordering) -> $value {
                    before_load(ordering);
                    let before = self.0.swap(value, ordering);
                    after_store(ordering);
                    before
                }

                pub(crate) fn compare_exchange(
                    &self,
                    from: $value,
                    to: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    before_load(failure);
                    let before = self.0.compare_exchange(from, to, success, failure)?;
                    after_store(success);
                    Ok(before)
                }

                pub(crate) fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    mut next: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    let mut before = self.load(failure);
                    while let Some(value) = next(before) {
                        match self.compare_exchange(before, value, success, failure) {
                            Err(other) => before = other,
                            done => return done,
                        }
                    }
                    Err(before)
                }

                $(pub(crate) fn $add(&self, value: $value, ordering: Ordering) -> $value {
                    before_load(ordering);
                    let before = self.0.$add(value, ordering);
                    after_store(ordering);
                    before
                })*
            }
        )*};
    }

    atomics! {
        AtomicBool of bool:;
        AtomicU8 of u8:;
        AtomicUsize of usize: fetch_add fetch_sub;
    }

    /// A thread that can be unparked. Loom's own thread would also be woken out of a lock.
    #[derive(Clone, Debug)]
    pub(crate) struct Thread(Arc<Token>);

    #[derive(Debug, Default)]
    struct Token {
        given: Mutex<bool>,
        changed: Condvar,
    }

    impl Thread {
        /// Returns a token that is not a thread, but can be waited for like one.
        pub(crate) fn stand_in() -> Self {
            Self(Arc::default())
        }

        /// Waits for the next `unpark`, or returns for an earlier one. Without any, it never ends, and loom reports the
        /// deadlock.
        pub(crate) fn wait(&self) {
            let Token { given, changed } = &*self.0;
            let mut given = given.lock().unwrap();
            while !*given {
                given = changed.wait(given).unwrap();
            }
            *given = false;
        }

        pub(crate) fn unpark(&self) {
            *self.0.given.lock().unwrap() = true;
            self.0.changed.notify_one();
        }
    }

    pub(crate) fn current() -> Thread {
        CURRENT.with(Thread::clone)
    }

    pub(crate) fn park() {
        current().wait();
    }
}
