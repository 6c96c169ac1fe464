"""Has calls wait until claims may be worked on: the kubelet calls a daemon that takes over while its predecessor still works."""

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from hami_kubeletplugin.api.claim import ClaimRef, ClaimService, PreparedDevice
from hami_kubeletplugin.api.errors import HamiError, NotBegun

WITHIN: Final = 12.0
"""Seconds that a call waits. A predecessor takes 10 to finish what it has begun, and with a prepare's own 30 the kubelet's 45 are
not over."""


class Gate:
    """A `ClaimService` that is closed at first.

    Args:
        claims: Who answers.
        within: Seconds that a call waits for it to be opened.
    """

    def __init__(self, claims: ClaimService, *, within: float = WITHIN) -> None:
        self._claims, self._within, self._opened, self._closed = claims, within, threading.Event(), False

    def open(self) -> None:
        """Let all calls through, from now on."""
        self._opened.set()

    def close(self) -> None:
        """Let nobody through who isn't yet, and nobody wait: it will not be opened any more."""
        self._closed = True
        self._opened.set()

    def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | HamiError]:
        """See `ClaimService`."""
        return self._claims.prepare(refs) if self._is_open() else {ref.uid: self._refusal(ref) for ref in refs}

    def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, HamiError | None]:
        """See `ClaimService`."""
        return self._claims.unprepare(refs) if self._is_open() else {ref.uid: self._refusal(ref) for ref in refs}

    def _is_open(self) -> bool:
        return self._opened.wait(self._within) and not self._closed

    def _refusal(self, ref: ClaimRef) -> NotBegun:
        if self._closed:
            return NotBegun(f"{ref}: the daemon on this node ends; it is tried again")
        return NotBegun(
            f"{ref}: the daemon that is being replaced on this node has not ended within {self._within:g} s; it is tried again"
        )
