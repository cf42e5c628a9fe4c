//! A layer of the `tracing-subscriber` crate that puts the spans of an application into its timeline.
//!
//! With `RIPSTOP_TRACE=FILE`, each rank of a job records its communication, and `ripstop trace FILE` draws all ranks on one
//! timeline. With this layer, the timeline also says what the application was doing: each span of the `tracing` crate is a bar
//! of its rank and thread, above the operations of the rank, and spans inside of it are below it.
//!
//! ```
//! use tracing::info_span;
//! use tracing_subscriber::prelude::*;
//!
//! tracing_subscriber::registry()
//!     .with(ripstop_tracing::layer())
//!     .init();
//! let sum: f64 = info_span!("sum").in_scope(|| (0..1000).map(f64::from).sum());
//! assert_eq!(sum, 499_500.0);
//! ```
//!
//! # What a span is
//!
//! A span lasts from its first entry to its last exit, so that an instrumented future is one bar, with the times at which it
//! waited. How long threads were inside is recorded beside it. It belongs to the thread that entered it first. Spans that have
//! not ended when the rank leaves its job end there. Spans that begin before [`Runtime::init`](ripstop_rt::Runtime::init), or
//! after the runtime was closed, are not recorded.
//!
//! If several ranks are threads of one process, a thread's spans belong to the rank that began on this thread. Spans of other
//! threads are not recorded then.
//!
//! # Costs
//!
//! While no rank of the process records a trace, a span that no other layer wants costs one look at its call site. In a trace,
//! a span takes about 20 bytes and four short locks; each entry and each exit reads the clock once.

use ripstop_rt::internal::trace::spans::{ApplicationSpan, is_recording};
use tracing::{
    Metadata, Subscriber,
    span::{Attributes, Id},
    subscriber::Interest,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, Filter},
    registry::LookupSpan,
};

/// Returns the layer. It takes no part in which spans and events other layers see.
pub fn layer<S>() -> impl Layer<S> + Send + Sync
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    SpanLayer.with_filter(WhileRecording)
}

/// Reports spans to the trace of the rank.
struct SpanLayer;

impl SpanLayer {
    /// Calls `report` with what the trace knows of the span, if it knows the span.
    fn with_span<S>(id: &Id, context: &Context<'_, S>, report: impl FnOnce(&ApplicationSpan))
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        if let Some(span) = context.span(id)
            && let Some(recorded) = span.extensions().get::<ApplicationSpan>()
        {
            report(recorded);
        }
    }
}

impl<S> Layer<S> for SpanLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        // Another layer of this kind in the same subscriber has begun it.
        if span.extensions().get::<ApplicationSpan>().is_some() {
            return;
        }
        let metadata = span.metadata();
        let (file, line) = (metadata.file(), metadata.line());
        let began = ApplicationSpan::begin(
            metadata.name(),
            file.unwrap_or_else(|| metadata.target()),
            line.unwrap_or(0),
        );
        if let Some(began) = began {
            span.extensions_mut().insert(began);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        Self::with_span(id, &context, ApplicationSpan::enter);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        Self::with_span(id, &context, ApplicationSpan::exit);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(span) = context.span(&id) {
            drop(span.extensions_mut().remove::<ApplicationSpan>());
        }
    }
}

/// Lets spans through while a rank of the process records a trace. The runtime makes call sites ask again when that changes.
struct WhileRecording;

impl<S> Filter<S> for WhileRecording {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        metadata.is_span() && is_recording()
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_span() && is_recording() {
            Interest::always()
        } else {
            Interest::never()
        }
    }
}
