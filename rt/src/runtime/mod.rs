//! The [`Runtime`]: how a rank joins its job, and how it leaves.

mod assemble;
mod processors;

use std::{
    fmt, io, mem,
    ops::Deref,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use ripstop_fabric::{
    counters::DriverStats,
    driver::Driver,
    hook::{HookDriver, HookPlan},
    provider::Provider,
    shm::Board,
};

use self::assemble::assemble;
use crate::{
    boot::{
        self, ArrivalGuard, Boot, BootError, Environment, Exchange,
        report::{FailureReport, FailureReporter},
    },
    engine::Engine,
    entry::RankRegistry,
    error::{Error, ErrorKind, Result},
    event_log::EventPrinter,
    executor,
    fabrics::{self, DriverParams},
    last_calls,
    metrics::MetricsWriter,
    reactor::{self, ProgressAgent},
    runtime_handle::RuntimeHandle,
    settings::{ProgressMode, ReactorChoice, Settings},
    shared::{JobLink, RuntimeParts, RuntimeShared},
    view::ViewPublisher,
};

/// One rank of a job. A process may hold several runtimes, because they have no global state.
///
/// It has the methods of [`RuntimeHandle`]. A communicator has a handle, too: [`Comm::runtime`](crate::Comm::runtime).
pub struct Runtime {
    handle: RuntimeHandle,
    /// `None` once the runtime has ended.
    end: Mutex<Option<ShutdownParts>>,
}

/// Everything that the end of a runtime needs.
struct ShutdownParts {
    shared: Arc<RuntimeShared>,
    exchange: Box<dyn Exchange>,
    agent: Option<JoinHandle<()>>,
    /// Writes the metrics of this rank's node, if this rank does.
    metrics: Option<MetricsWriter>,
}

/// Makes a [`Runtime`] with settings of its own.
#[derive(Debug)]
#[must_use = "nothing is started before `init`"]
pub struct Builder {
    settings: Result<Settings>,
    boot: Option<Boot>,
    board: Option<Board>,
    plan: Option<HookPlan>,
    provider: Option<&'static dyn Provider>,
    reporter: Option<FailureReporter>,
    registry: Option<RankRegistry>,
}

impl Runtime {
    /// Joins the job that this process was started in, with the settings of the environment.
    ///
    /// Returns when all ranks have started and those of this node have met. If the ranks are on several nodes and
    /// `RIPSTOP_FABRIC` names no fabric, they have also chosen a network. If it names a network, the addresses of other nodes may
    /// arrive later. Messages to those ranks wait for the addresses, and fail with [`ErrorKind::Setup`] if they do not arrive
    /// within `RIPSTOP_BOOT_TIMEOUT`.
    ///
    /// ```
    /// use ripstop_rt::Runtime;
    ///
    /// let runtime = Runtime::init()?; // for programs without `#[ripstop::main]`
    /// let world = runtime.world();
    /// let (numbers, _) = runtime.block_on(async {
    ///     world.send(world.rank(), 0, [1, 2, 3]).detach();
    ///     world.recv::<i32>(world.rank(), 0).await
    /// })?;
    /// assert_eq!(numbers, [1, 2, 3]);
    /// runtime.close()?; // which says more than dropping it
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// A setting is invalid, the launcher was used wrongly, memory is exhausted, or the ranks have no network in common. Each
    /// error says what to do.
    pub fn init() -> Result<Self> {
        Self::builder().init()
    }

    /// Returns a builder for a runtime. Settings that the builder does not change come from the environment.
    pub fn builder() -> Builder {
        Builder {
            settings: Settings::from_environment(),
            boot: None,
            board: None,
            plan: None,
            provider: None,
            reporter: None,
            registry: None,
        }
    }

    /// Completes all sends, receives no more, and leaves the job. Peers that wait for this rank get `PeerFinished`. If an epoch
    /// or a lock is still held under which this rank can store to memory of peers, the rank leaves when that window is dropped.
    ///
    /// Dropping the runtime does the same, unless the thread panics. Then the rank counts as failed. If the progress agent drops
    /// the last owner, together with a buffer, a separate thread closes the runtime, and no other thread waits for it.
    ///
    /// First, the ranks compare their last collective calls on each communicator. This waits at most 2 s for ranks that
    /// have not called as many yet, or that compute without a progress agent. It takes O(log `size()`) messages for each
    /// communicator, and some more where ranks have to be asked again.
    ///
    /// # Errors
    /// - `Mismatch`: ranks have called different collectives, as the same broadcast with different roots, and no call of this
    ///   rank has failed with that error.
    /// - The launcher failed.
    #[track_caller]
    pub fn close(self) -> Result<()> {
        let at = Location::caller();
        self.end(&warn, true).map_err(|error| error.called_at(at))
    }

    /// Like [`close`](Self::close). Passes a sentence about messages that this rank did not receive to `send_report`, if there
    /// are any.
    pub(crate) fn close_saying(self, say: impl Fn(&str)) -> Result<()> {
        self.end(&say, true)
    }

    /// Returns the reporter to the process that started this rank, if that process listens.
    pub(crate) fn reporter(&self) -> Option<FailureReporter> {
        self.handle.shared.reporter.clone()
    }

    /// Reports a panic to the launcher. Called before peers can see the failure, because they may exit sooner than this process.
    fn say_panic(&self) {
        if let Some(reporter) = &self.handle.shared.reporter {
            reporter.send_report(FailureReport::Panicked { at: String::new() });
        }
    }

    /// Ends this rank without closing. Peers see the process end, and operations that wait for this rank fail with `PeerFailed`.
    pub(crate) fn abandon(self) {
        last_calls::notify_mismatch(&self.handle.shared);
        let _incomplete = self.handle.shared.end_trace();
        drop(lock(&self.end).as_mut().map(|end| end.metrics.take()));
        mem::forget(self);
    }

    /// Leaves the job. `is_called` is true if the application called `close`, so that it calls no collective any more. It is
    /// false if the runtime was dropped, perhaps because of an error.
    fn end(&self, say: &dyn Fn(&str), is_called: bool) -> Result<()> {
        match lock(&self.end).take() {
            Some(end) if end.is_on_agent() => {
                end.elsewhere();
                Ok(())
            }
            Some(end) => end.in_order(say, is_called),
            None => Ok(()),
        }
    }
}

impl Deref for Runtime {
    type Target = RuntimeHandle;

    fn deref(&self) -> &RuntimeHandle {
        &self.handle
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !thread::panicking() {
            warn_of(&self.end(&warn, false));
        } else if let Some(mut end) = lock(&self.end).take() {
            self.say_panic();
            end.shut(); // completes nothing: the driver sees the panic, and peers get `PeerFailed`
        }
    }
}

impl ShutdownParts {
    /// Leaves the job once all operations are complete.
    fn in_order(mut self, say: &dyn Fn(&str), is_called: bool) -> Result<()> {
        let agreed = last_calls::compare_calls(&self.shared, is_called);
        self.shared.begin_close();
        executor::drain(&self.shared);
        if let Some(sentence) = self.shared.end_trace() {
            // Printed by default, because the trace was asked for.
            let rank = self.shared.place.rank.0;
            let _printing = EventPrinter::start(&self.shared.settings, rank);
            warn(&sentence);
        }
        self.shut();
        let unreceived = self.shared.with(|engine| engine.core.p2p.take_unreceived());
        if let Some(sentence) = unreceived {
            say(&sentence);
        }
        let left = self.exchange.finalize().map_err(boot_error);
        let rank = self.shared.place.rank.0;
        tracing::info!(target: "ripstop::boot", rank, "this rank has left its job");
        agreed.and(left)
    }

    fn shut(&mut self) {
        self.metrics = None;
        self.shared.publish_end();
        let _incomplete = self.shared.end_trace(); // after a panic
        self.shared.agent.stop();
        self.shared.wake_seat_sleeper();
        let is_on_agent = self.is_on_agent();
        let agent = self.agent.take().filter(|_| !is_on_agent);
        let joined = agent.map(JoinHandle::join);
        self.shared.with(Engine::release_driver);
        self.shared.with(|engine| engine.core.end_sleepers());
        self.shared.end_tasks();
        drop(joined);
    }

    /// Returns true if this thread is the progress agent. The agent drops buffers in its turns, and one may own the runtime.
    fn is_on_agent(&self) -> bool {
        let agent = self.agent.as_ref().map(|agent| agent.thread().id());
        agent == Some(thread::current().id())
    }

    /// Leaves the job on a new thread. The agent cannot wait for itself, or for operations that only its next turns complete.
    fn elsewhere(self) {
        let shared = Arc::clone(&self.shared);
        let ending = thread::Builder::new().name(format!("ripstop-end-{}", shared.place.rank));
        if let Err(error) = ending.spawn(move || warn_of(&self.in_order(&warn, false))) {
            // No operation is completed. The agent ends after this turn, and the driver is dropped with its last owner.
            shared.agent.stop();
            tracing::warn!(
                target: "ripstop::boot",
                %error,
                "a runtime was dropped by its own agent thread, and could not close its connection to the job"
            );
        }
    }
}

impl Builder {
    /// Changes one setting, named as its environment variable.
    ///
    /// ```
    /// # use ripstop_rt::Runtime;
    /// let runtime = Runtime::builder().set("RIPSTOP_PROGRESS", "inline").init()?;
    /// # runtime.close()?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    pub fn set(mut self, name: &str, value: &str) -> Self {
        if let Ok(settings) = &mut self.settings
            && let Err(error) = settings.set(name, value)
        {
            self.settings = Err(error);
        }
        self
    }

    /// Joins this job instead of the one that the environment names.
    pub fn boot(mut self, boot: Boot) -> Self {
        self.boot = Some(boot);
        self
    }

    /// Meets the other ranks of the node on this board, instead of a board that the node's first rank creates.
    pub fn board(mut self, board: Board) -> Self {
        self.board = Some(board);
        self
    }

    /// Puts a hook between this rank and its driver. It counts, records or breaks what passes, for tests.
    pub fn hook(mut self, plan: impl Into<HookPlan>) -> Self {
        self.plan = Some(plan.into());
        self
    }

    /// Opens the driver of this provider instead of the one of the selected provider. For benchmarks of drivers that are not
    /// offered to users.
    #[doc(hidden)]
    pub fn provider(mut self, provider: &'static dyn Provider) -> Self {
        self.provider = Some(provider);
        self
    }

    /// Reports failed peers to `reporter` instead of to the launcher.
    pub(crate) fn reporter(self, reporter: Option<FailureReporter>) -> Self {
        Self { reporter, ..self }
    }

    /// Records the rank's view in `registry` when the runtime is made.
    pub(crate) fn registry(self, registry: RankRegistry) -> Self {
        let registry = Some(registry);
        Self { registry, ..self }
    }

    /// Joins the job and returns the runtime.
    ///
    /// # Errors
    /// The call fails as [`Runtime::init`] does.
    pub fn init(self) -> Result<Runtime> {
        let settings = self.settings?;
        check_driver(&settings)?;
        let mut boot = match self.boot {
            Some(boot) => boot,
            None => boot::discover(&environment(&settings)).map_err(boot_error)?,
        };
        let _printing = EventPrinter::start(&settings, boot.rank);
        let reporter = self.reporter.or_else(|| boot.exchange.reporter());
        let view = view_of(&boot, self.registry.as_ref(), settings.view);
        let (board, arrival) = match self.board {
            Some(board) => (board.clone(), ArrivalGuard::new(&board, boot.on_node())),
            None => boot::arrive(&mut boot, settings.boot_timeout, reporter.as_ref())
                .map_err(boot_error)?,
        };
        let view = view.map(|view| view.joined(board.cookie()));
        let metrics = MetricsWriter::start(&settings, &boot, board.cookie())?;
        let (boot, joining) = boot.share_exchange();
        let (boot, aborting) = boot.share_exchange();
        let (mut backend, why) =
            reactor::open(choice(settings.reactor)).map_err(fabrics::open_error)?;
        let counters = Arc::new(DriverStats::default());
        let link = Arc::new(JobLink::new(aborting.exchange));
        let opening = DriverParams {
            boot: &boot,
            joining,
            arrival: &arrival,
            board: &board,
            settings: &settings,
            provider: self.provider,
            futex: backend.futex(),
            counters: &counters,
            link: &link,
            reporter: reporter.as_ref(),
        };
        let opened = opening.open()?;
        let arrival = arrival; // On an error, dropped before the driver, whose drop records that this rank left in good order.
        backend.watch(&opened.driver.wait_on()).map_err(transport)?;
        let driver = hooked(opened.driver, self.plan);
        let mut parts = RuntimeParts {
            link: Some(link),
            reporter,
            view,
            ..assemble(
                &boot,
                board,
                settings,
                counters,
                backend,
                [opened.why, why],
                driver,
            )
        };
        parts.start_reports()?;
        let (shared, arrival) = (Arc::new(RuntimeShared::new(parts)), arrival);
        let agent = start_agent(&shared)?;
        arrival.release();
        report_start(&shared);
        Ok(Runtime {
            end: Mutex::new(Some(ShutdownParts {
                shared: Arc::clone(&shared),
                exchange: boot.exchange,
                agent,
                metrics,
            })),
            handle: RuntimeHandle::new(shared),
        })
    }
}

