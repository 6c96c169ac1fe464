"""`hami-kubeletplugin`: reads options and the environment, and runs a command."""

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hami_kubeletplugin import __version__, show
from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.api.settings import Hardware, Identity, Settings, Sharing
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.observe.log import configure

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_VARIABLES = {"node_name": "NODE_NAME", "kubeconfig": "KUBECONFIG", "hami_dir": "HAMI_DIR"}
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
    told = field.is_required() or field.default in (None, Path())  # plugin_dir's is in its description
    return "" if told else f"(default: {field.default})"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def group(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """GPU sharing for Kubernetes through DRA: the node daemon. Each option has an environment variable too."""


@app.command()
@options(Settings)
def run(**given: Any) -> None:
    """Run the daemon: publish this node's GPUs and serve the kubelet, until SIGTERM."""
    from hami_kubeletplugin import daemon  # noqa: PLC0415 - the other commands need neither gRPC nor aiohttp

    settings = Settings.checked(**_without_empty(given))
    configure(settings.log_format, settings.log_level)
    asyncio.run(daemon.run(settings))


class Output(StrEnum):
    """Forms of output."""

    table = "table"
    json = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people or for programs.")]


@app.command()
@options(Sharing, Hardware, Identity)
def devices(
    output: OutputOption = Output.table,
    node_name: Annotated[
        str, typer.Option(envvar="NODE_NAME", help="This node; simulated UUIDs follow from it.")
    ] = "this",
    **given: Any,
) -> None:
    """Show what would be published for this node's GPUs. Works beside a running daemon."""
    from hami_kubeletplugin.gpu.source import source_for  # noqa: PLC0415
    from hami_kubeletplugin.publish import devices as published  # noqa: PLC0415

    settings = Settings.checked(node_name=node_name, **_without_empty(given))
    configure("console", "warning")
    inventory = asyncio.run(source_for(settings).discover())
    found = published.devices(inventory.gpus, settings)
    typer.echo(json.dumps(found, indent=2) if output is Output.json else show.devices_table(found))


@app.command()
@options(Identity)
def claims(output: OutputOption = Output.table, **given: Any) -> None:
    """Show what is prepared on this node, for which containers, with which limits. Works beside a running daemon."""
    records = Records(Identity.checked(**_without_empty(given)).plugin_dir / "claims")
    found = list(records.all())
    prepared = [record for record in found if isinstance(record, Prepared)]
    typer.echo(show.claims_json(prepared) if output is Output.json else show.claims_table(prepared))
    for error in found:
        if isinstance(error, HamiError):
            typer.echo(str(error), err=True)


@app.command()
def demo() -> None:
    """Show the whole way without cluster and GPU: publish, allocate, prepare, look inside, unprepare."""
    from hami_kubeletplugin import demo as story  # noqa: PLC0415

    asyncio.run(story.tell(typer.echo))


def _without_empty(given: dict[str, Any]) -> dict[str, Any]:
    """An environment variable that is set to nothing, as manifests like to do, says nothing."""
    return {name: value for name, value in given.items() if value not in (None, "")}


def main() -> NoReturn:
    """Entry point. Exit 0, or 1 with one line on stderr that says what to mend."""
    try:
        app()
    except HamiError as error:
        sys.exit(f"hami-kubeletplugin: {error}")
    sys.exit(0)
