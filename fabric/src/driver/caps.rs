//! What a driver can do, and what its operations cost.

/// Capabilities of a driver, from which the protocols choose.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Name of the driver, such as `shm` or `loopback`.
    pub name: &'static str,
    /// Most bytes of header and body together that travel without a buffer.
    pub inline_max: usize,
    /// Longest header of a message, in bytes.
    pub header_max: usize,
    /// Longest body of a message, in bytes.
    pub body_max: usize,
    /// True if messages of one peer arrive in the order they were posted.
    pub ordered: bool,
    /// True if messages arrive exactly once as long as the peer lives.
    pub reliable: bool,
    /// True if [`Sink::peer_down`](super::Sink::peer_down) reports every peer that fails. If false, the layer above must detect
    /// peers that stay silent.
    pub detects_death: bool,
    /// True if messages to the peer go through memory that both ranks access, false if a network carries them.
    pub shares_memory: bool,
    /// True if [`DriverCommand::Put`](super::DriverCommand::Put) and [`DriverCommand::Get`](super::DriverCommand::Get) can access
    /// memory from [`Driver::allocate`](super::Driver::allocate).
    pub one_sided: bool,
    /// True if [`DriverCommand::Atomic`](super::DriverCommand::Atomic) works.
    pub atomics: bool,
    /// True if the processor of the posting rank performs puts, gets and atomics.
    ///
    /// Two ranks can then share the work of a long transfer. Also, [`DriverCommand::Atomic`](super::DriverCommand::Atomic) and
    /// the owner's own atomics are atomic with respect to each other, unlike those of an adapter and a processor.
    pub by_processor: bool,
    /// `Ok` if [`Driver::expose`](super::Driver::expose) can expose any memory of the process. Otherwise a sentence that says why
    /// not.
    pub any_memory: Result<(), String>,
    /// True if a key to plain memory pins that memory until the key is withdrawn. Otherwise keys need not be withdrawn.
    pub pins_exposed: bool,
    /// Independent paths to one peer.
    pub lanes: u32,
    /// Costs of the driver's operations, for the choice of protocols.
    pub cost: DriverCost,
}

/// Costs of a driver's operations as in the LogGP model, in nanoseconds, or in nanoseconds per KiB where the name says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriverCost {
    /// o_s: time of the sender's processor per message.
    pub send_ns: f64,
    /// o_r: time of the receiver's processor per message.
    pub recv_ns: f64,
    /// L: latency from one end to the other.
    pub latency_ns: f64,
    /// γ: cost of a copy within one processor's cache.
    pub copy_ns_per_kib: f64,
    /// G: cost of bytes that travel inside a message.
    pub message_ns_per_kib: f64,
    /// Fixed cost of a get.
    pub get_ns: f64,
    /// G: cost of the bytes of a get.
    pub get_ns_per_kib: f64,
    /// Fixed cost of a put.
    pub put_ns: f64,
    /// G: cost of the bytes of a put.
    pub put_ns_per_kib: f64,
    /// Cost of making memory reachable, once per message.
    pub expose_ns: f64,
}
