"""The bearer token of a client: given once, or in a file that is written anew while we run."""

import time

from hami_kubeletplugin.api.errors import ApiUnavailable
from hami_kubeletplugin.kube.call import TOKEN_LIFETIME, Call
from hami_kubeletplugin.kube.config import Access, is_token


class BearerToken:
    """What goes into each request.

    Attributes:
        value: As it was read last; None if there is none.
    """

    def __init__(self, access: Access) -> None:
        self.value, self._file, self._read = access.token, access.token_file, float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether its file has to be read before the next request."""
        return self._file is not None and time.monotonic() - self._read >= TOKEN_LIFETIME

    def refused(self) -> bool:
        """The server did not take it. Whether another one may be in its file, which is read again then."""
        self._read = float("-inf")
        return self._file is not None

    def read(self, call: Call) -> None:
        """Read its file. Blocks.

        Raises:
            ApiUnavailable: It can't be read, or what is there can't be sent; `call` fails by that.
        """
        if self._file is None:
            return
        try:
            token = self._file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiUnavailable(f"{call} failed: the token file {self._file} can't be read: {error}") from error
        if not is_token(token):
            raise ApiUnavailable(f"{call} failed: the token file {self._file} holds something else than a token")
        self.value, self._read = token, time.monotonic()
