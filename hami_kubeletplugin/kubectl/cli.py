"""`kubectl-hami`, which kubectl runs as `kubectl hami`: reads options, reads the cluster, prints."""

import gc
import json
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from hami_kubeletplugin import bundles
from hami_kubeletplugin.api import names
from hami_kubeletplugin.findings import as_json, as_text, exit_code
from hami_kubeletplugin.kube.people import PeoplesClient
from hami_kubeletplugin.kubectl import fits, fits_view, support, usage_view, why_view
from hami_kubeletplugin.kubectl.cluster import look, look_around
from hami_kubeletplugin.kubectl.usage_view import By
from hami_kubeletplugin.kubectl.why import why as explain
from hami_kubeletplugin.program import program, run_program
from hami_kubeletplugin.webhook.cli import convert
from hami_kubeletplugin.webhook.doctor import checks
from hami_kubeletplugin.webhook.doctor.cluster import Cluster
from hami_kubeletplugin.webhook.doctor.installation import Installation, answers, driver_of

app = program(
    "What GPUs of the cluster are used, what would fit, and why a pod waits. Reads only, as you, with your kubeconfig."
)
app.command()(convert)

Kubeconfig = Annotated[
    str | None,
    typer.Option(envvar=names.KUBECONFIG, help="A file, or several with colons between. Default: ~/.kube/config."),
]
Context = Annotated[str | None, typer.Option(help="The context in it. Default: the current one.")]
Driver = Annotated[str, typer.Option(envvar=names.DRIVER_NAME, help="Whose GPUs.")]
Output = Annotated[
    Literal["table", "wide", "json"],
    typer.Option("--output", "-o", help="For people, with more columns, or for programs."),
]


@app.command()
def usage(
    *,
    by: Annotated[By, typer.Option(help="What a line of the table is.")] = "node",
    fit: Annotated[
        str | None,
        typer.Option(
            "--fits",
            metavar="AMOUNTS",
            help="On which GPUs this would fit now, e.g. memory=20Gi,cores=50 or shares=10000,count=2: of each of so many GPUs "
            "of one node. What isn't named is what a claim gets that doesn't name it. Exit 1 if it fits nowhere.",
        ),
    ] = None,
    output: Output = "table",
    driver_name: Driver = names.DRIVER,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show what GPUs the cluster has, what claims consume of them, and what is available.

    That is what the scheduler gives out; what programs really use, hami-kubeletplugin top shows on the node.
    """
    gc.disable()  # looking for cycles in the trees of large clusters, which have none, would take a third of the time
    want = None if fit is None else fits.parse(fit)
    with PeoplesClient.of(kubeconfig, context) as client:
        seen = look(client, driver_name)
    for note in (*seen.notes, *usage_view.notes(seen.inventory)):
        typer.echo(note, err=True)
    if want is None:
        found = usage_view.as_json(seen.inventory) if output == "json" else None
        typer.echo(
            json.dumps(found, indent=2) if found else usage_view.tables(seen.inventory, by, wide=output == "wide")
        )
        return
    answer = fits_view.answer(seen.inventory, want)
    if output == "json":
        typer.echo(json.dumps(fits_view.as_json(answer), indent=2))
    elif text := fits_view.text(answer, wide=output == "wide"):
        typer.echo(text)
    for note in fits_view.notes(answer):
        typer.echo(note, err=True)
    if not answer.there:
        raise typer.Exit(1)


@app.command()
def why(
    *,
    pod: Annotated[str, typer.Argument(help="Its name.")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="The pod's. Default: the context's, or default.")
    ] = None,
    output: Output = "table",
    driver_name: Driver = names.DRIVER,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say why a pod does not start: what is missing on each node and GPU, and what scheduler and kubelet say.

    CPU, volumes, other pods and the like are the scheduler's matter: its message is shown. Selectors that can't be judged
    here are named.
    """
    gc.disable()  # as above
    name = pod.removeprefix("pod/").removeprefix("pods/")
    with PeoplesClient.of(kubeconfig, context) as client:
        within = namespace or client.access.namespace
        around = look_around(client, within, name)
        found = explain(around, look(client, driver_name))
    if output == "json":
        typer.echo(json.dumps(why_view.as_json(found), indent=2))
    else:
        typer.echo(why_view.text(f"{within}/{name}", found, wide=output == "wide"))


@app.command()
def doctor(
    *,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Where a pod is tried out, as a dry run. Default: the context's, or default."
        ),
    ] = None,
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="For people or for programs.")] = (
        "text"
    ),
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")] = False,
    support_bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.tar.gz", help="Write what a bug report needs into this new file. No Secrets are read."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, max=600, help="Seconds for all checks.")] = 60.0,
    driver_name: Annotated[
        str | None, typer.Option(envvar=names.DRIVER_NAME, help="Whose GPUs. Default: what the DaemonSet says.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say what is wrong with the installation in the cluster, why it matters, and the command that mends it.

    Reads only; a pod that asks for a GPU is tried out as a dry run. Exit 1: something is wrong; 3: something could not be
    found out. On a node: hami-kubeletplugin doctor.
    """
    gc.disable()  # as above
    with PeoplesClient.of(kubeconfig, context) as client:
        cluster = Cluster(client)
        answers(cluster, timeout)
        cluster.driver = driver_name or driver_of(cluster)
        there = Installation(cluster)
        within = namespace or client.access.namespace
        found = checks.found_by(there, checks.for_people(there, within, client.try_out), timeout)
        typer.echo(as_json(found) if output == "json" else as_text(found))
        if support_bundle is not None:
            bundles.write(support_bundle, support.collect(there, client, found, timeout))
    raise typer.Exit(exit_code(found, strict=strict))


def main() -> NoReturn:
    """Entry point. Exit 0, or 1 with one line on stderr that says what to mend."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # terminals of other encodings
    run_program(app, "kubectl-hami")
