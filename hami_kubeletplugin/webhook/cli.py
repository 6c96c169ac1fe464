"""`hami-webhook`: reads options and the environment, and runs a command."""

import asyncio
import gc
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.webhook_settings import Certificates, Conversion, WebhookSettings
from hami_kubeletplugin.observe.log import configure, get_logger
from hami_kubeletplugin.program import chosen, given_only, options, program, run_program

app = program(
    "GPU sharing for Kubernetes through DRA: keep your manifests. Each option has an environment variable too."
)


@app.command()
@options(WebhookSettings)
def run(context: typer.Context, **given: Any) -> None:
    """Run the admission webhook until SIGTERM."""
    from hami_kubeletplugin.webhook import service  # noqa: PLC0415 - the other commands need no server

    settings = WebhookSettings.checked(**given_only(given))
    configure(settings.log_format, settings.log_level)
    get_logger().info("options that are not the default", options=chosen(context, settings, given))
    asyncio.run(service.run(settings))


@app.command()
@options(Conversion)
def convert(
    *,
    filename: Annotated[
        list[str],
        typer.Option("--filename", "-f", help="A file of YAML or JSON, or - for the standard input. May be repeated."),
    ],
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            envvar="HAMI_GPU_MEMORY",
            help="MiB of the cluster's GPUs as they are published, e.g. 40960,81920, for percentages of memory, and warnings "
            "about amounts that none has. Default: ask the cluster.",
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            envvar=names.KUBECONFIG,
            help="The cluster to ask, as kubectl does, what GPUs it has; only if pods ask for GPUs. A file, or several with "
            "colons between.",
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(help="The context of --kubeconfig. Default: the current one.")] = None,
    leave: Annotated[
        list[str] | None,
        typer.Option(
            help="GROUP/KIND, with * for any, of custom resources to leave as they are, since their controllers read or refuse "
            "what is converted; the webhook converts their pods. May be repeated. Some are known: docs/migrating-from-hami.md.",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say on stderr what each line became, and what can't be kept.")
    ] = False,
    **given: Any,
) -> None:
    """Print the DRA form of manifests: ResourceClaimTemplates and the objects that use them, ready for kubectl apply.

    Pods, and pod templates wherever they are, in Deployments as in custom resources, are converted as the webhook does; all else
    comes out as it is. If something can't be converted, nothing is printed on stdout.
    """
    from hami_kubeletplugin.webhook.offline import documents, inputs  # noqa: PLC0415 - `run` needs no YAML
    from hami_kubeletplugin.webhook.offline.explain import explain as explained  # noqa: PLC0415

    gc.disable()  # looking for cycles in the trees of large files, which have none, is half of the work
    rules = Conversion.checked(**given_only(given))
    gpus = inputs.Gpus(gpu_memory, kubeconfig, context, rules)
    result = documents.convert_files(inputs.read_files(filename), rules, gpus.sizes, gpus, leave or ())
    for change in result.changes:
        told = explained(change, rules) if explain else (f"warning: {text}" for text in change.warnings)
        for line in told:
            typer.echo(line, err=True)
    for note in result.notes:
        typer.echo(f"warning: {note}", err=True)
    if gpus.trouble:
        typer.echo(f"warning: --kubeconfig: amounts were not held against the cluster's GPUs: {gpus.trouble}", err=True)
    typer.echo(result.text.encode(), nl=False)


@app.command()
@options(Certificates)
def certs(
    *,
    kubeconfig: Annotated[
        Path | None, typer.Option(envvar=names.KUBECONFIG, help="The cluster to ask. Default: as a pod in the cluster.")
    ] = None,
    output: Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="For people or for programs.")] = (
        "table"
    ),
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Before that, do the next step of a renewal, though none is due: make the next certificate and have it "
            "trusted; again after 5 minutes, if no webhook runs that does it: let it become current.",
        ),
    ] = False,
    **given: Any,
) -> None:
    """Show the webhook's certificate, and whether both configurations trust it. Exit 1 if something is wrong.

    After a key was stolen: --renew; when that certificate has become the current one, and a minute later is served by all
    webhooks, empty caBundle in both configurations: the webhook writes it again, without the earlier certificates.
    """
    from hami_kubeletplugin.kube.certificate_api import CertificateClient  # noqa: PLC0415
    from hami_kubeletplugin.kube.config import load  # noqa: PLC0415 - `convert` needs no API server
    from hami_kubeletplugin.webhook.certificate import report as told  # noqa: PLC0415

    settings = Certificates.checked(**given_only(given))
    configure("console", "warning")

    async def look() -> told.Report:
        async with CertificateClient(load(kubeconfig)) as api:
            if renew:
                await told.renew(settings, api)
            return await told.report(settings, api)

    found = asyncio.run(look())
    typer.echo(json.dumps(found.as_json(), indent=2) if output == "json" else found.as_text(datetime.now(UTC)))
    for problem in found.problems:
        typer.echo(problem, err=True)
    if found.problems:
        raise typer.Exit(1)


@app.command()
@options(WebhookSettings)
def doctor(
    *,
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="For people or for programs.")] = (
        "text"
    ),
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")] = False,
    timeout: Annotated[float, typer.Option(min=1, max=600, help="Seconds for all of it.")] = 60.0,
    **given: Any,
) -> None:
    """Look at the installation as the webhook's pod sees it, with its options and its rights; reads only.

    Exit 1: something is wrong; 3: something could not be found out. kubectl hami doctor sees more.
    """
    from hami_kubeletplugin.findings import as_json, as_text, exit_code  # noqa: PLC0415 - `run` needs none of it
    from hami_kubeletplugin.kube.blocking import BlockingClient  # noqa: PLC0415
    from hami_kubeletplugin.kube.config import load  # noqa: PLC0415
    from hami_kubeletplugin.kube.paged import OwnReader  # noqa: PLC0415
    from hami_kubeletplugin.webhook.doctor import checks  # noqa: PLC0415
    from hami_kubeletplugin.webhook.doctor.cluster import Cluster  # noqa: PLC0415
    from hami_kubeletplugin.webhook.doctor.installation import Installation  # noqa: PLC0415
    from hami_kubeletplugin.webhook.doctor.own import certificate  # noqa: PLC0415

    settings = WebhookSettings.checked(**given_only(given))
    configure("console", "error")
    access = load(settings.kubeconfig)
    client = BlockingClient(access)
    try:
        there = Installation(
            Cluster(OwnReader(client), settings.driver_name), settings.configuration, settings.namespace
        )
        looked_at = checks.for_the_webhook(there, lambda: certificate(settings, access))
        found = checks.found_by(there, looked_at, timeout)
    finally:
        client.close()
    typer.echo(as_json(found) if output == "json" else as_text(found))
    raise typer.Exit(exit_code(found, strict=strict))


def main() -> NoReturn:
    """Entry point. Exit 0, or 1 with one line on stderr that says what to mend."""
    run_program(app, names.WEBHOOK)
