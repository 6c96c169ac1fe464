"""What pods for several GPUs cost the scheduler, on a control plane of its own whose nodes are only objects."""

import asyncio
from pathlib import Path

import pytest

from bench.scheduling import Refusal, busy_nodes
from bench.unschedulable import NOWHERE
from tests.e2e.cluster import Cluster

NODES = 20
ONE, EIGHT = [NOWHERE], [{"nvidia.com/gpu": "8"}]
MULTIPLE = 8
"""So many times the scheduler's time for a single GPU eight may take; as eight requests, kept apart, it was 200 times."""


@pytest.mark.since("1.36")
def test_a_pod_for_eight_gpus_that_fits_nowhere_holds_nobody_up(cluster: Cluster, tmp_path: Path) -> None:
    """On 20 busy nodes, each with 7 of 8 GPUs free, it is refused soon, and a plain pod created meanwhile has its node soon."""
    one, eight = asyncio.run(_refusals(cluster.directory / "bin" / cluster.version, tmp_path))
    assert sum(each.verdict for each in eight) < MULTIPLE * sum(each.verdict for each in one)
    assert sum(each.bystander for each in eight) < MULTIPLE * sum(each.bystander for each in one)


async def _refusals(programs: Path, work: Path) -> tuple[list[Refusal], list[Refusal]]:
    """Of pods for one GPU that no node has, and of pods for eight, in turns."""
    one: list[Refusal] = []
    eight: list[Refusal] = []
    async with busy_nodes(programs, work, NODES) as scheduling:
        await scheduling.refused(ONE)  # what is made once
        for _ in range(5):
            one.append(await scheduling.refused(ONE))
            eight.append(await scheduling.refused(EIGHT))
    return one, eight
