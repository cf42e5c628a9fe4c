//! Settings about connections, for the drivers that make some.

use super::{CommPattern, ConnectPolicy};
use crate::provider::{
    DriverSetting,
    parsing::{one_of, within},
};

/// The time at which ranks are connected.
pub static CONNECT: DriverSetting = DriverSetting {
    name: "RIPSTOP_CONNECT",
    range: SCHEMES,
    meaning: "when two ranks connect, on a network with connections: at their first message (on-demand), at the start \
              (all-to-all), or once they exchange much data (hybrid)",
    default: "auto",
    accepts: |value| one_of(SCHEMES, value),
};

const SCHEMES: &str = "auto | on-demand | all-to-all | hybrid";

/// The ranks that communicate.
pub static PATTERN: DriverSetting = DriverSetting {
    name: "RIPSTOP_PATTERN",
    range: "unknown | dense | stencil:1..=1048576 peers",
    meaning: "with how many other ranks a rank exchanges messages: with all (dense), or with the given number; \
              RIPSTOP_CONNECT=auto decides by it. The same on all ranks",
    default: "unknown",
    accepts: |value| pattern(value).map(pattern_text),
};

/// Returns the policy that a value of [`CONNECT`] names, and `Some(None)` for `auto`.
#[must_use]
pub fn scheme(value: &str) -> Option<Option<ConnectPolicy>> {
    Some(match value {
        "auto" => None,
        "all-to-all" => Some(ConnectPolicy::AllToAll),
        "on-demand" => Some(ConnectPolicy::OnDemand),
        "hybrid" => Some(ConnectPolicy::Hybrid),
        _ => return None,
    })
}

/// Returns the pattern that a value of [`PATTERN`] names.
#[must_use]
pub fn pattern(value: &str) -> Option<CommPattern> {
    let peers = |peers| within(1..=1 << 20, peers).map(|peers| CommPattern::Sparse { peers });
    match value {
        "unknown" => Some(CommPattern::Unknown),
        "dense" => Some(CommPattern::Dense),
        sparse => sparse.strip_prefix("stencil:").and_then(peers),
    }
}

fn pattern_text(pattern: CommPattern) -> String {
    match pattern {
        CommPattern::Unknown => "unknown".to_owned(),
        CommPattern::Dense => "dense".to_owned(),
        CommPattern::Sparse { peers } => format!("stencil:{peers}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{CommPattern, PATTERN, SCHEMES, pattern, scheme};

    #[test]
    fn a_pattern_is_read_as_it_is_printed() {
        for (text, expected) in [
            ("unknown", CommPattern::Unknown),
            ("dense", CommPattern::Dense),
            ("stencil:6", CommPattern::Sparse { peers: 6 }),
        ] {
            assert_eq!(pattern(text), Some(expected));
            assert_eq!((PATTERN.accepts)(text).as_deref(), Some(text));
        }
        let bad = [
            "",
            "sparse",
            "stencil",
            "stencil:",
            "stencil:0",
            "stencil:-1",
        ];
        assert!(bad.iter().all(|text| pattern(text).is_none()));
    }

    #[test]
    fn every_scheme_of_the_range_is_one() {
        assert!(SCHEMES.split(" | ").all(|name| scheme(name).is_some()));
        assert!(scheme("never").is_none());
    }
}
