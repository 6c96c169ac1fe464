"""What the command lines of both programs share. Options are made of settings models, so each is declared and checked once."""

import contextlib
import inspect
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import HamiError

_VARIABLES = {
    "node_name": names.NODE_NAME,
    "kubeconfig": names.KUBECONFIG,
    "hami_dir": "HAMI_DIR",
    "hami_core": "HAMI_CORE",
    "hami_core_version": "HAMI_CORE_VERSION",
}
"""Environment variables with a name that everybody uses, or that would stammer; all others are HAMI_<OPTION>."""

_HAMI_CORE: Final = Path("/usr/local/lib/hami/versions.json")

_LAST_WAIT: Final = 1.0
"""Seconds for threads to end by themselves once all else has."""


def program(summary: str) -> typer.Typer:
    """A program whose commands are to be added; it knows `--version` already."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback(help=summary)
    def group(
        *,
        version: Annotated[
            bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
        ] = False,
    ) -> None:
        """Nothing but its options."""

    return app


def run_program(app: typer.Typer, name: str) -> NoReturn:
    """Run it and end: exit 0, or 1 with one line on stderr that says what to mend."""
    end = SystemExit(0)
    try:
        app()
    except HamiError as error:
        end = SystemExit(f"{name}: {error}")
    except SystemExit as error:
        end = error
    # Python waits for all threads of pools, and so for ever for one that hangs in the kernel. All else has ended.
    last = threading.Timer(_LAST_WAIT, os._exit, [end.code if isinstance(end.code, int) else int(end.code is not None)])
    last.daemon = True
    last.start()
    raise end


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo("\n".join([__version__, *built(os.environ, _HAMI_CORE)]))
        raise typer.Exit


def built(environment: Mapping[str, str], versions: Path) -> list[str]:
    """What the image, if this runs in one, was built from, in lines: our commit, and HAMi-core.

    Args:
        environment: The Dockerfile puts the commit into HAMI_REVISION.
        versions: HAMi-core's versions.json in the image.
    """
    lines = [f"commit {revision}"] if (revision := environment.get("HAMI_REVISION")) else []
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # in no image, or one of somebody else's making
        lines += [
            f"HAMi-core {'+'.join(filter(None, (each['version'], each.get('patch'))))} sha256:{each['sha256']}"
            for each in json.loads(versions.read_text())
        ]
    return lines


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
                        _option(name),
                        envvar=_variable(name),
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


def chosen(context: typer.Context, settings: BaseModel, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options that somebody gave another value than the default, for the log: their values, and where they come from.

    No option of ours is a secret: keys and tokens are named by their files.

    Args:
        context: Of the command.
        settings: What was made of them.
        given: As the command got them.
    """
    fields, values = type(settings).model_fields, settings.model_dump(mode="json")
    return {
        _option(name): {
            "value": values[name],
            "from": _variable(name) if _is_from_environment(context, name) else "command line",
        }
        for name in given_only(given)
        if getattr(settings, name) != fields[name].default
    }


def _is_from_environment(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _variable(name: str) -> str:
    return _VARIABLES.get(name, f"HAMI_{name.upper()}")


def _values(field: FieldInfo) -> str:
    values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return f"One of {', '.join(values)}." if values else ""


def _default(field: FieldInfo) -> str:
    told = field.is_required() or field.default in (None, "", Path())  # plugin_dir's is in its description
    return "" if told else f"(default: {field.default})"


def given_only(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that somebody gave. An environment variable that is set to nothing, as manifests like to do, says nothing."""
    return {name: value for name, value in given.items() if value not in (None, "")}


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
