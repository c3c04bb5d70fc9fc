//! What happens, for whoever asks for it.
//!
//! `LEASEHOLD_LOG` says what is printed on the standard error; without it, warnings and errors are. With the feature `otel`,
//! and if `OTEL_EXPORTER_OTLP_ENDPOINT` says where, spans go to a collector of OpenTelemetry, too: one for each run of a
//! task, and what `LEASEHOLD_LOG` asks for besides. All of it that is left is sent when the program ends.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::printer;

/// Which variable says what is of interest.
const LOG: &str = "LEASEHOLD_LOG";

/// Keeps it going.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    #[cfg(feature = "otel")]
    provider: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

/// Starts it for the command line. Has to come before any runtime is entered: what sends spans has one of its own.
#[must_use]
pub(crate) fn start() -> Telemetry {
    start_at(LevelFilter::WARN)
}

/// Starts it; `level` is printed unless `LEASEHOLD_LOG` says otherwise.
fn start_at(level: LevelFilter) -> Telemetry {
    let filter = EnvFilter::builder().with_default_directive(level.into()).with_env_var(LOG).from_env_lossy();
    let printed = tracing_subscriber::fmt::layer()
        .with_writer(AboveBars::default)
        .with_ansi(is_coloured())
        .with_filter(filter);
    let registry = tracing_subscriber::registry().with(printed);
    #[cfg(feature = "otel")]
    if let Some(provider) = otel::provider() {
        // Whoever runs this in a process of its own may have seen to that already.
        let _ = registry.with(otel::layer(&provider)).try_init();
        return Telemetry { provider: Some(provider) };
    }
    let _ = registry.try_init();
    Telemetry::default()
}

/// Starts it in a process of someone else, until that ends. Only errors are printed there without being asked for: a
/// library reports warnings through the logging of its program.
pub(crate) fn start_for_good() {
    static STARTED: OnceLock<Telemetry> = OnceLock::new();
    STARTED.get_or_init(|| start_at(LevelFilter::ERROR));
}

/// Colours are for terminals: in a file they are noise.
fn is_coloured() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wanted && io::stderr().is_terminal()
}

/// One event, which is printed as a whole when it is dropped.
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
    /// Sends what is left.
    #[cfg_attr(not(feature = "otel"), expect(clippy::unused_self, reason = "nothing is left"))]
    pub(crate) fn end(self) {
        #[cfg(feature = "otel")]
        if let Some(Err(error)) = self.provider.map(|provider| provider.shutdown()) {
            tracing::warn!("not all spans were sent: {error}");
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

    /// The variable that says where a collector is; others of OpenTelemetry are honoured by its own crates.
    const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

    /// Gathers spans and sends them now and then, if there is someone to send them to.
    pub(super) fn provider() -> Option<SdkTracerProvider> {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        ENDPOINTS.into_iter().find(is_set)?;
        let exporter = SpanExporter::builder().with_http().build();
        let exporter = exporter.inspect_err(|error| tracing::error!("no spans are sent: {error}")).ok()?;
        let resource = Resource::builder();
        // Unless someone has given it another name.
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

    /// Makes spans of those of the program: the runs of tasks, and whatever else is asked for. What sends them is not
    /// among it, or it would tell of itself for ever.
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
