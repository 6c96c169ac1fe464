"""Serves the kubelet: binds the sockets in the right order, keeps them there, and goes without cutting off a prepare.

async with driver_lock(settings.plugin_dir, settings.lock_timeout) as lock:
    await KubeletServer(settings, claims, reported, lock).run()
"""

import asyncio
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.claim import ClaimService
from hami_kubeletplugin.api.errors import ServingError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.claims.counted import Counted
from hami_kubeletplugin.gpu.device_health import Reported
from hami_kubeletplugin.kubelet import dra, health, registration, standard
from hami_kubeletplugin.kubelet.listener import Listener
from hami_kubeletplugin.kubelet.sockets import DriverLock, dra_socket, registration_socket
from hami_kubeletplugin.observe.counts import UNCOUNTED, Counts
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

STOP_GRACE: Final = 8.0
"""Seconds for claims in flight; the process has 10 to exit."""

WATCH_INTERVAL: Final = 3.0
"""Seconds between looks at the lock and the sockets, a few stat calls each."""

_FIRST_WAIT: Final = 0.2
_ASKED_FOR: Final = 1.0
_HASTE: Final = 0.01
"""Seconds between looks while a prepare may wait for us."""
_SERVICES: Final = (dra.V1_SERVICE, dra.V1BETA1_SERVICE, health.V1, health.V1ALPHA1)


class KubeletServer:
    """The gRPC face of one driver on one node.

    Attributes:
        registration: What the kubelet said; `registration.registered` can be waited for.
        standard: gRPC's own health service; has to be told whether claims can be prepared.
    """

    def __init__(
        self,
        settings: Settings,
        claims: ClaimService,
        reported: Reported,
        lock: DriverLock,
        *,
        counts: Counts = UNCOUNTED,
        watch_interval: float = WATCH_INTERVAL,
        stop_grace: float = STOP_GRACE,
    ) -> None:
        """Check the paths; nothing is bound yet.

        Raises:
            SocketPathTooLong: Names the option to change.
        """
        self._settings, self.place = settings, 0
        self._dra_path, self._registration_path = self._paths(0)
        self.registration = registration.Registration(settings.driver_name, self._dra_path)
        self.standard = standard.StandardHealth(_SERVICES)
        self._health_interval = settings.health_interval
        self._claims, self._counts = Counted(claims, counts), counts
        self._reported = reported
        self._lock = lock
        self._watch_interval = watch_interval
        self._stop_grace = stop_grace
        self._streams: health.HealthService | None = None
        self._dra_listener: Listener | None = None
        self._registration_listener: Listener | None = None
        self._absent = Once[Path]()
        self._asked: dict[str, tuple[float, asyncio.Task[bool]]] = {}

    async def run(self) -> None:
        """Serve until cancelled, then finish what is being prepared, unregister and remove the sockets.

        The kubelet need not be there yet: registration waits for its directory. Sockets that somebody deletes come back.

        Raises:
            ServingError: A socket can't be bound.
            AlreadyServing: Somebody deleted our lock file and another daemon took the lock.
        """
        wait = _FIRST_WAIT
        try:
            await self._lock.renew()
            await asyncio.to_thread(self._forget_other_place)
            while True:
                await self._lock.renew()
                await self._keep_dra()
                registrable = await self._keep_registration()
                wait = self._watch_interval if registrable else min(1.5 * wait, self._watch_interval)
                await asyncio.sleep(wait)
        finally:
            await self._stop()

    async def register_beside(self, place: int) -> bool:
        """Be registered in another place than who serves now, and has the lock, before `run`; whether we are.

        Raises:
            ServingError: A socket can't be bound.
            SocketPathTooLong: The paths of the other place are.
        """
        if self._dra_listener is None:
            self.place = 1 - place
            self._dra_path, self._registration_path = self._paths(self.place)
            self.registration.move(self._dra_path)
            await self._keep_dra()
            if not await self._keep_registration():
                return False
        self._lock.poll = _HASTE
        while not self.registration.registered.is_set():  # noqa: ASYNC110 - set by gRPC's threads
            await asyncio.sleep(_HASTE)
        return True

    def _paths(self, place: int) -> tuple[Path, Path]:
        """Of the DRA and the registration socket."""
        settings = self._settings
        return (
            dra_socket(settings.plugin_dir, place),
            registration_socket(settings.registry_dir, settings.driver_name, place),
        )

    def _forget_other_place(self) -> None:
        """Remove the sockets that a daemon left which was killed: nobody but us has the lock."""
        try:
            paths = self._paths(1 - self.place)
        except ServingError:  # too long: nobody has ever been there
            return
        for path in paths:
            if path.is_socket():
                path.unlink(missing_ok=True)

    async def serving(self, service: str) -> bool:
        """What gRPC's health service on our own socket says of a service; False too if nobody answers there in time.

        An answer is for all who ask within a second: each asking costs a connection, and strangers may have it done.
        """
        now = asyncio.get_running_loop().time()
        until, asking = self._asked.get(service, (now, None))
        if asking is None or until <= now:
            asking = asyncio.create_task(standard.serving(self._dra_path, service))
            self._asked[service] = now + _ASKED_FOR, asking
        return await asyncio.shield(asking)

    async def _keep_dra(self) -> None:
        """Serve DRA, again if the socket file was deleted: a new server shows its socket before the old one goes."""
        old, old_streams = self._dra_listener, self._streams
        if old and await old.intact():
            return
        if old:
            log.warning("the DRA socket was deleted, making it again", socket=str(self._dra_path))
            self._counts.repaired("socket")
        streams = health.HealthService(self._reported, self._health_interval)
        self._dra_listener = await Listener.start(
            self._dra_path,
            (*dra.handlers(self._claims), *streams.handlers()),
            _SERVICES,
            self.standard,
        )
        self._streams = streams
        log.info("serving DRA", socket=str(self._dra_path))
        if old and old_streams:
            old_streams.close()
            await old.stop(self._stop_grace)

    async def _keep_registration(self) -> bool:
        """Show the registration socket, again if it was deleted, or came to nothing. False if its directory is not there."""
        old, directory = self._registration_listener, self._registration_path.parent
        if old and await old.intact() and not self.registration.overdue():
            return True
        if old:
            self.registration.forget()
            self._registration_listener = None
            await old.stop(0)
        try:
            if await asyncio.to_thread(directory.is_dir):
                self._registration_listener = await Listener.start(
                    self._registration_path,
                    self.registration.handlers(),
                    (registration.SERVICE,),
                )
                self._absent.ended(directory)
                self.registration.shown()
                log.info("waiting for the kubelet to register us", socket=str(self._registration_path))
                return True
        except ServingError:
            if await asyncio.to_thread(directory.is_dir):
                raise
        if self._absent.is_new(directory):
            log.warning("the kubelet's registry directory is not there, waiting for it", directory=str(directory))
        return False

    async def leave(self) -> None:
        """Remove the sockets, if they are there: as after `run`, and when it never ran."""
        if self._dra_listener or self._registration_listener:
            await self._stop()

    async def _stop(self) -> None:
        # DRA first: when the kubelet sees the registration socket go it closes its connection, which would cancel what is
        # in flight. Stopping tells it gracefully (GOAWAY) and lets calls end.
        if self._streams:
            self._streams.close()
        if self._dra_listener:
            await self._dra_listener.stop(self._stop_grace)
        if self._registration_listener:
            await self._registration_listener.stop(0)
        self._dra_listener = self._registration_listener = self._streams = None
        self.registration.forget()
        log.info("sockets removed, no longer registered")
