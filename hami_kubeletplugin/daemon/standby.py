"""What a daemon does while its predecessor holds the lock: all that takes time and writes nothing.

It is ready when it could prepare claims, and only then does it take the predecessor's place before that one ends. A rollout with
`maxSurge` so goes on when the new version works on this node, and stops when it doesn't.
"""

import asyncio
from typing import Final

from hami_kubeletplugin.api.errors import HamiError, StorageError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.daemon.node import ThisNode
from hami_kubeletplugin.gpu.conditions import Conditions
from hami_kubeletplugin.health.needs import node_checks
from hami_kubeletplugin.health.readiness import Readiness
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.kubelet.handover import standing_by
from hami_kubeletplugin.kubelet.server import KubeletServer
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

LOOK: Final = 5.0
"""Seconds between looks."""


class Standby:
    """Ready to take over, or not.

    Args:
        settings: The settings.
        node: This node.
        api: The API server.
        server: What the kubelet will talk to.

    Attributes:
        lacking: What is missing, in a word each; `predecessor` while another daemon is to take over before us.
    """

    def __init__(self, settings: Settings, node: ThisNode, api: KubeClient, server: KubeletServer) -> None:
        self._settings, self._node, self._api, self._server = settings, node, api, server
        self._readiness = Readiness(
            node_checks(settings, node.host.check_shipped, node.host.check_mount, node.edits, gpus=self._gpus),
            conditions=Conditions(),
            gpus=self._gpus,
            registered=lambda: True,
            told=lambda _: None,
        )
        self._said = Once[str]()
        self.lacking: tuple[str, ...] = ("predecessor",)

    async def run(self) -> None:
        """Look, and be there for the predecessor, until cancelled. For who is next in line. What fails is begun again."""
        while True:
            try:
                async with standing_by(self._settings.plugin_dir, self._take):
                    while True:
                        await self._look()
                        await asyncio.sleep(LOOK)
            except Exception as error:  # we still take the place when it is free
                self.lacking = ("standby",)
                if self._said.is_new("standby", str(error)):
                    log.error("can't stand by; it is tried again", lacking=self.lacking, exc_info=error)
            await asyncio.sleep(LOOK)

    async def _look(self) -> None:
        was = self.lacking
        if self._node.hardware.uuids is None:
            await self._node.hardware.peek(self._node.only_looks)
        await self._readiness.look()
        self.lacking = (*self._readiness.lacking, *await self._wrong_of_api(), *await self._wrong_of_records())
        if self.lacking != was:
            log.info("standing by" if not self.lacking else "can't stand by yet", lacking=self.lacking)

    async def _wrong_of_api(self) -> tuple[str, ...]:
        """Our credentials, our rights, and the way there."""
        try:
            await self._api.list_slices(self._settings.driver_name, self._settings.node_name)
        except HamiError as error:
            if self._said.is_new("api", str(error)):
                log.warning("the API server can't be asked", error=str(error))
            return ("api",)
        self._said.ended("api")
        return ()

    async def _wrong_of_records(self) -> tuple[str, ...]:
        """Records that can't be used are no reason: they are set aside and made anew."""
        try:
            await asyncio.to_thread(self._node.check_records)
        except StorageError as error:
            if self._said.is_new("records", str(error)):
                log.warning("claims' records can't be used", error=str(error))
            return ("records",)
        self._said.ended("records")
        return ()

    async def _take(self, place: int) -> bool:
        return not self.lacking and await self._server.register_beside(place)

    def _gpus(self) -> tuple[str, ...] | None:
        return self._node.hardware.uuids
