"""bench.served: what the API server's own metrics say of requests, in the form in which it writes them."""

from bench.served import WRITES, Served, Tally

METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{{code="200",component="apiserver",group="resource.k8s.io",resource="resourceslices",verb="LIST"}} {lists}
apiserver_request_total{{code="201",component="apiserver",group="resource.k8s.io",resource="resourceslices",verb="POST"}} 1000
apiserver_request_total{{code="409",component="apiserver",group="resource.k8s.io",resource="resourceslices",verb="POST"}} 1
apiserver_request_total{{code="200",component="apiserver",group="",resource="nodes",verb="PUT"}} 1.5e+06
apiserver_flowcontrol_dispatched_requests_total{{flow_schema="service-accounts",priority_level="workload-low"}} {lists}
apiserver_flowcontrol_dispatched_requests_total{{flow_schema="exempt",priority_level="exempt"}} 77
apiserver_flowcontrol_rejected_requests_total{{flow_schema="service-accounts",priority_level="workload-low",reason="time-out"}} 3
"""


def served(lists: int) -> Served:
    """What such a server says."""
    return Served.parsed(METRICS.format(lists=lists))


def test_requests_by_verb_and_resource() -> None:
    """Whatever their answer was; other resources don't count, and of flows only that of service accounts does."""
    found = served(20)
    assert found.of("LIST", resource="resourceslices") == 20
    assert found.of(*WRITES, resource="resourceslices") == 1001
    assert found.of("PUT", resource="nodes") == 1_500_000
    assert found.flow == {"dispatched": 20, "rejected": 3}


def test_what_came_since() -> None:
    """Only what is more than before; all of it once the server's counts have begun anew."""
    more = served(25).since(served(20))
    assert more.requests == {("LIST", "resourceslices"): 5}
    assert more.flow == {"dispatched": 5}
    assert served(5).since(served(20)).of("LIST", resource="resourceslices") == 5


def test_peaks() -> None:
    """The most in a second, however long the looks took."""
    tally = Tally()
    tally.take(served(10), 0.5)
    tally.take(served(30), 2)
    assert (tally.peak, tally.peak_lists) == (20, 20)
    assert tally.served.of("LIST", resource="resourceslices") == 40
