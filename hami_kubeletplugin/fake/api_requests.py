"""What a request to the fake API server means: verb, resource, version and key from its method and path. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from hami_kubeletplugin.fake.api_kinds import GROUP, RESOURCES
from hami_kubeletplugin.fake.api_store import Key

_VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a resource that is served."""

    verb: str
    resource: str
    version: str
    key: Key


def parse(method: str, raw_path: str, query: Mapping[str, str], api_versions: Collection[str]) -> Asked | None:
    """The meaning of a request, or None for a path that isn't served.

    Args:
        method: HTTP's.
        raw_path: Still escaped.
        query: Parameters.
        api_versions: The versions of resource.k8s.io that are served.
    """
    match [unquote(segment) for segment in raw_path.strip("/").split("/")]:
        case ["api", "v1" as version, *rest]:
            group = ""
        case ["apis", group, version, *rest] if group and version in (api_versions if group == GROUP else ("v1",)):
            pass
        case _:
            return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 2 or rest[0] not in RESOURCES or RESOURCES[rest[0]].group != group:
        return None
    name = rest[1] if len(rest) == 2 else ""
    verb = _VERBS.get(method, method.lower())
    if not name and verb == "get":
        verb = "watch" if query.get("watch") in {"1", "true"} else "list"
    elif not name and verb == "delete":
        verb = "deletecollection"
    return Asked(verb, rest[0], version, Key(rest[0], namespace, name))
