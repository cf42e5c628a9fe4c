//! What an application computes between its exchanges, as times that were measured elsewhere, and where its time goes.

use std::time::Duration;

use ripstop::{Collectives, Comm, Max, Result, Sum, sim};

use super::scenario::{Figures, all_found};

/// What the command line says of an application. What it leaves out the scenario knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Cells or points in each dimension.
    pub(super) edge: Option<usize>,
    pub(super) costs: Option<Costs>,
    /// Times as slow a processor as the one that was measured.
    pub(super) slower: f64,
    /// Variables of a transform, and chunks of each.
    pub(super) pieces: [usize; 2],
}

/// ns for one of each of three kinds, which a scenario names.
pub(super) type Costs = [f64; 3];

/// Nothing but what scenarios know.
impl Default for Load {
    fn default() -> Self {
        Self {
            edge: None,
            costs: None,
            slower: 1.0,
            pieces: [4, 1],
        }
    }
}

impl Load {
    /// What takes `ns` where it was measured.
    pub(super) fn time(&self, ns: f64) -> Duration {
        Duration::from_secs_f64(ns * self.slower * 1e-9)
    }

    /// How it is written on the command line.
    pub(super) fn words(&self) -> Option<String> {
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

/// Where the time of a rank went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) compute: Duration,
    /// Laying values together and apart.
    pub(super) pack: Duration,
    /// What is left exposed.
    pub(super) wait: Duration,
}

impl Spent {
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

    /// Of one of `iters` steps that took `whole` together: the slowest rank's time; what the busiest one did in it, and what
    /// that leaves, which is exposed; and how long a rank waited on average, for messages or for ranks that had more to do.
    pub(super) async fn figures(self, comm: &Comm, whole: Duration, iters: u64) -> Result<Figures> {
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
        Ok(all_found(comm, figures))
    }
}

async fn busy(comm: &Comm, time: Duration) {
    if !time.is_zero() {
        sim::compute(comm, time).await;
    }
}

/// `A,B,C`, in ns.
pub(super) fn costs(text: &str) -> std::result::Result<Costs, String> {
    let numbers: Option<Vec<f64>> = text.split(',').map(number).collect();
    numbers
        .and_then(|numbers| numbers.try_into().ok())
        .ok_or_else(|| "expected three times in ns, such as 2.3,4.7,1".to_owned())
}

/// A factor.
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
