"""Which Kubernetes the cluster is: its API server is asked at the start, and now and then, since clusters are upgraded."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from hami_kubeletplugin.api.errors import ApiError
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.kube.retry import Retry
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

_EVERY: Final = 300.0
"""Seconds between questions."""


class ServerVersion:
    """Tells the version whenever it is another one.

    Args:
        client: Open for as long as `run` runs.
        tell: Called with e.g. `1.36`.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        tell: Callable[[str], None],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client, self._tell, self._sleep = client, tell, sleep
        self._known = ""
        self._retry = Retry(
            failing="the API server does not say which Kubernetes it is; trying again",
            working="the API server says again which Kubernetes it is",
            restarting="asking the API server again which Kubernetes it is",
            sleep=sleep,
        )

    @property
    def synced(self) -> bool:
        """Whether it was told once."""
        return bool(self._known)

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            try:
                major, minor = await self._client.server_version()
            except ApiError as error:
                await self._retry.after(error)
                continue
            self._retry.works()
            if (found := f"{major}.{minor}") != self._known:
                log.info("the API server's version", kubernetes=found)
                self._known = found
                self._tell(found)
            await self._sleep(_EVERY)
