"""The board of conditions: what several parts of the daemon know of GPUs, as one."""

from hami_kubeletplugin.gpu.conditions import EVERY, Condition, Conditions, Health, What, health

LOST = Condition(What.LOST, "it is lost", since=10)


def test_sources_are_joined() -> None:
    """Each source speaks for itself: what one takes back, another still says."""
    board = Conditions()
    board.report("nvml", {"GPU-1": [LOST]})
    board.report(
        "node", {"GPU-1": [Condition(What.CORDONED, "cordoned")], "GPU-2": [Condition(What.CORDONED, "cordoned")]}
    )
    assert [each.what for each in board.of("GPU-1")] == [What.CORDONED, What.LOST]
    board.report("nvml", {})
    assert [each.what for each in board.of("GPU-1")] == [What.CORDONED]
    assert set(board.all.get()) == {"GPU-1", "GPU-2"}


def test_what_holds_for_every_gpu() -> None:
    """A condition of the node is one of each GPU, also of one that isn't known yet."""
    board = Conditions()
    board.report("ready", {EVERY: [Condition(What.NOT_READY, "no library", "hami-core")]})
    assert [each.value for each in board.of("GPU-new")] == ["hami-core"]


def test_a_condition_that_goes_on_keeps_its_beginning() -> None:
    """Said again, it is the same one; with another value it is a new one."""
    board = Conditions()
    for since, value in ((1, "a"), (2, "a"), (3, "b")):
        board.report("ready", {EVERY: [Condition(What.NOT_READY, "no", value, since=since)]})
        assert board.of("GPU-1")[0].since == (3 if value == "b" else 1)


def test_an_earlier_run_is_no_reason_not_to_listen() -> None:
    """Whoever has spoken in this run is not contradicted by what it said in an earlier one."""
    board = Conditions()
    board.report("nvml", {"GPU-1": []})
    board.restore({"nvml": {"GPU-1": (LOST,)}, "node": {"GPU-2": (LOST,)}})
    assert set(board.all.get()) == {"GPU-2"}
    board.expire()
    assert board.all.get() == {}


def test_followers_hear_of_changes_only() -> None:
    """Nobody is woken by a source that says the same again."""
    board, heard = Conditions(), []
    board.follow(lambda: heard.append(board.of("GPU-1")))
    for _ in range(3):
        board.report("nvml", {"GPU-1": [LOST]})
    board.report("nvml", {"GPU-1": []})
    assert heard == [(LOST,), ()]


def test_the_worst_counts() -> None:
    """A GPU is as healthy as its worst condition says, with that one's words."""
    xid = Condition(What.XID, "Xid 31", "31")
    assert health([xid, LOST]) == (Health.UNHEALTHY, "it is lost")
    assert health([xid]) == (Health.HEALTHY, "Xid 31")
    assert health([Condition(What.NOT_ANSWERING, "hangs"), xid]) == (Health.UNKNOWN, "hangs")
    assert health([]) == (Health.HEALTHY, "")
