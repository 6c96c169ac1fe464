"""`hami-kubeletplugin`: reads options and the environment, and runs a command."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from hami_kubeletplugin import show
from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.api.settings import Discovery, Identity, Places, Settings, Sharing
from hami_kubeletplugin.api.taint_settings import TaintSettings
from hami_kubeletplugin.claims.other_names import other_names
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.gpu.conditions import Conditions, Found
from hami_kubeletplugin.gpu.model import Gpu, GpuSource
from hami_kubeletplugin.inforce.running import loaded_now
from hami_kubeletplugin.observe.log import configure, get_logger
from hami_kubeletplugin.program import chosen, given_only, options, program, run_program

app = program("GPU sharing for Kubernetes through DRA: the node daemon. Each option has an environment variable too.")


@app.command()
@options(Settings)
def run(context: typer.Context, **given: Any) -> None:
    """Run the daemon: publish this node's GPUs and serve the kubelet, until SIGTERM."""
    from hami_kubeletplugin.daemon import service  # noqa: PLC0415 - the other commands need neither gRPC nor aiohttp

    settings = Settings.checked(**given_only(given))
    configure(settings.log_format, settings.log_level)
    get_logger().info("options that are not the default", options=chosen(context, settings, given))
    asyncio.run(service.run(settings))


class Output(StrEnum):
    """Forms of output."""

    table = "table"
    json = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people or for programs.")]


@app.command()
@options(Sharing, Discovery, Identity, TaintSettings)
def devices(
    output: OutputOption = Output.table,
    node_name: Annotated[
        str, typer.Option(envvar=names.NODE_NAME, help="This node; simulated UUIDs follow from it.")
    ] = "this",
    **given: Any,
) -> None:
    """Show what would be published for this node's GPUs. Works beside a running daemon.

    CONDITION is what the daemon knows of a GPU that is to be said, such as that it waits for a reset; only a running daemon does.
    """
    from hami_kubeletplugin.gpu.source import source_for  # noqa: PLC0415
    from hami_kubeletplugin.publish import devices as published  # noqa: PLC0415
    from hami_kubeletplugin.publish import taints  # noqa: PLC0415

    settings = Settings.checked(node_name=node_name, **given_only(given))
    configure("console", "warning")
    inventory = asyncio.run(source_for(settings).discover())
    conditions = _conditions(settings.plugin_dir)
    found = taints.tainted(published.devices(inventory.gpus, settings), conditions or {}, settings.effects)
    typer.echo(json.dumps(found, indent=2) if output is Output.json else show.devices_table(found, conditions))
    if conditions is None:
        typer.echo("what is to be said of GPUs is not known: no daemon runs on this node", err=True)


def _conditions(plugin_dir: Path) -> Found | None:
    """What the daemon that runs knows; None if none does. What one that is gone has left is no news."""
    from hami_kubeletplugin.health import kept  # noqa: PLC0415
    from hami_kubeletplugin.kubelet.sockets import serving  # noqa: PLC0415

    holder, found, board = serving(plugin_dir), kept.read(plugin_dir), Conditions()
    if holder is None or found is None or found.holder != holder:
        return None
    board.restore(found.by_source)
    return board.all.get()


@app.command()
@options(Identity)
def claims(output: OutputOption = Output.table, **given: Any) -> None:
    """Show what is prepared on this node, for which containers, with which limits. Works beside a running daemon.

    LOADED BY is how many of the containers' processes have HAMi-core loaded now, as far as they can be seen. Claims that were
    prepared under other driver names are counted on stderr.
    """
    settings = Identity.checked(**given_only(given))
    found = list(Records(settings.plugin_dir / "claims").all())
    prepared = [record for record in found if isinstance(record, Prepared)]
    running = loaded_now(prepared, settings.hami_dir)
    shown = show.claims_json if output is Output.json else show.claims_table
    typer.echo(shown(prepared, running))
    for error in found:
        if isinstance(error, HamiError):
            typer.echo(str(error), err=True)
    for other in other_names(settings.plugin_dir, settings.driver_name):
        typer.echo(
            f"{len(other.claims)} more of driver {other.driver}: hami-kubeletplugin claims --driver-name {other.driver} "
            f"--plugin-dir {other.plugin_dir}",
            err=True,
        )


