//! Names of algorithms, and the reasons why one does not fit.

use std::{error, fmt};

/// The order of operands that a reduction needs, or an algorithm keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OperandOrder {
    /// Any order: the operation commutes.
    Any,
    /// Rank 0's operand first, then rank 1's, and so on; only the grouping is free.
    RankOrder,
}

/// The reason why an algorithm cannot do what was asked. The caller chooses another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnfitPlan {
    /// The algorithm changes the order of ranks, and the operation does not commute.
    Order(&'static str),
    /// The algorithm needs a power of two ranks.
    PowerOfTwo(&'static str),
    /// The algorithm needs blocks of one length, from [`BlockPartition::each`](super::BlockPartition::each).
    Ragged(&'static str),
    /// The algorithm needs a map of the nodes: [`RankLayout::on`](super::RankLayout::on).
    NoNodes(&'static str),
    /// The algorithm needs nodes whose ranks are consecutive.
    Scattered(&'static str),
    /// The algorithm's parameter is 0: a window without room, a tree without children.
    Zero(&'static str),
    /// The algorithm's parameter is more than this: with more steps, the steps take longer than the data.
    Many(&'static str, usize),
}

impl UnfitPlan {
    /// Returns an error if there is a parameter and it is 0.
    pub(crate) fn require_positive(
        name: &'static str,
        parameter: Option<usize>,
    ) -> Result<(), Self> {
        if parameter == Some(0) {
            return Err(Self::Zero(name));
        }
        Ok(())
    }

    /// Returns an error if the operation needs more order than `kept`.
    pub(crate) fn require_order(
        name: &'static str,
        kept: OperandOrder,
        needed: OperandOrder,
    ) -> Result<(), Self> {
        if needed > kept {
            return Err(Self::Order(name));
        }
        Ok(())
    }
}

impl fmt::Display for UnfitPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, why) = match self {
            Self::Many(name, most) => {
                return write!(
                    f,
                    "`{name}` takes a number up to {most}: choose a smaller one"
                );
            }
            Self::Order(name) => (
                name,
                "changes the order of ranks, but the operation does not commute",
            ),
            Self::PowerOfTwo(name) => (name, "needs a power of two ranks"),
            Self::Ragged(name) => (name, "needs blocks of equal length"),
            Self::NoNodes(name) => (name, "needs to know which ranks share a node"),
            Self::Scattered(name) => (name, "needs nodes with consecutive ranks"),
            Self::Zero(name) => (name, "takes a number of at least 1"),
        };
        write!(f, "`{name}` {why}: choose another algorithm")
    }
}

impl error::Error for UnfitPlan {}

/// No algorithm has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAlgorithm {
    pub(crate) collective: &'static str,
    pub(crate) given: String,
    pub(crate) names: &'static [&'static str],
}

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names.join(", ");
        write!(
            f,
            "`{}` is not an algorithm of {}: use one of {names}",
            self.given, self.collective
        )
    }
}

impl error::Error for UnknownAlgorithm {}

/// Declares the algorithms of one collective: an enum with `NAMES`, `Display` and `FromStr`. A parameter is written after a
/// colon, is at least 1, and has a default.
macro_rules! algorithms {
    (
        $(#[$doc:meta])*
        $name:ident of $collective:literal {
            $($(#[$about:meta])* $variant:ident $({ $(#[$what:meta])* $param:ident = $default:literal })? as $text:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$about])* $variant $({ $(#[$what])* $param: usize })?,)*
        }

        impl $name {
            /// Every algorithm, with the default of its parameter.
            pub const ALL: &'static [Self] = &[$(Self::$variant $({ $param: $default })?,)*];

            const NAMES: &'static [&'static str] = &[$(concat!($text $(, "[:", stringify!($param), "]")?),)*];

            /// Returns the name of the algorithm, without its parameter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $text,)*
                }
            }

            /// Returns the same algorithm with this parameter, if it takes one.
            const fn with(self, parameter: usize) -> Option<Self> {
                match self {
                    $(Self::$variant { .. } => $crate::plan::names::algorithms!(@with parameter $variant $($param)?),)*
                }
            }

            const fn parameter(self) -> Option<usize> {
                match self {
                    $(Self::$variant $({ $param })? => $crate::plan::names::algorithms!(@some $($param)?),)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())?;
                self.parameter().map_or(Ok(()), |parameter| write!(f, ":{parameter}"))
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::plan::UnknownAlgorithm;

            fn from_str(given: &str) -> Result<Self, Self::Err> {
                let (name, parameter) = $crate::plan::names::split_parameter(given);
                let named = Self::ALL.iter().copied().find(|algorithm| algorithm.name() == name);
                let fitted = named.and_then(|algorithm| match parameter {
                    None => Some(algorithm),
                    Some(parameter) => algorithm.with(parameter?),
                });
                fitted.ok_or_else(|| $crate::plan::UnknownAlgorithm {
                    collective: $collective,
                    given: given.to_owned(),
                    names: Self::NAMES,
                })
            }
        }
    };
    (@with $given:ident $variant:ident) => {{
        let _ = $given;
        None
    }};
    (@with $given:ident $variant:ident $param:ident) => { Some(Self::$variant { $param: $given }) };
    (@some) => { None };
    (@some $param:ident) => { Some($param) };
}
pub(crate) use algorithms;

/// Splits `name` or `name:parameter`. `Some(None)` is a parameter that is not a number of at least 1.
pub(crate) fn split_parameter(given: &str) -> (&str, Option<Option<usize>>) {
    given.split_once(':').map_or((given, None), |(name, text)| {
        let parameter = text.parse().ok().filter(|number| *number > 0);
        (name, Some(parameter))
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{AllToAll, Barrier},
        UnfitPlan,
    };

    #[test]
    fn a_name_leads_back_to_its_algorithm() {
        for algorithm in AllToAll::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(*algorithm));
        }
        let window = "pairwise:7".parse();
        assert_eq!(window, Ok(AllToAll::Pairwise { window: 7 }));
        assert!("pairwise".parse::<AllToAll>().is_ok());
    }

    #[test]
    fn a_wrong_name_or_parameter_is_answered_with_the_names() {
        for given in ["magic", "kary:0", "kary:x", "kary:", "dissemination:2", ""] {
            let error = given.parse::<Barrier>().unwrap_err().to_string();
            let names = "use one of dissemination, binomial, kary[:arity], flat, leaders";
            assert_eq!(
                error,
                format!("`{given}` is not an algorithm of barrier: {names}")
            );
        }
    }

    #[test]
    fn an_algorithm_that_does_not_fit_says_why() {
        let error = UnfitPlan::PowerOfTwo("xor").to_string();
        assert_eq!(
            error,
            "`xor` needs a power of two ranks: choose another algorithm"
        );
    }
}
