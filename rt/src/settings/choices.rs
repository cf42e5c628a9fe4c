//! Choices of one among few.

/// A value that has a name.
pub(super) trait Named: Copy + PartialEq + 'static {
    /// All values, in the order in which people are told of them.
    const ALL: &'static [(&'static str, Self)];
}

/// The value of this name.
pub(super) fn named<T: Named>(name: &str) -> Option<T> {
    let found = T::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value)
}

/// The name of a value.
pub(super) fn name_of<T: Named>(value: &T) -> String {
    let found = T::ALL.iter().find(|(_, known)| known == value);
    found.expect("every value has a name").0.to_owned()
}

/// Which driver carries what ranks say to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricChoice {
    /// Shared memory, as long as all ranks are on one node.
    #[default]
    Auto,
    /// Shared memory.
    Shm,
    /// BXI, or whatever else has a Portals 4 library.
    Portals,
    /// InfiniBand or RoCE.
    Verbs,
    /// Shared memory within each node, Portals between them.
    ShmPortals,
    /// Shared memory within each node, InfiniBand or RoCE between them.
    ShmVerbs,
}

/// How the reactor sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReactorChoice {
    /// `uring` if the kernel has what it takes, else `epoll`.
    #[default]
    Auto,
    /// One `io_uring_enter`; an error where that is missing or forbidden.
    Uring,
    /// One `epoll_wait`.
    Epoll,
}

/// Who drives the reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressMode {
    /// `block_on` while it waits, and an agent thread while the application computes.
    #[default]
    Thread,
    /// `block_on` alone: nothing moves while the application computes.
    Inline,
    /// A task that the application spawns on tokio.
    Tokio,
}

/// Who carries collectives on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executor {
    /// Adapters, where they run task lists by themselves and a collective is long enough; else as by messages.
    #[default]
    Offload,
    /// Adapters, also of the shortest ones; elsewhere as by messages.
    Lists,
    /// Whoever makes turns: an application that waits, or the agent while it computes.
    Messages,
    /// Nobody but the polls of their futures: the baseline to compare with.
    Host,
}

/// How the bytes of an offered message travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// By what works: get, else put, else fragments.
    #[default]
    Auto,
    /// The receiver reads the sender's memory.
    Get,
    /// The sender writes the receiver's memory.
    Put,
    /// In messages, copied twice.
    Fragments,
}

impl Named for FabricChoice {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("shm", Self::Shm),
        ("portals", Self::Portals),
        ("verbs", Self::Verbs),
        ("shm+portals", Self::ShmPortals),
        ("shm+verbs", Self::ShmVerbs),
    ];
}

impl Named for ReactorChoice {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("uring", Self::Uring),
        ("epoll", Self::Epoll),
    ];
}

impl Named for ProgressMode {
    const ALL: &'static [(&'static str, Self)] = &[
        ("thread", Self::Thread),
        ("inline", Self::Inline),
        ("tokio", Self::Tokio),
    ];
}

impl Named for Executor {
    const ALL: &'static [(&'static str, Self)] = &[
        ("offload", Self::Offload),
        ("lists", Self::Lists),
        ("messages", Self::Messages),
        ("host", Self::Host),
    ];
}

impl Named for Rendezvous {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("get", Self::Get),
        ("put", Self::Put),
        ("fragments", Self::Fragments),
    ];
}

impl Named for bool {
    const ALL: &'static [(&'static str, Self)] = &[("on", true), ("off", false)];
}
