//! What Ripstop's own crates need of the runtime, and users do not: `collectives`, `rma`, the command `ripstop`, and the
//! tests. Nothing here is stable, and nothing here is documented for users.

mod comm;
mod error;

pub use self::{
    comm::CommInternals,
    error::{ErrorInternals, failed_fetch, failed_op},
};
pub use crate::{
    buffer::room::{overwrite, room, zeros},
    error::called_at,
};

/// Which rank of a job failed first, for launchers.
pub mod inquest {
    pub use crate::boot::inquest::{ENDED_BY_PEER, End, Finding, Inquest};
}

/// The lock of the engine, also for programs that collectives keep.
pub mod lock {
    pub use crate::lock::{Guard, Lock};
}

/// Collectives as programs that the engine or an adapter runs.
pub mod offload {
    pub use crate::offload::{
        Action, Buffer, Builder, Collective, Course, LOOKAHEAD, LOOKAHEAD_MIN, Lens, Loaded,
        Misfit, Program, ProgramOp, Reducer, Side, Signature, Span, StepId, Turn, poll_proceed,
    };
}

/// The ends of windows, and operations on them.
pub mod onesided {
    pub use crate::onesided::{
        Combine, Come, Element, Fetching, Locking, Overlap, Piece, Port, RemoteOp, Starting,
        Target, Visit, proceed,
    };
}

/// Reports of a rank about failures, for launchers.
pub mod report {
    pub use crate::boot::report::{Leaving, Report, Reporter};
}
