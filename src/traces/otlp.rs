//! Spans by OTLP over HTTP. A thread of the exporter's own sends them in batches; what does not fit
//! into its queue is dropped, so a collector that is slow or away holds nothing up.

use super::Work;
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span, SpanBuilder, SpanKind, Tracer, TracerProvider};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

/// Environment variables that name a collector, as OpenTelemetry defines them.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// The tracer of the process.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Sends the spans; the rest of them when it is dropped.
#[derive(Debug)]
pub(super) struct SpanSender(SdkTracerProvider);

impl SpanSender {
    /// Begins, if the environment names a collector. Whatever is wrong with that is logged: the server
    /// runs without traces.
    pub(super) fn from_environment() -> Option<Self> {
        let is_named = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let name = ENDPOINTS.iter().find(|name| is_named(name))?;
        let exporter = match SpanExporter::builder().with_http().build() {
            Ok(exporter) => exporter,
            Err(error) => {
                tracing::warn!(%error, "no traces are sent: {name} cannot be used");
                return None;
            }
        };
        tracing::info!("traces are sent to the collector of {name}");
        Some(Self::begin(exporter))
    }

    fn begin(exporter: SpanExporter) -> Self {
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let mut resource = Resource::builder().with_attribute(version);
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(env!("CARGO_PKG_NAME"));
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        // A second server in one process (tests) keeps the first one's.
        let _ = TRACER.set(provider.tracer(env!("CARGO_PKG_NAME")));
        Self(provider)
    }
}

impl Drop for SpanSender {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// Hands a span over to the exporter.
pub(super) fn record(work: &Work<'_>) {
    let Some(tracer) = TRACER.get() else { return };
    let end = UNIX_EPOCH + Duration::from_micros(work.end_us);
    let (kind, attributes) = match work.client {
        Some(client) => {
            let attributes = vec![
                KeyValue::new("db.system.name", "redis"),
                KeyValue::new("db.operation.name", work.name),
                KeyValue::new("client.address", client.to_owned()),
            ];
            (SpanKind::Server, attributes)
        }
        None => (SpanKind::Internal, Vec::new()),
    };
    let builder = SpanBuilder::from_name(work.name)
        .with_kind(kind)
        .with_attributes(attributes)
        .with_start_time(end.checked_sub(work.took).unwrap_or(UNIX_EPOCH));
    tracer.build(builder).end_with_timestamp(end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_otlp::WithExportConfig;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Takes one request, and returns its head and its body.
    fn take_request(listener: &TcpListener) -> (String, Vec<u8>) {
        let (mut stream, _) = listener.accept().expect("a connection");
        let (mut read, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            let n = stream.read(&mut chunk).expect("a request");
            read.extend_from_slice(&chunk[..n]);
            let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.expect("a length").parse().expect("a number");
            if read.len() >= end + 4 + length {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("sent");
                return (head, read.split_off(end + 4));
            }
        }
    }

    fn has(body: &[u8], text: &str) -> bool {
        body.windows(text.len()).any(|part| part == text.as_bytes())
    }

    #[test]
    fn spans_reach_a_collector() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().expect("an address"));
        let collector = std::thread::spawn(move || take_request(&listener));
        let exporter = SpanExporter::builder().with_http().with_endpoint(endpoint).build();
        let sending = SpanSender::begin(exporter.expect("an exporter"));
        let (took, end_us) = (Duration::from_millis(7), 1_700_000_000_000_000);
        super::super::slow_command("hgetall", "10.0.0.7:41022", took, end_us);
        record(&Work { name: "journal-sync", client: None, took, end_us });
        drop(sending);
        let (head, body) = collector.join().expect("a request");
        assert!(head.starts_with("post /v1/traces "), "{head}");
        for text in ["flagstone", "hgetall", "10.0.0.7:41022", "db.operation.name", "journal-sync"]
        {
            assert!(has(&body, text), "{text}");
        }
        // Fields 7 and 8 of a span: its start and its end, in nanoseconds.
        let start_ns = (end_us - 7000) * 1000;
        assert!(body.windows(8).any(|bytes| bytes == start_ns.to_le_bytes()), "the start");
        assert!(body.windows(8).any(|bytes| bytes == (end_us * 1000).to_le_bytes()), "the end");
    }
}
