//! Forwards log events of the Rust crates to Python's `logging`.
//!
//! Warnings and errors are sent to the most recently opened event loop that is still open; it logs them as
//! `leasehold.worker`, `leasehold.store` and so on. If `LEASEHOLD_LOG` is set, they are printed on standard error instead,
//! as by the command line: without a configuration `logging` prints warnings there too, and every line would appear twice.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard, Once, TryLockError, Weak};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry, Scope};
use tracing_subscriber::util::SubscriberInitExt;

use crate::event_queue::EventQueue;

/// Environment variable that makes the Rust crates print instead.
const LOG: &str = "LEASEHOLD_LOG";
/// Crate whose events about failed attempts may repeat those logged by Python.
const WORKER: &str = "leasehold_worker";
/// Messages of those events.
const FAILED: [&str; 2] = ["task failed", "attempt failed, task will be retried"];
/// Number of tries to lock the listeners. A process forked while a thread held the lock would wait forever.
const TRIES: u32 = 1_000;

/// Open event loops, newest last.
static LISTENERS: Mutex<Vec<Weak<EventQueue>>> = Mutex::new(Vec::new());

/// One event, in the form that `logging` takes.
#[derive(Clone)]
pub(crate) struct LogLine {
    /// Level of `logging`.
    pub(crate) level: u8,
    /// Name of the logger.
    pub(crate) logger: String,
    /// Message, fields of the spans, fields of the event, and error.
    pub(crate) text: String,
}

/// Starts forwarding for the lifetime of the process, unless the Rust crates print themselves.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if std::env::var_os(LOG).is_none() {
            let filter = FilterFn::new(is_wanted).with_max_level_hint(LevelFilter::INFO);
            // Fails if the process already has a subscriber, which is then used.
            let _ = tracing_subscriber::registry().with(Forward.with_filter(filter)).try_init();
        }
    });
}

/// Sends log lines to an event loop while it is open.
pub(crate) fn listen(events: &Arc<EventQueue>) {
    if let Some(mut listeners) = listeners() {
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(events));
    }
}

/// Marks the current run of a task as logged by Python, with its traceback: the worker's own event about it is dropped.
pub(crate) fn mark_failure_as_logged() {
    tracing::dispatcher::get_default(|dispatch| {
        let (current, registry) = (dispatch.current_span(), dispatch.downcast_ref::<Registry>());
        let span = current.id().and_then(|id| registry?.span(id));
        if let Some(span) = span {
            span.extensions_mut().replace(LoggedByPython);
        }
    });
}

/// Selects events from `WARN` on, and the spans around them, whose fields name the task.
fn is_wanted(metadata: &Metadata<'_>) -> bool {
    if metadata.is_span() {
        metadata.target().starts_with("leasehold") && *metadata.level() <= Level::INFO
    } else {
        *metadata.level() <= Level::WARN
    }
}

fn send(line: &LogLine) {
    let queues: Vec<Arc<EventQueue>> = listeners()
        .map_or_else(Vec::new, |listeners| listeners.iter().rev().filter_map(Weak::upgrade).collect());
    // Not under the lock: dropping an event may log, too. Without an open event loop the line is lost.
    let _ = queues.into_iter().any(|events| events.log(line.clone()));
}

fn listeners() -> Option<MutexGuard<'static, Vec<Weak<EventQueue>>>> {
    for _ in 0..TRIES {
        match LISTENERS.try_lock() {
            Ok(listeners) => return Some(listeners),
            Err(TryLockError::Poisoned(listeners)) => return Some(listeners.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Fields of a span or an event: message, error, and the rest as ` name=value`.
#[derive(Default)]
struct Fields {
    message: String,
    error: Option<String>,
    rest: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "error" => write!(self.error.insert(String::new()), "{value:?}"),
            name => write!(self.rest, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Extension of a span whose failure Python has logged.
struct LoggedByPython;

/// Layer that turns events into lines.
struct Forward;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Forward {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().replace(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let mut fields = Fields::default();
        event.record(&mut fields);
        let origin = target.split("::").next().unwrap_or(target);
        let (mut text, mut is_logged) = (fields.message.clone(), false);
        for span in context.event_scope(event).into_iter().flat_map(Scope::from_root) {
            let extensions = span.extensions();
            is_logged |= extensions.get::<LoggedByPython>().is_some();
            if let Some(of_span) = extensions.get::<Fields>() {
                text.push_str(&of_span.rest);
            }
        }
        if is_logged && origin == WORKER && FAILED.contains(&fields.message.as_str()) {
            return;
        }
        text.push_str(&fields.rest);
        if let Some(error) = fields.error {
            text.push_str(": ");
            text.push_str(&error);
        }
        send(&LogLine { level: number_of(level), logger: logger_of(origin), text });
    }
}

/// Returns the numeric level of `logging`.
fn number_of(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        _ => 10,
    }
}

/// Returns the logger of a crate: `leasehold.worker` for `leasehold_worker`.
fn logger_of(origin: &str) -> String {
    match origin.strip_prefix("leasehold_") {
        Some(part) => format!("leasehold.{part}"),
        None if origin == "leasehold" => origin.to_owned(),
        None => format!("leasehold.{origin}"),
    }
}
