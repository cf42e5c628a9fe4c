//! Which events of the library are printed.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// Which events of the library are printed: the value of `RIPSTOP_LOG`.
///
/// It lists levels with commas between them, each for all events or for those of a target: `ripstop::fabric=debug,warn`. The
/// longest target that fits decides, and a target without a level stands for all its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFilter(String);

impl EventFilter {
    /// What is allowed, for users.
    pub(super) const RANGE: &'static str = "off | error | warn | info | debug | trace, or levels of targets, such as \
                                            ripstop::fabric=debug,warn (ripstop::boot, comm, collective, window, fabric, op)";

    /// Prints warnings and errors.
    pub(super) fn warnings() -> Self {
        Self("warn".to_owned())
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_valid = text.split(',').all(is_directive);
        is_valid.then(|| Self(text.to_owned()))
    }

    pub(super) fn text(&self) -> String {
        self.0.clone()
    }

    pub(crate) fn targets(&self) -> Targets {
        self.0.parse().expect("it was checked when it was set")
    }
}

fn is_directive(directive: &str) -> bool {
    match directive.split_once('=') {
        Some((target, level)) => is_target(target) && is_level(level),
        None => is_target(directive) || is_level(directive),
    }
}

fn is_target(text: &str) -> bool {
    let [library, part] = ["ripstop", "ripstop::"];
    text == library
        || text
            .strip_prefix(part)
            .is_some_and(|name| PARTS.contains(&name))
}

fn is_level(text: &str) -> bool {
    // The subscriber takes no text for a level.
    !text.is_empty() && text.parse::<LevelFilter>().is_ok()
}

/// Parts of the library that report events, as the last names of their targets.
const PARTS: [&str; 6] = ["boot", "comm", "collective", "window", "fabric", "op"];

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::EventFilter;

    #[test]
    fn a_level_holds_for_its_target_and_the_bare_one_for_the_others() {
        let filter = EventFilter::parse("ripstop::fabric=debug,warn").unwrap();
        let targets = filter.targets();
        for (target, level, is_printed) in [
            ("ripstop::fabric", Level::DEBUG, true),
            ("ripstop::fabric", Level::TRACE, false),
            ("ripstop::boot", Level::INFO, false),
            ("ripstop::boot", Level::WARN, true),
        ] {
            assert_eq!(
                targets.would_enable(target, &level),
                is_printed,
                "{target} {level}"
            );
        }
        let all = EventFilter::parse("ripstop::op").unwrap().targets();
        assert!(all.would_enable("ripstop::op", &Level::TRACE));
        assert!(!all.would_enable("ripstop::boot", &Level::ERROR));
    }

    #[test]
    fn words_that_are_neither_levels_nor_targets_are_refused() {
        for text in [
            "off",
            "error",
            "warn",
            "info",
            "debug",
            "trace",
            "ripstop=info",
        ] {
            assert!(EventFilter::parse(text).is_some(), "{text}");
        }
        for text in [
            "",
            "verbose",
            "warn,",
            "ripstop::fabric=",
            "ripstop::fabrik=debug",
            "ripstop::fabric=loud",
            "tokio=debug",
            "a b",
        ] {
            assert!(EventFilter::parse(text).is_none(), "{text}");
        }
    }
}
