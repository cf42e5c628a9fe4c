//! Handles of a runtime, for threads and functions that have only a communicator.

use std::{fmt, panic::Location, sync::Arc, time::Duration};

use ripstop_fabric::counters::StatsSnapshot;

#[cfg(feature = "tokio")]
use crate::reactor;
use crate::{
    buffer::{RegBuf, Wire},
    comm::Comm,
    error::Result,
    executor,
    settings::Row,
    shared::{Choices, RankPlacement, RuntimeShared},
    view::OperationInFlight,
};

/// A handle of a [`Runtime`](crate::Runtime): everything that can be done with it, except closing it.
///
/// [`Comm::runtime`] makes it. Handles are cheap to clone, and any thread may use them. A handle does not keep the rank in its
/// job: after the runtime has closed, operations fail with [`ErrorKind::Closed`](crate::ErrorKind::Closed).
#[derive(Clone)]
pub struct RuntimeHandle {
    pub(crate) shared: Arc<RuntimeShared>,
}

impl RuntimeHandle {
    pub(crate) fn new(shared: Arc<RuntimeShared>) -> Self {
        Self { shared }
    }

    /// Returns the communicator of all ranks.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// let handle = runtime.world().runtime();
    /// assert_eq!(handle.world().size(), runtime.world().size());
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[must_use]
    pub fn world(&self) -> Comm {
        Comm::world(Arc::clone(&self.shared))
    }

    /// Runs a future to completion on this thread, and drives the runtime while the future waits.
    ///
    /// Several threads may be in `block_on` at the same time.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// let handle = runtime.world().runtime();
    /// let world = handle.world();
    /// handle.block_on(world.send(0, 7, [1_u8]))?;
    /// assert_eq!(handle.block_on(world.recv::<u8>(0, 7))?.0, [1]);
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        executor::block_on(&self.shared, future)
    }

    /// Starts a task. It runs on threads in [`block_on`](Self::block_on) while they wait, and on tokio if tokio drives the
    /// runtime.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// let world = runtime.world();
    /// let inbox = world.recv::<u64>(0, 7);
    /// let task = world.runtime().spawn(async move { inbox.await.map(|(got, _)| got[0]) });
    /// runtime.block_on(world.send(0, 7, [5_u64]))?;
    /// assert_eq!(runtime.block_on(task)?, 5);
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    pub fn spawn<F>(&self, future: F) -> executor::JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        executor::spawn(&self.shared, future)
    }

    /// Returns a future that drives the runtime and runs its tasks until the runtime is closed. Spawn it on tokio, and await
    /// operations in any task of tokio.
    ///
    /// # Errors
    /// The system refused the file descriptor on which the future sleeps.
    #[cfg(feature = "tokio")]
    pub fn drive_on_tokio(&self) -> impl Future<Output = std::io::Result<()>> + Send + use<> {
        reactor::tokio::drive(Arc::clone(&self.shared))
    }

    /// Allocates a zeroed buffer of `len` elements in registered memory. Peers read and write it without an intermediate copy.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// let handle = runtime.world().runtime();
    /// let mut field = handle.alloc::<f64>(1000)?;
    /// field[0] = 1.0;
    /// assert_eq!(field.iter().sum::<f64>(), 1.0);
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// `len` is 0, or there is not enough memory.
    #[track_caller]
    pub fn alloc<T: Wire>(&self, len: usize) -> Result<RegBuf<T>> {
        self.shared.alloc(len)
    }

    /// Returns a future that is ready after `duration`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// let handle = runtime.world().runtime();
    /// handle.block_on(handle.sleep(Duration::from_millis(1)));
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[track_caller]
    pub fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + use<> {
        executor::sleep(&self.shared, duration, Some(Location::caller()))
    }

    /// Returns the counters of messages, turns and other events so far.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// let handle = runtime.world().runtime();
    /// println!("{} messages sent", handle.counters().messages_sent);
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> StatsSnapshot {
        self.shared.counters.snapshot()
    }

    /// Returns the operations that are in flight on this rank, at most 800 of them. Those that futures wait for come first. The
    /// call takes O(operations + messages that no receive has taken).
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// let inbox = world.recv::<f64>(0, 7);
    /// let [waiting] = &world.runtime().waiting()[..] else {
    ///     panic!("one operation is in flight");
    /// };
    /// assert!(waiting.to_string().starts_with("recv from rank 0, tag 7"));
    /// # drop(inbox); Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[must_use]
    pub fn waiting(&self) -> Vec<OperationInFlight> {
        let mut waits = self.shared.with(|engine| engine.core.published().waits);
        waits.sort_by_key(|wait| !wait.is_awaited);
        waits.into_iter().map(OperationInFlight::new).collect()
    }

    /// Returns the processor time that the progress agent has used, or `None` if there is no agent or the system does not report
    /// the time.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// let handle = runtime.world().runtime();
    /// if let Some(used) = handle.agent_cpu() {
    ///     println!("the agent has used {used:?}");
    /// }
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[must_use]
    pub fn agent_cpu(&self) -> Option<Duration> {
        self.shared.agent.cpu()
    }

    /// Returns all settings, and where each one came from.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// let handle = runtime.world().runtime();
    /// for setting in handle.settings() {
    ///     println!("{} = {}", setting.name, setting.value);
    /// }
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[must_use]
    pub fn settings(&self) -> Vec<Row> {
        self.shared.settings.rows()
    }

    /// Returns what was chosen at the start, and why, in sentences.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// let handle = runtime.world().runtime();
    /// let choices = handle.choices();
    /// println!("{}; {}", choices.fabric_why, choices.reactor_why);
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[must_use]
    pub fn choices(&self) -> Choices {
        Choices::clone(&self.shared.choices)
    }
}

impl fmt::Debug for RuntimeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RankPlacement { rank, size, .. } = &self.shared.place;
        let found = self.shared.choices.boot;
        write!(f, "Runtime (rank {rank} of {size}, {found})")
    }
}
