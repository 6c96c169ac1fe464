"""Patches of the fake API server: what an object becomes. Pure.

Contract: RFC 7386 (merge patch); kubernetes docs tasks/manage-kubernetes-objects/update-api-object-kubectl-patch.md (strategic
merge patch: lists with a merge key, here `webhooks` by `name`; directives such as `$patch` are not known here).
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from hami_kubeletplugin.fake.api_kinds import Object
from hami_kubeletplugin.fake.api_store import Refusal

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
_MERGE_KEYS: Final[Mapping[str, str]] = {"webhooks": "name"}


def patched(obj: Object, patch: Any, content_type: str) -> Object:
    """`obj` with the patch applied; `obj` stays as it is.

    Raises:
        Refusal: 400, or 415 for kinds of patches that are not served here.
    """
    if content_type not in {MERGE, STRATEGIC}:
        message = (
            f"the body of the request was in an unknown format - accepted media types include: {MERGE}, {STRATEGIC}"
        )
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    if not isinstance(patch, dict):
        raise Refusal(HTTPStatus.BAD_REQUEST, "BadRequest", "the patch is not an object")
    return _merged(obj, patch, _MERGE_KEYS if content_type == STRATEGIC else {})


def _merged(old: Mapping[str, Any], patch: Mapping[str, Any], keys: Mapping[str, str]) -> Object:
    result = dict(old)
    for field, value in patch.items():
        before = result.get(field)
        if value is None:
            result.pop(field, None)
        elif isinstance(value, dict):
            result[field] = _merged(before if isinstance(before, dict) else {}, value, keys)
        elif field in keys and isinstance(before, list):
            result[field] = _merged_list(before, value, keys[field], keys)
        else:
            result[field] = value
    return result


def _merged_list(old: list[Object], patch: list[Object], key: str, keys: Mapping[str, str]) -> list[Object]:
    if not all(key in item for item in patch):
        message = f"map: does not contain declared merge key: {key}"
        raise Refusal(HTTPStatus.BAD_REQUEST, "BadRequest", message)
    changes = {item[key]: item for item in patch}
    kept = [_merged(item, changes.pop(item[key], {}), keys) for item in old]
    return [*kept, *changes.values()]
