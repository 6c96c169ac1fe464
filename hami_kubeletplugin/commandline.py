"""Options of commands, made from settings models: each is declared, checked and documented once. And tables."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_VARIABLES = {
    "node_name": "NODE_NAME",
    "kubeconfig": "KUBECONFIG",
    "hami_dir": "HAMI_DIR",
    "hami_core": "HAMI_CORE",
    "hami_core_version": "HAMI_CORE_VERSION",
}
"""Environment variables with a name that everybody uses, or that would stammer; all others are HAMI_<OPTION>."""


def options(*models: type[BaseModel]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that settings models declare, so that each is declared and documented once.

    The command gets them as keyword arguments, None where neither the command line nor the environment says anything.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        fields = {name: field for model in models for name, field in model.model_fields.items()}
        made = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    str | None,
                    typer.Option(
                        f"--{name.replace('_', '-')}",
                        envvar=_VARIABLES.get(name, f"HAMI_{name.upper()}"),
                        help=" ".join(filter(None, (field.description, _values(field), _default(field)))),
                        show_default=False,
                    ),
                ],
            )
            for name, field in fields.items()
        ]
        command.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
        return command

    return decorate


def _values(field: FieldInfo) -> str:
    values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return f"One of {', '.join(values)}." if values else ""


def _default(field: FieldInfo) -> str:
    told = field.is_required() or field.default in (None, "", Path())  # plugin_dir's is in its description
    return "" if told else f"(default: {field.default})"


def given_only(given: dict[str, Any]) -> dict[str, Any]:
    """The options that somebody gave. An environment variable that is set to nothing, as manifests like to do, says nothing."""
    return {name: value for name, value in given.items() if value not in (None, "")}


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
