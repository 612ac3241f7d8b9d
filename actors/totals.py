"""Totals: counters, gauges and histograms as plain numbers, which cost next to nothing to change.

They belong to the event loop's thread, which changes them and is asked for them. `Metrics` keeps
them; prometheus_client reads them when it is scraped and writes the text. There are no `_created`
series: what a counter's reset looks like, its value says, and they would double what is scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

Labels = tuple[str, ...]
"""The values of a total's labels, in their order."""

Values = Mapping[Labels, float]


class Counter:
    """What only grows, by labels. Without labels it is there from the start, at 0."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.values: dict[Labels, float] = {} if labels else {(): 0}
        self._family = name, text, labels

    def inc(self, amount: float = 1, *labels: str) -> None:
        """Labels that are new begin at 0."""
        self.values[labels] = self.values.get(labels, 0) + amount

    def collect(self) -> Metric:
        return counted(*self._family, self.values)


class Gauge:
    """What was last said, by labels. Without labels it is there from the start, at 0."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.values: dict[Labels, float] = {} if labels else {(): 0}
        self._family = name, text, labels

    def set(self, value: float, *labels: str) -> None:
        self.values[labels] = value

    def collect(self) -> Metric:
        return gauged(*self._family, self.values)


class Histogram:
    """How often values were at most each of `buckets`, whose order is rising, and their sum."""

    __slots__ = ("_buckets", "_counts", "_family", "_sum")

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        self._family = name, text
        self._buckets = tuple(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._buckets, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Its buckets, of which each counts those before it too, and its sum."""
        told, total = [], 0
        for bound, count in zip((*self._buckets, float("inf")), self._counts, strict=True):
            total += count
            told.append((_written(bound), float(total)))
        family.add_metric(labels, told, self._sum)

    def collect(self) -> Metric:
        family = HistogramMetricFamily(*self._family)
        self.add_to(family)
        return family


class Histograms:
    """A histogram for each of a label's values, which are known beforehand."""

    def __init__(
        self, name: str, text: str, buckets: Sequence[float], label: str, values: Sequence[str]
    ) -> None:
        self._family = name, text
        self._label = label
        self.by_value = {value: Histogram(name, text, buckets) for value in values}

    def collect(self) -> Metric:
        family = HistogramMetricFamily(*self._family, labels=[self._label])
        for value, histogram in self.by_value.items():
            histogram.add_to(family, [value])
        return family


Total = Counter | Gauge | Histogram | Histograms
TotalT = TypeVar("TotalT", bound=Total)


class Totals(Collector):
    """What a registry reads. families: more, made of other numbers when they are asked for."""

    def __init__(self) -> None:
        self._totals: list[Total] = []
        self.families: list[Callable[[], Iterator[Metric]]] = []

    def keep(self, total: TotalT) -> TotalT:
        self._totals.append(total)
        return total

    def collect(self) -> Iterator[Metric]:
        for total in self._totals:
            yield total.collect()
        for families in self.families:
            yield from families()


def _written(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))


def counted(name: str, text: str, labels: Sequence[str], values: Values) -> CounterMetricFamily:
    """A family of counters, in the order of the values."""
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def gauged(name: str, text: str, labels: Sequence[str], values: Values) -> GaugeMetricFamily:
    """The same of gauges."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
