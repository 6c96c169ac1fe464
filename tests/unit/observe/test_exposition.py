"""observe.exposition: Prometheus' text, byte for byte as its client library makes it."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from hami_kubeletplugin.observe import exposition

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(['"', "\\", "\n", '\\n"'])


@given(words, st.lists(st.tuples(words, words, st.floats() | st.integers(-(2**60), 2**60)), max_size=5))
def test_it_is_what_the_client_library_makes(text: str, samples: list[tuple[str, str, float]]) -> None:
    """Any words, labels and values, of gauges, counters and histograms."""
    registry = CollectorRegistry()

    class Gauges:
        def collect(self) -> list[GaugeMetricFamily]:
            gauge = GaugeMetricFamily("gauge", text, labels=["b", "a"])
            for first, second, value in samples:
                gauge.add_metric([first, second], value)
            return [gauge, GaugeMetricFamily("plain", "One.", value=1.5)]

    registry.register(Gauges())
    counter = Counter("some", "Some.", ["what"], registry=registry)
    histogram = Histogram("seconds", "Some.", ["what"], registry=registry)
    for first, _, _ in samples:
        counter.labels(first).inc()
        histogram.labels(first).observe(0.3)
    assert exposition.text(registry) == generate_latest(registry)


def test_counters_have_no_second_series() -> None:
    """`_created` of each is nothing that anybody asked for."""
    registry = CollectorRegistry()
    Counter("some", "Some.", registry=registry)
    Histogram("seconds", "Some.", registry=registry)
    assert "some_total 0.0" in exposition.text(registry).decode()
    assert "_created" not in exposition.text(registry).decode()
