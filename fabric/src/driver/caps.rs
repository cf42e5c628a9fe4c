//! What a driver can do, and what that costs.

/// What a driver can do, as data: the protocols choose from it.
#[derive(Clone, Debug)]
pub struct Caps {
    /// `shm`, `loopback`, …
    pub name: &'static str,
    /// Header and body together, in bytes, that travel without a buffer.
    pub inline_max: usize,
    /// The longest header of a message, in bytes.
    pub header_max: usize,
    /// The longest body of a message, in bytes.
    pub body_max: usize,
    /// Messages of one peer arrive in the order they were posted.
    pub ordered: bool,
    /// Messages arrive exactly once as long as the peer lives.
    pub reliable: bool,
    /// [`Sink::peer_down`](super::Sink::peer_down) tells of every peer that fails. When not, somebody above must find out who
    /// is silent for good.
    pub detects_death: bool,
    /// [`Command::Put`](super::Command::Put) and [`Command::Get`](super::Command::Get) reach memory from
    /// [`Driver::allocate`](super::Driver::allocate).
    pub one_sided: bool,
    /// [`Command::Atomic`](super::Command::Atomic) works.
    pub atomics: bool,
    /// Puts, gets and atomics are done by the processor of who posts them. So two ranks can share the work of a long one; and
    /// [`Command::Atomic`](super::Command::Atomic) and the owner's own atomics heed each other, which those of an adapter and
    /// of a processor do not.
    pub by_processor: bool,
    /// [`Command::Count`](super::Command::Count), [`Command::Watch`](super::Command::Watch) and counting puts work.
    pub counters: bool,
    /// [`Command::Name`](super::Command::Name) works.
    pub names: bool,
    /// [`Driver::expose`](super::Driver::expose) reaches any memory; when not, the sentence says why.
    pub any_memory: Result<(), String>,
    /// The hardware matches tags: [`Driver::offer`](super::Driver::offer) and
    /// [`Driver::post_tagged`](super::Driver::post_tagged) save a copy of bodies of so many bytes and more.
    pub tag_matching: Option<usize>,
    /// Triggered operations that can wait at a time; 0 means that the progress agent runs task lists.
    pub triggered_max: usize,
    /// The most bytes of an [`Action::Combine`](crate::offload::Action::Combine) that takes no processor; longer ones, and with 0
    /// all, are left to that of the rank.
    pub combine_max: usize,
    /// Independent ways to one peer.
    pub lanes: u32,
    /// What things cost, for the protocol chooser.
    pub cost: Cost,
}

/// The cost of a driver's actions in the LogGP manner, in nanoseconds, and nanoseconds per KiB where it says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// o_s: the sender's processor, per message.
    pub send_ns: f64,
    /// o_r: the receiver's processor, per message.
    pub recv_ns: f64,
    /// L: from one end to the other.
    pub latency_ns: f64,
    /// γ: a copy within one processor's cache.
    pub copy_ns_per_kib: f64,
    /// G: a byte that crosses inside a message.
    pub message_ns_per_kib: f64,
    /// The fixed cost of a get.
    pub get_ns: f64,
    /// G of a get.
    pub get_ns_per_kib: f64,
    /// The fixed cost of a put.
    pub put_ns: f64,
    /// G of a put.
    pub put_ns_per_kib: f64,
    /// To make memory reachable, once per message.
    pub expose_ns: f64,
}
