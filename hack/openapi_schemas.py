"""Make of Kubernetes' OpenAPI documents a JSON schema for each kind, as kubeconform wants them.

    openapi_schemas.py FOLDER_OF_DOCUMENTS FOLDER_TO_WRITE

Strict, as the API server with `fieldValidation=Strict`: a field that a type doesn't have is an error. Each file stands alone.
Contract: the documents are api/openapi-spec/v3/*_openapi.json of k8s.io/kubernetes; names are kubeconform's
`{{.ResourceKind}}{{.KindSuffix}}.json` (pkg/registry).
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_REF = "#/components/schemas/"


def schemas(document: Any) -> Iterator[tuple[str, Any]]:
    """Name of the file and schema of each kind of a document. Pure."""
    types = document.get("components", {}).get("schemas", {})
    for name, schema in types.items():
        kinds = schema.get("x-kubernetes-group-version-kind", [])
        # Options and lists of every group have many; what people write has one.
        if len(kinds) == 1 and {"apiVersion", "kind"} <= schema.get("properties", {}).keys():
            yield file_name(**kinds[0]), standalone(name, types)


def file_name(group: str, version: str, kind: str) -> str:
    """As kubeconform looks for a kind: of a group the first word."""
    words = [kind.lower(), *([group.partition(".")[0]] if group else []), version]
    return "-".join(words) + ".json"


def standalone(name: str, types: Any) -> Any:
    """A type's schema with all that it names in it."""
    found: dict[str, Any] = {}
    left = [name]
    while left:
        each = left.pop()
        if each not in found:
            found[each] = strict(types[each], left)
    return {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": f"#/definitions/{name}", "definitions": found}


def strict(schema: Any, named: list[str]) -> Any:
    """The same with no other fields than the type has, and references into one file; adds to `named` the types that it names."""
    if isinstance(schema, list):
        return [strict(item, named) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: strict(value, named) for key, value in schema.items() if key not in {"description", "default", "example"}
    }
    # A property may be called as one of those keywords.
    if isinstance(schema.get("properties"), dict):
        made["properties"] = {key: strict(value, named) for key, value in schema["properties"].items()}
        made.setdefault("additionalProperties", False)
    if isinstance(schema.get("$ref"), str):
        target = schema["$ref"].removeprefix(_REF)
        named.append(target)
        made["$ref"] = f"#/definitions/{target}"
    return made


def main(source: Path, target: Path) -> None:
    """Write them all."""
    target.mkdir(parents=True)
    for path in sorted(source.glob("*_openapi.json")):
        for name, schema in schemas(json.loads(path.read_text())):
            (target / name).write_text(json.dumps(schema))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
