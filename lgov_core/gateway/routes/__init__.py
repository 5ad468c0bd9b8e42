"""The endpoint's HTTP routes: model APIs, embeddings, OTLP traces, and those of operators."""