@app.command()
@options(Discovery, Identity)
def top(
    output: OutputOption = Output.table,
    once: Annotated[
        bool,
        typer.Option("--once", help="Print once and exit, as it does for programs and where there is no terminal."),
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between looks.", min=0.5, max=3600)] = 2.0,
    node_name: Annotated[
        str, typer.Option(envvar=names.NODE_NAME, help="This node; simulated UUIDs follow from it.")
    ] = "this",
    **given: Any,
) -> None:
    """Show what containers use of this node's GPUs, beside what they may, until Ctrl-C. Works beside a running daemon.

    Of each GPU what is allocated of it, and of each container and GPU its limit, what it uses, its share of the compute, how
    many processes use it and when its last kernel was. `?` is not known. Needs root, and the node's processes (hostPID).
    """
    from hami_kubeletplugin import top as shown  # noqa: PLC0415
    from hami_kubeletplugin.gpu.source import sessions_for, source_for  # noqa: PLC0415
    from hami_kubeletplugin.usage.service import HANGS, UsageOfNode  # noqa: PLC0415

    settings = Settings.checked(node_name=node_name, **given_only(given))
    configure("console", "warning")
    live = output is Output.table and not once and sys.stdout.isatty()

    async def look() -> None:
        sessions = sessions_for(settings)
        gpus = await _gpus(settings, source_for(settings, sessions=sessions))
        usage = UsageOfNode(
            records=Records(settings.plugin_dir / "claims"),
            hami_dir=settings.hami_dir,
            gpus=lambda: gpus,
            sessions=sessions,
            patience=HANGS,
        )
        while live:
            typer.echo(shown.screen(await usage.look()), nl=False)
            await asyncio.sleep(every)
        found = await usage.look()
        typer.echo(shown.as_json(found) if output is Output.json else shown.text(found))

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(look())


@app.command()
@options(Settings)
def doctor(
    output: OutputOption = Output.table,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are errors for the exit status, too.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for all checks together.", min=1, max=600)] = 20.0,
    trial: Annotated[
        bool,
        typer.Option(
            "--try", help="Also start a process with our edits, as in a container, and see its limit in force."
        ),
    ] = False,
    support_bundle: Annotated[
        Path | None,
        typer.Option(help="Also write FILE.tar.gz with what a bug report needs, without secrets.", show_default=False),
    ] = None,
    **given: Any,
) -> None:
    """Say what is right and wrong on this node, why that matters, and what mends it. Works beside a running daemon.

    Changes nothing; --try makes a folder below --hami-dir that goes again. Exit status 0: no error; 1: an error; 3: no error,
    but not all could be found out. In the daemon's pod it has the daemon's options: kubectl -n hami-system exec POD --
    hami-kubeletplugin doctor. Needs root.
    """
    from hami_kubeletplugin import findings  # noqa: PLC0415
    from hami_kubeletplugin.doctor.checks import checks  # noqa: PLC0415
    from hami_kubeletplugin.doctor.cluster import Cluster  # noqa: PLC0415
    from hami_kubeletplugin.doctor.place import Place  # noqa: PLC0415

    settings = Settings.checked(**{"node_name": socket.gethostname(), **given_only(given)})
    configure("console", "error")
    place = Place(settings, timeout)
    cluster = Cluster(place)
    found = findings.examine(checks(place, cluster, trial=trial), timeout)
    typer.echo(findings.as_json(found) if output is Output.json else findings.as_text(found))
    if support_bundle is not None:
        from hami_kubeletplugin.doctor import bundle  # noqa: PLC0415

        written = bundle.write(support_bundle, place, cluster, found)
        typer.echo(
            f"{support_bundle}: {len(written)} parts; its MANIFEST says what they are. Look at it before you hand it on",
            err=True,
        )
    raise typer.Exit(findings.exit_code(found, strict=strict))


async def _gpus(settings: Settings, source: GpuSource) -> Mapping[str, Gpu]:
    """This node's GPUs as the daemon knows them; where none has run, as they are seen now."""
    from hami_kubeletplugin.gpu.known import KnownGpus  # noqa: PLC0415

    try:
        boot_id = settings.boot_id_file.read_text().strip()
        known = KnownGpus(settings.plugin_dir / "gpus.json", boot_id).read() if settings.simulate is None else None
        return (known or await source.discover()).by_uuid()
    except (HamiError, OSError) as error:
        typer.echo(f"this node's GPUs can't be seen: {error}", err=True)
        return {}


@app.command()
@options(Places)
def uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    claims: Annotated[
        bool,
        typer.Option("--claims", help="Also what belongs to prepared claims whose containers are gone for good."),
    ] = False,
    **given: Any,
) -> None:
    """Take away what the daemon leaves on this node: refused while a daemon serves or claims are prepared.

    Nothing else is touched, and no link is followed. For after the DaemonSet is gone; may be run again.
    """
    from hami_kubeletplugin import uninstall as removal  # noqa: PLC0415 - needs gRPC

    configure("console", "warning")
    settings = Places.checked(**given_only(given))
    for path in asyncio.run(removal.uninstall(settings, claims=claims, dry_run=dry_run)):
        typer.echo(path)


@app.command()
def demo() -> None:
    """Show the whole way without cluster and GPU: publish, convert, allocate, prepare, look inside, unprepare."""
    from hami_kubeletplugin import demo as story  # noqa: PLC0415

    asyncio.run(story.tell(typer.echo))


def main() -> NoReturn:
    """Entry point. Exit 0, or 1 with one line on stderr that says what to mend."""
    run_program(app, "hami-kubeletplugin")
