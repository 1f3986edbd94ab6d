//! Spans for whoever follows traces: over OTLP/HTTP, in builds with the feature `opentelemetry`, where the standard
//! variables of the environment name an endpoint. All else is theirs to say too: `OTEL_SERVICE_NAME`,
//! `OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS` ..
//!
//! Only spans of ours leave, never what is logged in them: a text may quote what only the log's way out hides. They wait
//! in a bounded queue for a thread of their own, and what does not fit is dropped: no batch waits for a collector, and
//! one that is away, or that cannot be used, keeps nothing from working.

use std::pin::Pin;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use opentelemetry::trace::{
    SpanContext, SpanId, Status, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing::{Metadata, Span, Subscriber, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

/// How long the end of a process waits for its last spans.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// What the standard says.
const TIMEOUT: Duration = Duration::from_secs(10);

static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// What exports spans from now on; none if the environment does not ask for it.
///
/// # Errors
/// Why it cannot be done as the environment asks.
pub(crate) fn exporting<S>() -> Result<Option<impl Layer<S>>, String>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    if !is_wanted(|name| std::env::var(name).ok()) {
        return Ok(None);
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new()?)
        .build()
        .map_err(|error| error.to_string())?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("tidegate"))
        .with_context_activation(false)
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(filter_fn(is_ours).with_max_level_hint(LevelFilter::INFO));
    let _ = PROVIDER.set(provider);
    Ok(Some(layer))
}

/// Sends what was not sent yet, within a bound.
pub(crate) async fn flush() {
    if let Some(provider) = PROVIDER.get() {
        let flushed =
            tokio::task::spawn_blocking(|| provider.shutdown_with_timeout(FLUSH_MAX)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            warn!("the last spans were not exported");
        }
    }
}

/// A span has this trace among its causes: a `traceparent`.
pub(crate) fn link(span: &Span, parent: &str) {
    if let Some(cause) = context(parent) {
        span.add_link(cause);
    }
}

/// What this span is of has failed. Why is in the log.
pub(crate) fn failed(span: &Span) {
    span.set_status(Status::error(""));
}

fn context(parent: &str) -> Option<SpanContext> {
    let mut fields = parent.split('-').skip(1);
    let mut next = || fields.next();
    let trace = TraceId::from_hex(next()?).ok()?;
    let span = SpanId::from_hex(next()?).ok()?;
    let flags = u8::from_str_radix(next()?, 16).ok()?;
    Some(SpanContext::new(
        trace,
        span,
        TraceFlags::new(flags),
        true,
        TraceState::NONE,
    ))
}

/// Whether an endpoint is named, and nothing says no.
fn is_wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, value: &str| {
        variable(name).is_some_and(|given| given.eq_ignore_ascii_case(value))
    };
    let is_named = |name: &str| variable(name).is_some_and(|given| !given.is_empty());
    let endpoint =
        is_named("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") || is_named("OTEL_EXPORTER_OTLP_ENDPOINT");
    endpoint && !is("OTEL_SDK_DISABLED", "true") && !is("OTEL_TRACES_EXPORTER", "none")
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span()
        && *metadata.level() <= LevelFilter::INFO
        && metadata.target().starts_with("tidegate")
}

/// The client that is there anyway. The exporter's thread is none of the runtime's, which it needs.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Handle,
    /// The last trouble, so that it is not said again and again.
    trouble: Mutex<String>,
}

impl Client {
    fn new() -> Result<Self, String> {
        // Only the first of a process counts; all are the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let millis = |name: &str| std::env::var(name).ok()?.trim().parse().ok();
        let timeout = millis("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
            .or_else(|| millis("OTEL_EXPORTER_OTLP_TIMEOUT"))
            .map_or(TIMEOUT, Duration::from_millis);
        let http = reqwest::Client::builder()
            .timeout(timeout)
            // Headers may have credentials, for the server that was named.
            .redirect(reqwest::redirect::Policy::none())
            .build();
        Ok(Self {
            http: http.map_err(|error| error.to_string())?,
            runtime: Handle::try_current().map_err(|error| error.to_string())?,
            trouble: Mutex::default(),
        })
    }

    fn tell(&self, trouble: String) {
        let mut last = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if !trouble.is_empty() && trouble != *last {
            warn!(trouble, "spans are not exported; later ones are tried");
        }
        *last = trouble;
    }
}

impl HttpClient for Client {
    fn send_bytes<'c, 'a>(
        &'c self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>
    where
        'c: 'a,
        Self: 'a,
    {
        let http = self.http.clone();
        let send = async move {
            let answer = http.execute(request.try_into()?).await?;
            let mut told = Response::builder().status(answer.status());
            if let Some(after) = answer.headers().get("retry-after") {
                told = told.header("retry-after", after);
            }
            Ok::<_, HttpError>(told.body(answer.bytes().await?)?)
        };
        Box::pin(async move {
            let answered = self.runtime.spawn(send).await?;
            self.tell(match &answered {
                Ok(answer) if answer.status().is_success() => String::new(),
                Ok(answer) => answer.status().to_string(),
                Err(error) => match error.downcast_ref::<reqwest::Error>() {
                    // Without the address, which may have a password.
                    Some(error) if error.is_timeout() => "the collector does not answer".to_owned(),
                    Some(error) if error.is_connect() => {
                        "the collector cannot be reached".to_owned()
                    }
                    _ => "the collector cannot be asked".to_owned(),
                },
            });
            answered
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_becomes_a_link() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = context(parent).unwrap();
        assert_eq!(
            context.trace_id().to_string(),
            "0af7651916cd43dd8448eb211c80319c"
        );
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled() && context.is_remote());
        assert!(super::context("00-0af7").is_none());
    }

    #[test]
    fn spans_are_exported_where_an_endpoint_is_named_and_nothing_says_no() {
        let wanted = |variables: &[(&str, &str)]| {
            let variables: Vec<(String, String)> = variables
                .iter()
                .map(|(name, value)| (format!("OTEL_{name}"), (*value).to_owned()))
                .collect();
            is_wanted(|name| {
                let found = variables.iter().find(|(known, _)| known == name);
                found.map(|(_, value)| value.clone())
            })
        };
        let endpoint = ("EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        assert!(wanted(&[endpoint]));
        assert!(wanted(&[(
            "EXPORTER_OTLP_TRACES_ENDPOINT",
            "http://collector:4318/v1/traces"
        )]));
        assert!(!wanted(&[]));
        assert!(!wanted(&[("EXPORTER_OTLP_ENDPOINT", "")]));
        assert!(!wanted(&[endpoint, ("SDK_DISABLED", "true")]));
        assert!(!wanted(&[endpoint, ("TRACES_EXPORTER", "none")]));
    }
}
