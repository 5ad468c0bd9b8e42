"""What happened at the endpoint, in numbers, for Prometheus. Never content: no ids, no texts, no keys."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lgov_core.errors import EndpointError
from lgov_core.gateway.serving.admission import Admission

#: Upper ends of the classes of times, in seconds.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: One number that is read when it is asked for: name, what it is, and its values by label (None for no label).
Reading = tuple[str, str, str, str | None, Mapping[str, float]]


class _Times:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []
        sum_so_far = 0
        for end, count in zip([*map(str, BUCKETS), "+Inf"], self.counts, strict=True):
            sum_so_far += count
            found.append((end, float(sum_so_far)))
        return found


class Metrics:
    """Counts requests and their times by route; reads everything else where it is kept. For one event loop.

    Counting costs a dictionary entry; prometheus-client is imported when the numbers are first asked for.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._running: defaultdict[str, int] = defaultdict(int)
        self._took: defaultdict[str, _Times] = defaultdict(_Times)
        self._first: defaultdict[str, _Times] = defaultdict(_Times)
        self._sources: list[Callable[[], Iterable[Reading]]] = []

    def reads(self, source: Callable[[], Iterable[Reading]]) -> None:
        """Adds a source of numbers; it is asked whenever the metrics are read, in the event loop."""
        self._sources.append(source)

    def began(self, route: str) -> None:
        """A request came for ``route``, the path with its parameters' names."""
        self._running[route] += 1

    def ended(self, route: str, status: int, seconds: float, first_s: float | None) -> None:
        """It was answered (0: the client got no answer) after so many seconds; the first byte went out after ``first_s``."""
        self._running[route] -= 1
        self._requests[route, status] += 1
        self._took[route].add(seconds)
        if first_s is not None:
            self._first[route].add(first_s)

    def exposition(self) -> bytes:
        """Everything in the text format of Prometheus. Raises `EndpointError` (501) where prometheus-client is missing."""
        try:
            from prometheus_client import CollectorRegistry, generate_latest
        except ImportError as error:
            raise EndpointError(
                "prometheus-client is not installed", status=501, hint='pip install "lgov[gateway]"'
            ) from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self))  # type: ignore[arg-type]
        return generate_latest(registry)

    def families(self) -> Iterable[Any]:
        """The numbers as prometheus-client's families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily(
            "lgov_requests", "Requests answered, by route and status.", labels=["route", "status"]
        )
        for (route, status), count in sorted(self._requests.items()):
            requests.add_metric([route, str(status)], count)
        running = GaugeMetricFamily("lgov_requests_in_flight", "Requests being answered.", labels=["route"])
        for route, count in sorted(self._running.items()):
            running.add_metric([route], count)
        yield requests
        yield running
        for name, what, times in (
            ("lgov_request_seconds", "Time to the end of an answer.", self._took),
            ("lgov_first_byte_seconds", "Time to the first byte of an answer.", self._first),
        ):
            family = HistogramMetricFamily(name, what, labels=["route"])
            for route, kept in sorted(times.items()):
                family.add_metric([route], kept.cumulative(), kept.total)
            yield family
        for kind, name, what, label, values in [
            *self._of_admission(),
            *(r for source in self._sources for r in source()),
        ]:
            family_of = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = family_of(name, what, labels=[label] if label else None)
            for key, value in sorted(values.items()):
                family.add_metric([key] if label else [], value)
            yield family

    def _of_admission(self) -> Iterable[Reading]:
        at = self._admission
        yield "gauge", "lgov_calls_running", "Model calls that have a place.", None, {"": at.running}
        yield "gauge", "lgov_calls_waiting", "Model calls that wait for a place.", None, {"": at.waiting}
        yield "counter", "lgov_calls_turned_away", "Model calls that got no place.", None, {"": at.refused}
        yield "gauge", "lgov_paused", "1 while new calls are held.", None, {"": float(at.paused)}


class _Collector:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Any]:
        return self._metrics.families()
