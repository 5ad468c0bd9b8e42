"""OpenTelemetry's wire format: spans to and from OTLP (JSON and protobuf), export to a collector, and a span processor."""