/// Makes the view of a rank: of a thread if there is a registry, otherwise of a process if `is_wanted`.
fn view_of(boot: &Boot, registry: Option<&RankRegistry>, is_wanted: bool) -> Option<ViewPublisher> {
    match registry {
        Some(registry) => registry.register(boot),
        None => is_wanted.then(|| ViewPublisher::of_process(boot))?,
    }
}

/// Starts the agent, or the watchdog of a runtime without one.
fn start_agent(shared: &Arc<RuntimeShared>) -> Result<Option<JoinHandle<()>>> {
    if shared.settings.progress == ProgressMode::Thread {
        return ProgressAgent::start(shared).map(Some).map_err(transport);
    }
    shared.drivers.lookout.set_runtime(Arc::downgrade(shared));
    Ok(None)
}

fn report_start(shared: &RuntimeShared) {
    let (rank, size) = (shared.place.rank.0, shared.place.size);
    let (fabric, reactor) = (shared.choices.fabric, shared.choices.reactor);
    tracing::info!(target: "ripstop::boot", rank, size, fabric, reactor, "this rank has joined its job");
}

/// Emits a `tracing` warning about messages that were not received.
fn warn(sentence: &str) {
    tracing::warn!(target: "ripstop::comm", "{sentence}");
}

/// Refuses `RIPSTOP_PROGRESS=tokio` if this program was built without support for tokio.
fn check_driver(settings: &Settings) -> Result<()> {
    if settings.progress != ProgressMode::Tokio || cfg!(feature = "tokio") {
        return Ok(());
    }
    let sentence = "RIPSTOP_PROGRESS=tokio is set, and this program was built without the cargo feature `tokio` of ripstop: \
                    build it with that, or unset the variable";
    Err(Error::new("init", ErrorKind::Setup(sentence.to_owned())))
}

