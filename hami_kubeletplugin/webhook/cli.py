"""`hami-webhook`: reads options and the environment, and runs a command."""

import asyncio
import sys
from typing import Annotated, Any, NoReturn

import typer

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.commandline import given_only, options
from hami_kubeletplugin.observe.log import configure

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    """GPU sharing for Kubernetes through DRA: keep your manifests. Each option has an environment variable too."""


@app.command()
@options(WebhookSettings)
def run(**given: Any) -> None:
    """Run the admission webhook until SIGTERM."""
    from hami_kubeletplugin.webhook import service  # noqa: PLC0415 - the other commands need no server

    settings = WebhookSettings.checked(**given_only(given))
    configure(settings.log_format, settings.log_level)
    asyncio.run(service.run(settings))


def main() -> NoReturn:
    """Entry point. Exit 0, or 1 with one line on stderr that says what to mend."""
    try:
        app()
    except HamiError as error:
        sys.exit(f"hami-webhook: {error}")
    sys.exit(0)
