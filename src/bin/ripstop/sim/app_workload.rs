//! The computation of an application between its exchanges, as times measured elsewhere, and how the time of a run was spent.

use std::time::Duration;

use ripstop::{Collectives, Comm, Max, Result, Sum, sim};

use super::scenario::{RankFigures, rank0_figures};

/// The part of the command line that describes an application. The scenario has defaults.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppWorkload {
    /// Cells or points in each dimension.
    pub(super) edge: Option<usize>,
    pub(super) costs: Option<WorkCosts>,
    /// Factor by which the processor is slower than the measured one.
    pub(super) slower: f64,
    /// Number of variables of a transform, and of chunks of each.
    pub(super) pieces: [usize; 2],
}

/// Nanoseconds for one of each of three kinds of work, which a scenario names.
pub(super) type WorkCosts = [f64; 3];

/// The defaults of the scenarios.
impl Default for AppWorkload {
    fn default() -> Self {
        Self {
            edge: None,
            costs: None,
            slower: 1.0,
            pieces: [4, 1],
        }
    }
}

impl AppWorkload {
    /// Returns the duration of work that took `ns` where it was measured.
    pub(super) fn time(&self, ns: f64) -> Duration {
        Duration::from_secs_f64(ns * self.slower * 1e-9)
    }

    /// Formats the load as on the command line.
    pub(super) fn command_line_text(&self) -> Option<String> {
        let mut words = Vec::new();
        words.extend(self.edge.map(|edge| format!("--edge {edge}")));
        words.extend(self.costs.map(|[a, b, c]| format!("--costs {a},{b},{c}")));
        let [vars, chunks] = self.pieces;
        words.extend((vars != 4).then(|| format!("--vars {vars}")));
        words.extend((chunks != 1).then(|| format!("--chunks {chunks}")));
        words.extend((self.slower != 1.0).then(|| format!("--slower {}", self.slower)));
        (!words.is_empty()).then(|| words.join(" "))
    }
}

/// Parts of the time of a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeSpent {
    pub(super) compute: Duration,
    /// Packing and unpacking.
    pub(super) pack: Duration,
    /// Waiting, which is exposed.
    pub(super) wait: Duration,
}

impl TimeSpent {
    pub(super) async fn computing(&mut self, comm: &Comm, time: Duration) {
        self.compute += time;
        busy(comm, time).await;
    }

    pub(super) async fn packing(&mut self, comm: &Comm, time: Duration) {
        self.pack += time;
        busy(comm, time).await;
    }

    pub(super) async fn waiting<R>(&mut self, comm: &Comm, awaited: impl Future<Output = R>) -> R {
        let since = sim::now(comm);
        let output = awaited.await;
        self.wait += sim::now(comm) - since;
        output
    }

    /// Returns the figures of one of `iters` steps that took `whole` together. They are the slowest rank's time, the work of
    /// the busiest rank, the exposed rest, and the mean waiting time, for messages or for ranks that had more to do.
    pub(super) async fn figures(
        self,
        comm: &Comm,
        whole: Duration,
        iters: u64,
    ) -> Result<RankFigures> {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / iters as f64;
        let most = [whole, self.compute + self.pack].map(each);
        let [step, busy] = comm.all_reduce(most, Max).await?;
        let all = [self.wait, self.pack].map(each);
        let [wait, pack] = comm.all_reduce(all, Sum).await?;
        let mean = |sum: f64| sum / comm.size() as f64;
        let figures = [
            ("step_us", "step µs", step),
            ("busy_us", "busiest µs", busy),
            ("exposed_us", "exposed µs", step - busy),
            ("exposed", "exposed %", 100.0 * (1.0 - busy / step)),
            ("pack_us", "mean pack µs", mean(pack)),
            ("wait_us", "mean wait µs", mean(wait)),
        ];
        Ok(rank0_figures(comm, figures))
    }
}

async fn busy(comm: &Comm, time: Duration) {
    if !time.is_zero() {
        sim::compute(comm, time).await;
    }
}

/// Parses `A,B,C`, in ns.
pub(super) fn costs(text: &str) -> std::result::Result<WorkCosts, String> {
    let numbers: Option<Vec<f64>> = text.split(',').map(number).collect();
    numbers
        .and_then(|numbers| numbers.try_into().ok())
        .ok_or_else(|| "expected three times in ns, such as 2.3,4.7,1".to_owned())
}

/// Parses a factor.
pub(super) fn factor(text: &str) -> std::result::Result<f64, String> {
    let factor = number(text).filter(|&factor| factor > 0.0);
    factor.ok_or_else(|| "expected a number greater than 0 and at most 1000000".to_owned())
}

fn number(text: &str) -> Option<f64> {
    let number: f64 = text.trim().parse().ok()?;
    (0.0..=1e6).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::{costs, factor};

    #[test]
    fn costs_are_three_numbers_and_a_factor_is_more_than_nothing() {
        assert_eq!(costs("1,2.5, 0"), Ok([1.0, 2.5, 0.0]));
        for text in ["", "1,2", "1,2,3,4", "1,-2,3", "1,nan,3", "1,inf,3"] {
            assert!(costs(text).is_err(), "{text}");
        }
        assert_eq!(factor("0.5"), Ok(0.5));
        for text in ["0", "-1", "x", "1e7"] {
            assert!(factor(text).is_err(), "{text}");
        }
    }
}
