"""Totals are scraped as prometheus_client's own metrics are, but for when a series began."""

from __future__ import annotations

import prometheus_client as own
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from paceline.actors.totals import Counter, Gauge, Histogram, Histograms, Totals

BUCKETS = (0.001, 0.5, 1, 2, 8192)
VALUES = st.one_of(st.sampled_from(BUCKETS), st.floats(0, 1e4, width=16))
CHANGES = st.lists(st.tuples(st.sampled_from("cglpdh"), VALUES, st.sampled_from(("a", 'b"\n\\'))))


def scraped(registry: own.CollectorRegistry) -> str:
    """The text without the series that say when others began."""
    lines = generate_latest(registry).decode().splitlines()
    return "\n".join(line for line in lines if "_created" not in line)


@given(CHANGES)
def test_the_text_is_that_of_the_librarys_own_metrics(changes):
    theirs, ours, totals = own.CollectorRegistry(), own.CollectorRegistry(), Totals()
    ours.register(totals)
    count = own.Counter("x:count", "A count", registry=theirs)
    gauge = own.Gauge("x:gauge", 'A "gauge"\nof two lines', registry=theirs)
    labelled = own.Counter("x:labelled", "By label", ["label"], registry=theirs)
    places = own.Gauge("x:places", "By label", ["label"], registry=theirs)
    spread = own.Histogram("x:spread", "A spread", buckets=BUCKETS, registry=theirs)
    phases = own.Histogram("x:phases", "Spreads", ["phase"], buckets=BUCKETS, registry=theirs)
    for phase in ("a", 'b"\n\\'):
        phases.labels(phase)
    our_count = totals.keep(Counter("x:count", "A count"))
    our_gauge = totals.keep(Gauge("x:gauge", 'A "gauge"\nof two lines'))
    our_labelled = totals.keep(Counter("x:labelled", "By label", ["label"]))
    our_places = totals.keep(Gauge("x:places", "By label", ["label"]))
    our_spread = totals.keep(Histogram("x:spread", "A spread", BUCKETS))
    our_phases = totals.keep(
        Histograms("x:phases", "Spreads", BUCKETS, "phase", ("a", 'b"\n\\'))
    ).by_value
    for kind, value, label in changes:
        match kind:
            case "c":
                count.inc(value)
                our_count.inc(value)
            case "g":
                gauge.set(value)
                our_gauge.set(value)
            case "l":
                labelled.labels(label).inc(value)
                our_labelled.inc(value, label)
            case "p":
                places.labels(label).set(value)
                our_places.set(value, label)
            case "d":
                spread.observe(value)
                our_spread.observe(value)
            case "h":
                phases.labels(label).observe(value)
                our_phases[label].observe(value)
    assert scraped(ours) == scraped(theirs)


def test_nothing_says_when_a_series_began():
    registry, totals = own.CollectorRegistry(), Totals()
    registry.register(totals)
    totals.keep(Counter("x:count", "A count")).inc()
    text = generate_latest(registry).decode()
    assert text == "# HELP x:count_total A count\n# TYPE x:count_total counter\nx:count_total 1.0\n"
