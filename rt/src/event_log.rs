//! Prints what the runtime reports as events of the `tracing` crate, for programs that do not subscribe to them.

use std::{
    fmt::{self, Write as _},
    io::Write as _,
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    dispatcher::get_default,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
    subscriber::{DefaultGuard, NoSubscriber, set_default, set_global_default},
};
use tracing_subscriber::filter::Targets;

use crate::settings::Settings;

/// Prints events as lines of the standard error.
#[derive(Debug)]
pub(crate) struct EventPrinter {
    rank: u32,
    wanted: Targets,
}

impl EventPrinter {
    /// Prints events of this rank: if `RIPSTOP_LOG` is set, until the process ends, and otherwise only what this thread reports
    /// until the guard is dropped. A subscriber that the program has set before is left alone.
    pub(crate) fn start(settings: &Settings, rank: u32) -> Option<DefaultGuard> {
        if get_default(|current| !current.is::<NoSubscriber>()) {
            return None;
        }
        let printer = Self {
            rank,
            wanted: settings.log.targets(),
        };
        if settings.is_set("RIPSTOP_LOG") {
            // It fails if another thread has just set one, which then prints.
            let _ = set_global_default(printer);
            return None;
        }
        Some(set_default(printer))
    }
}

impl Subscriber for EventPrinter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let (target, level) = (metadata.target(), metadata.level());
        target.starts_with("ripstop") && self.wanted.would_enable(target, level)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let levels = self.wanted.iter().map(|(_, level)| level);
        levels.chain(self.wanted.default_level()).max()
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = EventLine(format!(
            "ripstop: rank {}: {}:",
            self.rank,
            word(*event.metadata().level())
        ));
        event.record(&mut line);
        line.0.push('\n');
        // In one piece, so that lines of several ranks do not mix. There is no other place to report a failed write.
        let _ = std::io::stderr().lock().write_all(line.0.as_bytes());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The line of an event. The message comes first, and other fields follow with their names.
struct EventLine(String);

impl Visit for EventLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string never fails.
        let _ = if field.name() == "message" {
            write!(self.0, " {value:?}")
        } else if field.name() == "rank" {
            Ok(()) // the line begins with it
        } else {
            write!(self.0, " {field}={value:?}")
        };
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        _ => "trace",
    }
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;

    use super::{EventPrinter, NoSubscriber, get_default};
    use crate::settings::Settings;

    fn prints() -> bool {
        get_default(|current| current.is::<EventPrinter>())
    }

    #[test]
    fn every_start_prints_unless_the_program_subscribes() {
        let settings = Settings::new();
        for rank in 0..2 {
            let guard = EventPrinter::start(&settings, rank);
            assert!(prints(), "start {rank}");
            drop(guard);
            assert!(!prints() && get_default(|current| current.is::<NoSubscriber>()));
        }
        let own = EventPrinter {
            rank: 7,
            wanted: super::Targets::new(),
        };
        with_default(own, || assert!(EventPrinter::start(&settings, 0).is_none()));
    }
}
