//! The choice of algorithms: by cost, or by name.

use ripstop_rt::{Choices, Comm, DriverCost, Settings};

use crate::{
    Collectives,
    choose::{Algorithm, Shape, cheapest},
    cost::{LogGP, Machine},
    plan::{
        AllGather, AllReduce, AllToAll, Barrier, Bcast, Gather, Reduce, ReduceScatter, Scatter,
    },
};

/// The algorithms that calls must use. If none is named, the settings or the cost decide.
///
/// All ranks must name the same algorithm. One that does not fit a call is an error of the call.
///
/// ```
/// use ripstop_collectives::{Tuning, plan::AllReduce};
/// let tuning = Tuning::AUTO.all_reduce(AllReduce::Ring);
/// # let _ = tuning;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    pub(crate) barrier: Option<Barrier>,
    pub(crate) bcast: Option<Bcast>,
    pub(crate) gather: Option<Gather>,
    pub(crate) scatter: Option<Scatter>,
    pub(crate) all_gather: Option<AllGather>,
    pub(crate) all_to_all: Option<AllToAll>,
    pub(crate) reduce: Option<Reduce>,
    pub(crate) all_reduce: Option<AllReduce>,
    pub(crate) reduce_scatter: Option<ReduceScatter>,
}

/// The tuning without names. It is a static, because calls compare addresses first.
pub(crate) static AUTO: Tuning = Tuning::AUTO;

macro_rules! setters {
    ($($collective:ident: $algorithm:ident,)*) => {
        impl Tuning {
            /// No algorithm is named.
            pub const AUTO: Self = Self { $($collective: None,)* };

            $(
                #[doc = concat!("With this algorithm for every `", stringify!($collective), "`.")]
                #[must_use]
                pub const fn $collective(self, algorithm: $algorithm) -> Self {
                    Self { $collective: Some(algorithm), ..self }
                }
            )*
        }
    };
}

setters! {
    barrier: Barrier,
    bcast: Bcast,
    gather: Gather,
    scatter: Scatter,
    all_gather: AllGather,
    all_to_all: AllToAll,
    reduce: Reduce,
    all_reduce: AllReduce,
    reduce_scatter: ReduceScatter,
}

/// A communicator whose collectives use named algorithms. Made by [`Collectives::tuned`].
#[derive(Clone, Debug)]
pub struct Tuned {
    comm: Comm,
    tuning: Tuning,
}

impl Tuned {
    pub(crate) fn new(comm: &Comm, tuning: Tuning) -> Self {
        let comm = comm.clone();
        Self { comm, tuning }
    }
}

impl Collectives for Comm {
    #[inline]
    fn communicator(&self) -> &Comm {
        self
    }

    #[inline]
    fn tuning(&self) -> &Tuning {
        &AUTO
    }
}

impl Collectives for Tuned {
    #[inline]
    fn communicator(&self) -> &Comm {
        &self.comm
    }

    #[inline]
    fn tuning(&self) -> &Tuning {
        &self.tuning
    }
}

/// Inputs of the choice of an algorithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChoiceContext<'a> {
    pub(crate) tuning: &'a Tuning,
    pub(crate) settings: &'a Settings,
    pub(crate) machine: Machine,
}

impl ChoiceContext<'_> {
    /// Returns the algorithm that the call names, otherwise the one that the settings name if it fits, otherwise the cheapest.
    pub(crate) fn choose<A: Algorithm>(&self, named: Option<A>, shape: &Shape) -> A {
        named
            .or_else(|| set_for(self.settings, shape, &self.machine))
            .unwrap_or_else(|| cheapest(shape, &self.machine))
    }
}

/// Returns the algorithm that settings name, if they name one and it fits.
#[must_use]
pub fn set_for<A: Algorithm>(settings: &Settings, shape: &Shape, machine: &Machine) -> Option<A> {
    let name = settings.algorithm(A::COLLECTIVE)?;
    // The table of settings lists the names; a test compares them.
    let algorithm: A = name.parse().ok()?;
    algorithm.fits(shape, machine).then_some(algorithm)
}

/// Describes a runtime's fabric for the chooser: all ranks at the same distance, or `per_node` of them on each node.
#[must_use]
pub fn machine_of(choices: &Choices, per_node: usize) -> Machine {
    Machine {
        inside: link_of(
            choices.cost_inside.as_ref().unwrap_or(&choices.cost),
            choices.round_ns,
        ),
        across: link_of(&choices.cost, choices.round_ns),
        per_node: per_node.max(1),
        processors: choices.processors,
        slot_bytes: choices.slot_bytes as usize,
        slot_moved_bytes: choices.slot_moved_bytes as usize,
        copy_ns_per_kib: choices.cost.copy_ns_per_kib,
        reduce_ns_per_kib: 2.0 * choices.cost.copy_ns_per_kib,
    }
}

fn link_of(cost: &DriverCost, round_ns: f64) -> LogGP {
    LogGP {
        latency_ns: cost.latency_ns + round_ns,
        overhead_ns: f64::midpoint(cost.send_ns, cost.recv_ns),
        gap_ns: cost.send_ns,
        // A rank that gets its processor back finds nothing in the caches.
        ns_per_kib: if round_ns > 0.0 {
            cost.message_ns_per_kib
        } else {
            cost.get_ns_per_kib.min(cost.message_ns_per_kib)
        },
    }
}

#[cfg(test)]
mod tests {
    use ripstop_rt::Settings;

    use super::{Algorithm, AllReduce, AllToAll, Barrier};
    use crate::plan::{AllGather, Bcast, Gather, Reduce, ReduceScatter, Scatter};

    /// Checks that every name is a value of its variable, and that the variable has no other values.
    fn agrees<A: Algorithm>(variable: &str, all: &[A]) {
        let set = |value: &str| Settings::from_variables([(variable.to_owned(), value.to_owned())]);
        for algorithm in all {
            let settings = set(&algorithm.to_string()).unwrap();
            let name = settings.algorithm(A::COLLECTIVE).unwrap();
            assert_eq!(name.parse(), Ok(*algorithm));
        }
        let error = set("magic").unwrap_err().to_string();
        assert!(
            error.contains(variable) && error.contains("magic"),
            "{error}"
        );
        let names = "magic".parse::<A>().unwrap_err().to_string();
        let (_, names) = names.split_once("use one of ").unwrap();
        let listed = names.replace(", ", " | ");
        assert!(
            error.contains(&format!("auto | {listed}")),
            "{error}\n{listed}"
        );
    }

    #[test]
    fn the_settings_know_the_names_of_all_algorithms() {
        agrees("RIPSTOP_BARRIER", Barrier::ALL);
        agrees("RIPSTOP_BCAST", Bcast::ALL);
        agrees("RIPSTOP_GATHER", Gather::ALL);
        agrees("RIPSTOP_SCATTER", Scatter::ALL);
        agrees("RIPSTOP_ALLGATHER", AllGather::ALL);
        agrees("RIPSTOP_ALLTOALL", AllToAll::ALL);
        agrees("RIPSTOP_REDUCE", Reduce::ALL);
        agrees("RIPSTOP_ALLREDUCE", AllReduce::ALL);
        agrees("RIPSTOP_REDUCE_SCATTER", ReduceScatter::ALL);
    }
}
