//! Forwards what the Rust half logs to Python's `logging`.
//!
//! Warnings and errors are letters to the event loop that was opened last and is still open; it logs them as
//! `leasehold.worker`, `leasehold.store` and so on. If `LEASEHOLD_LOG` is set, they are printed on standard error instead,
//! as by the command line: without a configuration `logging` prints warnings there too, and both would say everything
//! twice.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard, Once, TryLockError, Weak};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry, Scope};
use tracing_subscriber::util::SubscriberInitExt;

use crate::mailbox::Post;

/// The variable that makes the Rust half print instead.
const LOG: &str = "LEASEHOLD_LOG";
/// The crate whose events about failed attempts may repeat what Python has logged.
const WORKER: &str = "leasehold_worker";
/// Its messages about them.
const FAILED: [&str; 2] = ["task failed", "attempt failed, task will be retried"];
/// Tries to lock the listeners. A process that was forked while a thread held them would wait for ever.
const TRIES: u32 = 1_000;

/// The open event loops, newest last.
static LISTENERS: Mutex<Vec<Weak<Post>>> = Mutex::new(Vec::new());

/// One event, as `logging` takes it.
#[derive(Clone)]
pub(crate) struct LogLine {
    /// A level of `logging`.
    pub(crate) level: u8,
    /// The name of a logger.
    pub(crate) logger: String,
    /// The message, the fields of its spans and its own, and its error.
    pub(crate) text: String,
}

/// Starts to forward, for as long as the process lives, unless the Rust half prints itself.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if std::env::var_os(LOG).is_none() {
            let filter = FilterFn::new(is_wanted).with_max_level_hint(LevelFilter::INFO);
            // It fails if the process has a subscriber already, which then is the one to use.
            let _ = tracing_subscriber::registry().with(Forward.with_filter(filter)).try_init();
        }
    });
}

/// Makes an event loop receive what is logged, while it is open.
pub(crate) fn listen(post: &Arc<Post>) {
    if let Some(mut listeners) = listeners() {
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(post));
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

/// Events from `WARN` on, and the spans around them, whose fields say which task an event is about.
fn is_wanted(metadata: &Metadata<'_>) -> bool {
    if metadata.is_span() {
        metadata.target().starts_with("leasehold") && *metadata.level() <= Level::INFO
    } else {
        *metadata.level() <= Level::WARN
    }
}

fn send(line: &LogLine) {
    let posts: Vec<Arc<Post>> = listeners()
        .map_or_else(Vec::new, |listeners| listeners.iter().rev().filter_map(Weak::upgrade).collect());
    // Not under the lock: a letter that is dropped may log, too. Without an open event loop nobody can be told.
    let _ = posts.into_iter().any(|post| post.log(line.clone()));
}

fn listeners() -> Option<MutexGuard<'static, Vec<Weak<Post>>>> {
    for _ in 0..TRIES {
        match LISTENERS.try_lock() {
            Ok(listeners) => return Some(listeners),
            Err(TryLockError::Poisoned(listeners)) => return Some(listeners.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// The fields of a span or an event: its message, its error, and the rest as ` name=value`.
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

/// An extension of a span: the failure of its run is in Python's log.
struct LoggedByPython;

/// The layer that turns events into lines.
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

/// The level as `logging` counts.
fn number_of(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        _ => 10,
    }
}

/// The logger of a crate: `leasehold.worker` for `leasehold_worker`.
fn logger_of(origin: &str) -> String {
    match origin.strip_prefix("leasehold_") {
        Some(part) => format!("leasehold.{part}"),
        None if origin == "leasehold" => origin.to_owned(),
        None => format!("leasehold.{origin}"),
    }
}
