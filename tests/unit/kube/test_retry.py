"""kube.retry: how long is waited after errors."""

from hami_kubeletplugin.api.errors import ApiUnavailable
from hami_kubeletplugin.kube.retry import ERROR_WAIT, Retry


async def test_many_who_are_told_the_same_come_back_at_different_times() -> None:
    """The daemons of a large cluster, all refused at the same moment, are not all there again at the same moment."""
    waits = list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    for _ in range(200):
        retry = Retry(failing="fails", working="works", restarting="again", sleep=sleep)
        await retry.after(ApiUnavailable("too many requests", retry_after=1))
    assert min(waits) >= 1
    assert max(waits) - min(waits) > ERROR_WAIT[0] / 4
