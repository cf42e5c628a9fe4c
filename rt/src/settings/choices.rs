//! Settings with a fixed set of named values.

/// A value that has a name.
pub(super) trait NamedChoice: Copy + PartialEq + 'static {
    /// All values, in the order in which they are listed for users.
    const ALL: &'static [(&'static str, Self)];
}

/// Returns the value with this name.
pub(super) fn named<T: NamedChoice>(name: &str) -> Option<T> {
    let found = T::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value)
}

/// Returns the name of a value.
pub(super) fn name_of<T: NamedChoice>(value: &T) -> String {
    let found = T::ALL.iter().find(|(_, known)| known == value);
    found.expect("every value has a name").0.to_owned()
}

/// Method by which the reactor sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReactorChoice {
    /// `uring` if the kernel supports it, otherwise `epoll`.
    #[default]
    Auto,
    /// One `io_uring_enter`. Fails if io_uring is missing or forbidden.
    Uring,
    /// One `epoll_wait`.
    Epoll,
}

/// Threads that drive progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressMode {
    /// `block_on` makes turns while it waits, and an agent thread makes turns while the application computes.
    #[default]
    Thread,
    /// `block_on` alone: there is no progress while the application computes.
    Inline,
    /// A task that the application spawns on tokio.
    Tokio,
}

/// Executor of collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executor {
    /// Adapters, if they run task lists by themselves and the collective is long enough; otherwise like `Messages`.
    #[default]
    Offload,
    /// Adapters, also for the shortest collectives; without task lists like `Messages`.
    Lists,
    /// The threads that make turns: a waiting application thread, or the agent while the application computes.
    Messages,
    /// Only polls of the collectives' futures. This is the baseline for comparisons.
    Host,
}

/// Method of transferring an offered message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// The first one that works: get, put, or fragments.
    #[default]
    Auto,
    /// The receiver reads the sender's memory.
    Get,
    /// The sender writes to the receiver's memory.
    Put,
    /// The sender sends the bytes in messages, which copies them twice.
    Fragments,
}

impl NamedChoice for ReactorChoice {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("uring", Self::Uring),
        ("epoll", Self::Epoll),
    ];
}

impl NamedChoice for ProgressMode {
    const ALL: &'static [(&'static str, Self)] = &[
        ("thread", Self::Thread),
        ("inline", Self::Inline),
        ("tokio", Self::Tokio),
    ];
}

impl NamedChoice for Executor {
    const ALL: &'static [(&'static str, Self)] = &[
        ("offload", Self::Offload),
        ("lists", Self::Lists),
        ("messages", Self::Messages),
        ("host", Self::Host),
    ];
}

impl NamedChoice for Rendezvous {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("get", Self::Get),
        ("put", Self::Put),
        ("fragments", Self::Fragments),
    ];
}

impl NamedChoice for bool {
    const ALL: &'static [(&'static str, Self)] = &[("on", true), ("off", false)];
}
