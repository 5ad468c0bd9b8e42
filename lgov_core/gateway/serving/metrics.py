"""Counts of what happened at the endpoint, for Prometheus. Never content: no ids, no texts, no keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lgov_core.gateway.serving.limits import Admission

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Upper bounds of the buckets of times, in seconds.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

#: One metric, read when the metrics are asked for: counter or gauge, name, help, label (None for no label), and its
#: values by label.
Reading = tuple[str, str, str, str | None, Mapping[str, float]]


class Metrics(Collector):
    """Counts requests and their times by route; everything else is read from its source. For one event loop."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._sources: list[Callable[[], Iterable[Reading]]] = [self._of_admission]
        self._registry = registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "lgov_requests", "Requests that were answered, by route and status.", ["route", "status"], registry=registry
        )
        self._running = Gauge(
            "lgov_requests_in_flight", "Requests that are being answered, by route.", ["route"], registry=registry
        )
        self._took, self._first = (
            Histogram(name, what, ["route"], buckets=_BUCKETS, registry=registry)
            for name, what in (
                ("lgov_request_seconds", "Seconds to the end of an answer, by route."),
                ("lgov_first_byte_seconds", "Seconds to the first byte of an answer, by route."),
            )
        )
        registry.register(self)

    def add_source(self, source: Callable[[], Iterable[Reading]]) -> None:
        """Adds a source of numbers; it is called whenever the metrics are read, in the event loop."""
        self._sources.append(source)

    def began(self, route: str) -> None:
        """A request came for ``route``, the path with its parameters' names."""
        self._running.labels(route).inc()

    def ended(self, route: str, status: int, seconds: float, first_s: float | None) -> None:
        """It was answered (0: the client got no answer) after ``seconds``; the first byte went out after ``first_s``."""
        self._running.labels(route).dec()
        self._requests.labels(route, str(status)).inc()
        self._took.labels(route).observe(seconds)
        if first_s is not None:
            self._first.labels(route).observe(first_s)

    def exposition(self) -> bytes:
        """Everything in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Any]:
        """The numbers of the sources; called by the registry."""
        for kind, name, what, label, values in (reading for source in self._sources for reading in source()):
            family_of = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = family_of(name, what, labels=[label] if label else None)
            for key, value in sorted(values.items()):
                family.add_metric([key] if label else [], value)
            yield family

    def _of_admission(self) -> Iterable[Reading]:
        at = self._admission
        yield "gauge", "lgov_calls_running", "Model calls that are running.", None, {"": at.running}
        yield (
            "gauge",
            "lgov_calls_waiting",
            "Model calls that wait because max_running others run.",
            None,
            {"": at.waiting},
        )
        yield (
            "counter",
            "lgov_calls_turned_away",
            "Model calls that were refused because too many waited, or after waiting too long.",
            None,
            {"": at.refused},
        )
        yield "gauge", "lgov_paused", "1 while the endpoint is paused, else 0.", None, {"": float(at.paused)}
