"""Lists in pages: all pages of one list show the objects as they were at its first one, as in the real API server.

Contract: https://kubernetes.io/docs/reference/using-api/api-concepts/ (retrieving large results sets in chunks).
"""

import secrets
from http import HTTPStatus

from hami_kubeletplugin.fake.api_kinds import Object
from hami_kubeletplugin.fake.api_store import Refusal, Store


class Pages:
    """The rests of lists that were begun, by their `continue` tokens."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rests: dict[str, tuple[int, list[Object]]] = {}

    def page(self, items: list[Object], limit: int, token: str) -> tuple[list[Object], Object]:
        """One page and its `metadata`.

        Args:
            items: All objects as they are now; only the first page is taken from them.
            limit: At most so many; 0: all.
            token: `continue` of the page before, or empty.

        Raises:
            Refusal: 410 if the list was begun before the last compaction, 400 if the token is none of ours.
        """
        version = self._store.version
        if token:
            if token not in self._rests:
                raise Refusal(HTTPStatus.BAD_REQUEST, "BadRequest", "continue key is not valid")
            version, items = self._rests[token]
            if version < self._store.forgotten:
                message = "The provided continue parameter is too old to display a consistent list result"
                raise Refusal(HTTPStatus.GONE, "Expired", message)
        metadata: Object = {"resourceVersion": str(version)}
        rest = items[limit:] if limit else []
        if rest:
            metadata |= {"continue": secrets.token_urlsafe(12), "remainingItemCount": len(rest)}
            self._rests[metadata["continue"]] = version, rest
        return items[: limit or None], metadata
