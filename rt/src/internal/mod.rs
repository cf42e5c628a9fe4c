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

/// Search for the rank of a job that failed first, for launchers.
pub mod inquest {
    pub use crate::boot::inquest::{ENDED_BY_PEER, Inquest, InquestFinding, RankEnd};
}

/// The lock of the engine, also for programs that collectives keep.
pub mod lock {
    pub use crate::lock::{SpinGuard, SpinLock};
}

/// Collectives as programs that the engine or an adapter runs.
pub mod offload {
    pub use crate::offload::{
        BackgroundFuture, BufferLens, BufferSpan, CollectivePlace, CollectiveProgram,
        CollectiveSignature, CollectiveSpec, CommRank, ErasedReducer, LOOKAHEAD, LOOKAHEAD_MIN,
        LocalCopy, OperandSide, Plan, ProgramBuffer, ProgramOp, ProgramStepId, StepAction,
        StepError, poll_proceed,
    };
}

/// The ends of windows, and operations on them.
pub mod onesided {
    pub use crate::onesided::{
        AccessEpoch, Combine, Element, FenceOp, Fetching, FlushOp, NoOp, NodeView, NodeWindow,
        Overlap, PassiveLocks, PendingStart, Piece, RemoteOp, Replace, WindowEnd, WindowTarget,
        proceed,
    };
}

/// Reports of a rank about failures, for launchers.
pub mod report {
    pub use crate::boot::report::{FailureReport, FailureReporter, PeerDeparture};
}

/// The traces of ranks: what each recorded of its operations.
pub mod trace {
    pub use crate::trace::{format, spans};
}

/// The views of ranks, and what they say about a job.
pub mod view {
    pub use crate::{
        clock::machine_nanos,
        view::{
            FLIGHT_RECORDS, FlightEvent, FlightKind, FlightRecord, PERIOD, ProcessStat,
            PublishedComm, PublishedLock, PublishedPeer, PublishedSleep, PublishedWait, RankFlight,
            RankPhase, RankSnapshot, RecordedTotals, StoredGroup, WaitKind, layout, look, report,
        },
    };
}
