"""The webhook's Secret and its configurations: from the API's objects to what `trust` works with, and back. Pure."""

import base64
import binascii
import functools
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from hami_kubeletplugin.api.errors import CertificateError
from hami_kubeletplugin.api.names import TRUSTED_SINCE, WEBHOOKS
from hami_kubeletplugin.kube.call import Object
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, read_key_pair
from hami_kubeletplugin.webhook.certificate.rotation_step import Configuration, Content

_CURRENT: Final = ("tls.crt", "tls.key")
_NEXT: Final = ("next.crt", "next.key")


def read_secret(secret: Mapping[str, Any] | None) -> Content:
    """What is in the Secret; None: there is no Secret. Never fails: what can't be used is named in `damage`."""
    if secret is None:
        return Content()
    damage: list[str] = []
    current, following = (_pair(secret.get("data") or {}, keys, damage) for keys in (_CURRENT, _NEXT))
    return Content(current, following, _time(secret), tuple(damage))


def write_secret(secret: Mapping[str, Any] | None, content: Content, namespace: str, name: str) -> Object:
    """The Secret with this content; whatever else is in it stays."""
    secret = secret or {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": namespace, "name": name},
        "type": "Opaque",
    }
    data = {key: value for key, value in (secret.get("data") or {}).items() if key not in {*_CURRENT, *_NEXT}}
    for (cert, key), pair in ((_CURRENT, content.current), (_NEXT, content.next)):
        if pair is not None:
            data[cert], data[key] = _encoded(pair.chain), _encoded(pair.key)
    annotations = dict(secret["metadata"].get("annotations") or {})
    annotations.pop(TRUSTED_SINCE, None)
    if content.trusted_since is not None:
        annotations[TRUSTED_SINCE] = content.trusted_since.isoformat(timespec="seconds")
    return {**secret, "metadata": {**secret["metadata"], "annotations": annotations}, "data": data}


def read_configuration(resource: str, obj: Mapping[str, Any]) -> Configuration:
    """A webhook configuration as far as our certificates go: an entry that isn't ours is neither read nor written."""
    bundles = {
        webhook["name"]: base64.b64decode((webhook.get("clientConfig") or {}).get("caBundle") or "")
        for webhook in our_webhooks(obj)
    }
    return Configuration(resource, obj["metadata"]["resourceVersion"], bundles)


def our_webhooks(obj: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of a webhook configuration by which we are called."""
    return [webhook for webhook in obj.get("webhooks") or () if webhook["name"] in WEBHOOKS]


def _pair(data: Mapping[str, str], keys: tuple[str, str], damage: list[str]) -> KeyPair | None:
    if not any(data.get(key) for key in keys):
        return None
    try:
        return _decoded(data.get(keys[0]) or "", data.get(keys[1]) or "", " and ".join(keys))
    except (CertificateError, binascii.Error) as error:
        damage.append(str(error))
        return None


@functools.lru_cache(maxsize=4)  # the same pairs are seen each minute
def _decoded(chain: str, key: str, where: str) -> KeyPair:
    return read_key_pair(base64.b64decode(chain), base64.b64decode(key), where)


def _time(secret: Mapping[str, Any]) -> datetime | None:
    text = (secret["metadata"].get("annotations") or {}).get(TRUSTED_SINCE, "")
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else None


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
