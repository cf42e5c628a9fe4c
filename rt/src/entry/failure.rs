//! Describes why a rank's function failed, in a sentence, and whether a peer caused it.

use std::{any::Any, error::Error as StdError, fmt::Display};

use crate::error::{Error, ErrorKind};

/// Reason why a rank's function failed.
#[derive(Debug)]
pub struct RankFailure {
    /// The error and what caused it.
    pub sentence: String,
    /// True if a peer caused it: the peer failed, left, or gave up an operation.
    pub by_peer: bool,
}

impl RankFailure {
    /// Describes an error and its sources. A source that is already part of the sentence is not repeated.
    pub(crate) fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut failure = Self {
            sentence: error.to_string(),
            by_peer: false,
        };
        let mut next = Some(error);
        while let Some(one) = next {
            let said = one.to_string();
            if !failure.sentence.contains(&said) {
                failure.sentence = format!("{}: {said}", failure.sentence);
            }
            let kind = one.downcast_ref::<Error>().map(|error| &error.kind);
            failure.by_peer |= kind.is_some_and(is_by_peer);
            next = one.source();
        }
        failure
    }
}

/// Returns true if the error follows from something a peer did. The peer's own error or end then says more.
fn is_by_peer(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PeerFailed { .. }
            | ErrorKind::PeerFinished { .. }
            | ErrorKind::Aborted { .. }
            | ErrorKind::Revoked
            | ErrorKind::NoWindow { .. }
    )
}

/// Return type of a rank's function: nothing, or a result whose error can be printed.
pub trait RankOutcome {
    /// Returns why the function failed, or `None` if it succeeded.
    fn failure(self) -> Option<RankFailure>;
}

impl RankOutcome for () {
    fn failure(self) -> Option<RankFailure> {
        None
    }
}

impl RankOutcome for Option<RankFailure> {
    fn failure(self) -> Self {
        self
    }
}

impl<E: Display + 'static> RankOutcome for Result<(), E> {
    fn failure(self) -> Option<RankFailure> {
        let error = self.err()?;
        if let Some(error) = known(&error) {
            return Some(RankFailure::of(error));
        }
        Some(RankFailure {
            // Error types that do not implement `Error` print their sources in this form.
            sentence: format!("{error:#}"),
            by_peer: false,
        })
    }
}

/// Returns the error if its type is known here. A box of an error does not implement `Error`, but its content has sources.
fn known(error: &dyn Any) -> Option<&(dyn StdError + 'static)> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(error);
    }
    if let Some(error) = error.downcast_ref::<Box<dyn StdError + Send + Sync>>() {
        return Some(&**error);
    }
    if let Some(error) = error.downcast_ref::<Box<dyn StdError + Send>>() {
        return Some(&**error);
    }
    let boxed = error.downcast_ref::<Box<dyn StdError>>();
    boxed.map(|error| &**error)
}

/// Wrapper that the macros put around a function's result. Where the type is known, the method for `Error` types is chosen, which
/// includes the sources of the error.
#[derive(Debug)]
pub struct ReportedOutcome<T>(pub T);

impl<E: StdError + 'static> ReportedOutcome<Result<(), E>> {
    /// Returns why the function failed, or `None` if it succeeded.
    pub fn failure(self) -> Option<RankFailure> {
        self.0.err().map(|error| RankFailure::of(&error))
    }
}

/// Fallback of [`ReportedOutcome::failure`] for results whose error does not implement `Error`.
pub trait PlainOutcome {
    /// Returns why the function failed, or `None` if it succeeded.
    fn failure(self) -> Option<RankFailure>;
}

impl<T: RankOutcome> PlainOutcome for ReportedOutcome<T> {
    fn failure(self) -> Option<RankFailure> {
        self.0.failure()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fmt::{Formatter, Result as Written},
        io,
    };

    use super::*;
    use crate::error::OpError;

    #[derive(Debug)]
    struct Step(&'static str, Error);

    impl Display for Step {
        fn fmt(&self, f: &mut Formatter<'_>) -> Written {
            f.write_str(self.0)
        }
    }

    impl StdError for Step {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.1)
        }
    }

    fn failed() -> Error {
        Error::new("recv", ErrorKind::PeerFinished { rank: 1 })
    }

    fn full() -> Error {
        let why = io::Error::other("the disk is full");
        Error::new("recv", ErrorKind::Transport(why.into()))
    }

    #[test]
    fn an_error_of_any_type_is_printed_with_its_sources_once() {
        let told = ReportedOutcome(Err::<(), _>(Step("step 3", full())));
        let failure = told.failure().unwrap();
        assert_eq!(
            failure.sentence,
            "step 3: recv: the transport failed: the disk is full"
        );
        assert!(!failure.by_peer);
        let boxed: Box<dyn StdError> = Box::new(Step("step 4", full()));
        let failure = ReportedOutcome(Err::<(), _>(boxed)).failure().unwrap();
        assert!(failure.sentence.starts_with("step 4: recv: "));
        let failure = ReportedOutcome(Err::<(), _>("no such grid"))
            .failure()
            .unwrap();
        assert_eq!(failure.sentence, "no such grid");
        assert!(ReportedOutcome(()).failure().is_none());
        assert!(ReportedOutcome(Ok::<(), io::Error>(())).failure().is_none());
    }

    #[test]
    fn a_peer_is_at_fault_wherever_it_stands_in_the_chain() {
        let by_peer = |failure: Option<RankFailure>| failure.unwrap().by_peer;
        assert!(by_peer(ReportedOutcome(Err(failed())).failure()));
        assert!(by_peer(
            ReportedOutcome(Err(Step("step 5", failed()))).failure()
        ));
        let boxed: Box<dyn StdError + Send + Sync> = Box::new(Step("step 5", failed()));
        assert!(by_peer(ReportedOutcome(Err(boxed)).failure()));
        let with_buffer = OpError {
            error: failed(),
            buf: vec![1],
        };
        assert!(by_peer(ReportedOutcome(Err(with_buffer)).failure()));
        assert!(!by_peer(
            ReportedOutcome(Err(io::Error::other("x"))).failure()
        ));
    }
}
