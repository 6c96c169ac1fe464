"""A value that threads wait for a change of."""

import threading
import time

from hami_kubeletplugin.observe.observable import Observable


def waits(value: Observable[int], since: int, timeout: float) -> threading.Thread:
    """A thread that waits."""
    thread = threading.Thread(target=value.wait, args=(since, timeout), daemon=True)
    thread.start()
    return thread


def test_a_change_wakes_all_who_wait() -> None:
    """Each of them, at once."""
    value = Observable(1)
    threads = [waits(value, 1, 60) for _ in range(5)]
    value.set(2)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert value.get() == 2


def test_a_change_before_the_wait_is_not_missed() -> None:
    """Who saw an older value does not wait."""
    value = Observable(1)
    value.set(2)
    value.wait(1, 60)


def test_waking_ends_waits_without_a_change() -> None:
    """And only those that have begun."""
    value = Observable(1)
    thread = waits(value, 1, 60)
    while not value._condition._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)
    value.wake()
    thread.join(20)
    assert not thread.is_alive()
    value.wait(1, 0.01)
    assert value.get() == 1


def test_a_wake_between_a_look_and_the_wait_is_not_missed() -> None:
    """Who says how often it had been woken when it looked does not wait for what it did not see."""
    value = Observable(1)
    woken = value.woken
    value.wake()
    value.wait(1, 60, woken=woken)