fn warn_of(left: &Result<()>) {
    if let Err(error) = left {
        tracing::warn!(target: "ripstop::boot", %error, "a runtime was dropped, and could not close its connection to the job");
    }
}

/// Puts the hook, if there is one, around the driver.
fn hooked(driver: Box<dyn Driver>, plan: Option<HookPlan>) -> Box<dyn Driver> {
    match plan {
        Some(plan) => Box::new(HookDriver::new(driver, plan)),
        None => driver,
    }
}

/// Returns the environment, with the settings that the builder changed.
fn environment(settings: &Settings) -> Environment {
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let rows = settings
        .rows()
        .into_iter()
        .map(|row| (row.name.to_owned(), row.value));
    variables.chain(rows).collect()
}

fn choice(reactor: ReactorChoice) -> reactor::BackendChoice {
    match reactor {
        ReactorChoice::Auto => reactor::BackendChoice::Auto,
        ReactorChoice::Uring => reactor::BackendChoice::Uring,
        ReactorChoice::Epoll => reactor::BackendChoice::Epoll,
    }
}

fn boot_error(error: BootError) -> Error {
    setup(error.to_string())
}

fn setup(sentence: String) -> Error {
    Error::new("init", ErrorKind::Setup(sentence))
}

fn transport(error: io::Error) -> Error {
    Error::new("init", ErrorKind::Transport(error.into()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
