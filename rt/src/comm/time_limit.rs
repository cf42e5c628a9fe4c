//! Time limits of futures that have none of their own.

use std::{future::poll_fn, panic::Location, pin::pin, task::Poll, time::Duration};

use super::Comm;
use crate::{
    error::{Error, ErrorKind, Result},
    view::OperationInFlight,
};

/// Most operations that an error lists. The program has more of them at hand, by `waiting`.
const LISTED_MAX: usize = 3;

impl Comm {
    /// Waits for `future` for at most `limit`, which begins with this call. For futures that have no `timeout` of their own:
    /// collectives, fences, locks, probes, and communicators and windows that are being made.
    ///
    /// At the limit, the future is dropped; the table in the book's chapter on operations says for each of them what that does.
    /// To keep the operation, pass `&mut` of it: it is still in flight afterwards, and can be awaited again.
    ///
    /// Output: `Result<F::Output>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, ErrorKind};
    /// # use std::{pin::pin, time::Duration};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// if world.rank() == 0 {
    ///     let mut making = pin!(world.dup());
    ///     let late = world.timeout(Duration::from_millis(10), &mut making).await;
    ///     let error = late.expect_err("rank 1 waits for the message below");
    ///     assert!(matches!(error.kind, ErrorKind::TimedOut));
    ///     world.send(1, 7, [0_u8]).await?;
    ///     making.await?;
    /// } else {
    ///     world.recv::<u8>(0, 7).await?;
    ///     world.dup().await?;
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// `TimedOut`. The error shows what this rank has in flight, as [`RuntimeHandle::waiting`](crate::RuntimeHandle::waiting)
    /// does.
    #[track_caller]
    pub fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output>> + use<F> {
        let at = Location::caller();
        let comm = self.clone();
        let sleep = self.sleep(limit);
        async move {
            let (mut future, mut sleep) = (pin!(future), pin!(sleep));
            poll_fn(|cx| match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Ok(output)),
                Poll::Pending => sleep.as_mut().poll(cx).map(|()| Err(comm.timed_out(at))),
            })
            .await
        }
    }

    #[cold]
    fn timed_out(&self, at: &'static Location<'static>) -> Error {
        let mut error = self
            .error_here("timeout", ErrorKind::TimedOut)
            .called_at(at);
        error.note = Some(in_flight(&self.runtime().waiting()));
        error
    }
}

fn in_flight(waiting: &[OperationInFlight]) -> String {
    if waiting.is_empty() {
        return "this rank has no operation in flight".to_owned();
    }
    let (listed, more) = waiting.split_at(waiting.len().min(LISTED_MAX));
    let mut words: Vec<String> = listed.iter().map(ToString::to_string).collect();
    if !more.is_empty() {
        words.push(format!("{} more", more.len()));
    }
    format!("this rank has in flight: {}", words.join("; "))
}
