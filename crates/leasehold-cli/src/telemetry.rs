//! Logs and spans.
//!
//! `LEASEHOLD_LOG` filters the log on standard error; by default, warnings and errors are printed. With the feature `otel`,
//! and if `OTEL_EXPORTER_OTLP_ENDPOINT` is set, spans are sent to a collector of OpenTelemetry: one for each run of a task,
//! and those that `LEASEHOLD_LOG` enables. Remaining spans are sent when the program ends.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::printer;

/// Variable with the log filter.
const LOG: &str = "LEASEHOLD_LOG";

/// Running telemetry.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    #[cfg(feature = "otel")]
    provider: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

/// Starts telemetry for the command line. Must be called before any runtime is entered: the exporter has its own. The demo kills
/// processes and says so itself, so it logs only errors.
#[must_use]
pub(crate) fn start(is_demo: bool) -> Telemetry {
    start_at(if is_demo { LevelFilter::ERROR } else { LevelFilter::WARN })
}

/// Starts telemetry; `level` is the default log level.
fn start_at(level: LevelFilter) -> Telemetry {
    let filter = EnvFilter::builder().with_default_directive(level.into()).with_env_var(LOG).from_env_lossy();
    let printed = tracing_subscriber::fmt::layer()
        .with_writer(AboveBars::default)
        .with_ansi(is_coloured())
        .with_filter(filter);
    let registry = tracing_subscriber::registry().with(printed);
    #[cfg(feature = "otel")]
    if let Some(provider) = otel::provider() {
        // Fails if the host program has installed a subscriber already.
        let _ = registry.with(otel::layer(&provider)).try_init();
        return Telemetry { provider: Some(provider) };
    }
    let _ = registry.try_init();
    Telemetry::default()
}

/// Starts telemetry in a host program, until that ends. Prints only errors by default: a library reports warnings through
/// the logging of its host program.
pub(crate) fn start_for_process() {
    static STARTED: OnceLock<Telemetry> = OnceLock::new();
    STARTED.get_or_init(|| start_at(LevelFilter::ERROR));
}

/// True if log lines are coloured: on a terminal, unless `NO_COLOR` is set.
fn is_coloured() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wanted && io::stderr().is_terminal()
}

/// Buffer of one event, printed as a whole on drop.
#[derive(Default)]
struct AboveBars(Vec<u8>);

impl io::Write for AboveBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for AboveBars {
    fn drop(&mut self) {
        printer::above_bars(&self.0);
    }
}

impl Telemetry {
    /// Sends the remaining spans.
    #[cfg_attr(not(feature = "otel"), expect(clippy::unused_self, reason = "no spans without the feature"))]
    pub(crate) fn end(self) {
        #[cfg(feature = "otel")]
        if let Some(Err(error)) = self.provider.map(|provider| provider.shutdown()) {
            tracing::warn!(%error, "failed to send remaining spans");
        }
    }
}

#[cfg(feature = "otel")]
mod otel {
    use super::{EnvFilter, LOG, Layer};
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_otlp::SpanExporter;
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::Subscriber;
    use tracing_subscriber::registry::LookupSpan;

    /// Variables with the address of a collector. The crates of OpenTelemetry read its other variables.
    const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

    /// Creates the provider, which sends spans in batches; `None` if no collector is configured.
    pub(super) fn provider() -> Option<SdkTracerProvider> {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        ENDPOINTS.into_iter().find(is_set)?;
        let exporter = SpanExporter::builder().with_http().build();
        let exporter =
            exporter.inspect_err(|error| tracing::error!(%error, "failed to create span exporter")).ok()?;
        let resource = Resource::builder();
        // The variable overrides the default service name.
        let resource = if std::env::var_os("OTEL_SERVICE_NAME").is_some() {
            resource
        } else {
            resource.with_service_name("leasehold")
        };
        Some(
            SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(resource.build())
                .build(),
        )
    }

    /// Exports the spans of the program: the runs of tasks, and those that `LEASEHOLD_LOG` enables. Excludes the crates
    /// that send spans, which would otherwise cause new ones for ever.
    pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(
        provider: &SdkTracerProvider,
    ) -> impl Layer<S> + use<S> {
        let filter = EnvFilter::try_from_env(LOG).unwrap_or_else(|_| EnvFilter::new("info"));
        let filter = ["hyper=off", "reqwest=off", "opentelemetry=off", "h2=off"]
            .into_iter()
            .filter_map(|directive| directive.parse().ok())
            .fold(filter, EnvFilter::add_directive);
        tracing_opentelemetry::layer().with_tracer(provider.tracer("leasehold")).with_filter(filter)
    }
}
