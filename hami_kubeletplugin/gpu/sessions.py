"""Who may call NVML when: one caller at a time, each in a thread of its own, in a session that stays open only on request.

A driver can hang for ever. A caller that has waited long enough goes on without an answer; its thread is left alone, and no
other one is started as long as it hangs: whoever comes meanwhile waits for it, as long as they may, and works with NVML once it
is back.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from hami_kubeletplugin.api.errors import HardwareError, NvmlCallFailed
from hami_kubeletplugin.gpu import nvml as codes
from hami_kubeletplugin.gpu.nvml import Nvml, library_below

TIME_LIMIT: Final = 30.0
"""Seconds for one caller. Opening NVML takes a few when the driver does not stay loaded (no persistence mode)."""

LOADING: Final = "dlopen"
"""What the loading of the library is called among the calls that did not return."""

Result = TypeVar("Result")


class Sessions:
    """NVML for all parts of this process.

    Attributes:
        keep_open: Whether a session stays open for the next caller. It is closed by whoever comes next after this has become
            False, and when a call in it fails: what comes after a driver's trouble begins anew.
        timeouts: How often a caller gave up, by the call that did not return; calls that always did are there with 0.
    """

    def __init__(
        self, library: Path | None = None, driver_root: Path = Path("/"), *, time_limit: float = TIME_LIMIT
    ) -> None:
        """Nothing is loaded yet.

        Args:
            library: Path of libnvidia-ml.so.1; None for the one below the driver root, else what the dynamic linker finds.
            driver_root: Where the driver is installed, if not where the linker looks.
            time_limit: Seconds for one caller.
        """
        self.keep_open = False
        self.timeouts: Mapping[str, int] = {LOADING: 0}
        self._library, self._driver_root, self._time_limit = library, driver_root, time_limit
        self._turn, self._waiting = asyncio.Lock(), 0
        self._session = Nvml(library)
        self._open, self._renew = False, False
        self._working: Future[Any] | None = None

    async def use(self, work: Callable[[Nvml], Result]) -> Result:
        """What `work` returns; it is called in a thread, with an open session.

        Raises:
            DriverMissing: No driver on the node yet, or library and kernel driver do not fit together.
            NvmlCallFailed: NVML can't be opened, or did not answer in time (code 10).
            HardwareError: As `work`.
        """
        async with self._its_turn():
            try:
                async with asyncio.timeout(self._time_limit):
                    if self._working is not None:
                        # One that was given up may still hang in the driver. Never pile a second one on top of it.
                        with self._wanted():
                            await asyncio.gather(asyncio.wrap_future(self._working), return_exceptions=True)
                    self._working = in_own_thread(lambda: self._work(work))
                    result: Result = await asyncio.wrap_future(self._working)
            except TimeoutError:
                reason = (
                    f"no answer within {self._time_limit:g} s, the driver hangs; look at `dmesg` for Xid messages, "
                    "and reboot the node if it goes on"
                )
                calling = self._session.calling
                call = calling if calling.startswith("nvml") else LOADING
                self.timeouts = {**self.timeouts, call: self.timeouts.get(call, 0) + 1}
                raise NvmlCallFailed(calling, codes.ERROR_TIMEOUT, reason) from None
            self.timeouts = {**dict.fromkeys(self._session.called, 0), **self.timeouts}
            return result

    @contextlib.asynccontextmanager
    async def _its_turn(self) -> AsyncIterator[None]:
        with self._wanted():
            await self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def _wanted(self) -> Iterator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def is_wanted(self) -> bool:
        """Whether somebody waits for his turn. Also for threads: who has NVML and could go on later may ask."""
        return self._waiting > 0

    def renew(self) -> None:
        """Have the next caller get a new session: one that is open doesn't learn of GPUs that come."""
        self._renew = True

    def _work(self, work: Callable[[Nvml], Result]) -> Result:
        if self._renew and self._open:
            self._close()
        self._renew = False
        if self._open:
            # A session may be of a driver that has been loaded anew since: then a new one knows.
            with contextlib.suppress(HardwareError):
                return self._in_session(work)
        self._session = Nvml(self._library or library_below(self._driver_root))
        self._session.__enter__()
        self._open = True
        return self._in_session(work)

    def _in_session(self, work: Callable[[Nvml], Result]) -> Result:
        good = False
        try:
            result = work(self._session)
            good = True
        finally:
            if not (good and self.keep_open):
                self._close()
        return result

    def _close(self) -> None:
        self._open = False
        self._session.__exit__(None, None, None)


def in_own_thread(work: Callable[[], Result]) -> Future[Result]:
    """Run all of `work` in one new thread, whose end the process does not wait for: the driver can hang for ever."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed on to whoever waits
            future.set_exception(error)

    threading.Thread(target=run, name="nvml", daemon=True).start()
    return future
