"""The node's ResourceSlices as the API server has them."""

from collections.abc import Collection
from typing import Self

from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.resource_api import Listed
from hami_kubeletplugin.publish.slices import Slice


class Observed:
    """What was listed, what the watch told since, and what was answered to our own writes."""

    def __init__(self) -> None:
        self._slices: dict[str, Slice] = {}

    @classmethod
    def of(cls, listed: Listed[Slice]) -> Self:
        """What a list says, and nothing from before."""
        observed = cls()
        for item in listed.items:
            observed.wrote(item)
        return observed

    def all(self) -> Collection[Slice]:
        """The slices that are there."""
        return self._slices.values()

    def wrote(self, stored: Slice) -> None:
        """What the server answered to a write."""
        self._slices[stored["metadata"]["name"]] = stored

    def deleted(self, gone: Slice) -> None:
        """We have deleted it."""
        self._slices.pop(gone["metadata"]["name"], None)

    def take(self, event: Event) -> bool:
        """Take an event of the watch in; False if it is no news: a bookmark, or the echo of our own writes."""
        if event.type == "BOOKMARK":
            return False
        theirs = event.object["metadata"]
        ours = self._slices.get(theirs["name"], {}).get("metadata", {})
        if event.type == "DELETED":
            if ours.get("uid") != theirs["uid"]:
                return False
            self.deleted(event.object)
            return True
        if ours.get("uid") == theirs["uid"] and int(ours["resourceVersion"]) >= int(theirs["resourceVersion"]):
            return False
        self.wrote(event.object)
        return True
