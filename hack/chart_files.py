"""What the chart has from elsewhere: see hack/chart."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.api.webhook_settings import WebhookSettings

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts/hami-dra"
OF_THE_DAEMON = {
    *("node-name", "kubeconfig", "driver-name", "hami-dir", "plugin-dir", "registry-dir", "cdi-dir"),
    *(
        "driver-root",
        "host-driver-root",
        "driver-edits",
        "nvidia-cdi-hook",
        "device-split-count",
        "device-memory-scaling",
    ),
    *("device-core-scaling", "metrics-address", "tls-cert-file", "tls-key-file", "metrics-token-file", "device-status"),
    *("log-level", "log-format"),
}
"""Options that have values of their own, or that the chart knows best."""
OF_THE_WEBHOOK = {
    *(
        "kubeconfig",
        "driver-name",
        "device-class",
        "namespace",
        "service",
        "tls-secret",
        "configuration",
        "tls-cert-file",
    ),
    *("tls-key-file", "log-level", "log-format", "replace-scheduler"),
    *("resource-count-name", "resource-memory-name", "resource-memory-alias", "resource-memory-percentage-name"),
    *("resource-core-name", "resource-priority-name"),
}
_KEPT = ("enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "maxLength", "minLength")
_KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(.*)$")


def options(model: type[BaseModel], own: set[str]) -> dict[str, Any]:
    """The schema of a map of a program's options, all but those that have values of their own. Pure."""
    properties = {}
    for field, schema in model.model_json_schema()["properties"].items():
        name = field.replace("_", "-")
        if name not in own:
            given = next((each for each in schema.get("anyOf", []) if each.get("type") != "null"), schema)
            properties[name] = {
                "description": schema["description"],
                "type": given["type"],
                **{key: given[key] for key in _KEPT if key in given},
            }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def documented(text: str) -> Iterator[tuple[str, str]]:
    """Path of each value of a values.yaml with a comment above it, and the comment. Pure."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("# "):
            comment.append(line.strip()[2:])
        elif match := _KEY.match(line):
            indent, key = len(match[1]), match[2]
            path = [*((depth, name) for depth, name in path if depth < indent), (indent, key)]
            if comment:
                yield ".".join(name for _, name in path), " ".join(comment)
            comment = []
        else:
            comment = []


def at(values: Mapping[str, Any], path: str) -> Any:
    """The value at a path."""
    found: Any = values
    for name in path.split("."):
        found = found[name]
    return found


def readme(text: str) -> str:
    """README.md of the chart: what stands in its head file, and a table of all values. Pure but for that file."""
    values = yaml.safe_load(text)
    rows = [
        f"| `{path}` | {_cell(comment)} | `{json.dumps(at(values, path))}` |".replace("`null`", "not set")
        for path, comment in documented(text)
    ]
    head = (CHART / "README.head.md").read_text()
    return "\n".join([head.rstrip(), "", "| value | what | default |", "|---|---|---|", *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def require(schema: dict[str, Any], values: Mapping[str, Any], defs: Mapping[str, Any]) -> None:
    """Say in the schema of a section what must not be taken away: helm takes away what somebody's values name and leave empty.

    Sections, switches, numbers and texts that can't be empty are needed; lists, maps and what may be empty are not.
    """
    needed = []
    for name, given in schema["properties"].items():
        said = defs[given["$ref"].rpartition("/")[2]] if "$ref" in given else given
        if "properties" in given:
            require(given, values[name], defs)
        may_be_empty = isinstance(values[name], str) and (
            not values[name] or ("pattern" in said and re.search(said["pattern"], "") is not None)
        )
        if ("properties" in said and values[name]) or (isinstance(values[name], bool | int | str) and not may_be_empty):
            needed.append(name)
    schema["required"] = needed


def files() -> dict[Path, str]:
    """All that is made, by path."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    schema["$defs"]["daemonOptions"] = options(Settings, OF_THE_DAEMON)
    schema["$defs"]["webhookOptions"] = options(WebhookSettings, OF_THE_WEBHOOK)
    require(schema, yaml.safe_load((CHART / "values.yaml").read_text()), schema["$defs"])
    return {
        CHART / "values.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        CHART / "README.md": readme((CHART / "values.yaml").read_text()),
    }


def main(arguments: list[str]) -> int:
    """Write them, or with --check say which are not fresh."""
    if arguments not in ([], ["--check"]):
        print("usage: hack/chart [--check]", file=sys.stderr)
        return 2
    made = files()
    stale = [path for path, content in made.items() if not path.exists() or path.read_text() != content]
    if arguments:
        for path in stale:
            print(
                f"hack/chart: {path.relative_to(ROOT)} is not fresh; run hack/chart and commit the result",
                file=sys.stderr,
            )
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
