"""The examples for claims that people write themselves run as their heads say, on a cluster without the webhook."""

from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.cluster import REPOSITORY, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.examples import applied, check
from tests.examples import FOLDER, Example, examples

EXAMPLES = examples(FOLDER)


@pytest.fixture(scope="module")
def refused(
    session_daemon: Daemon, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """All examples at once; what was refused of them."""
    extended = yaml.safe_load((REPOSITORY / "extended-resource.yaml").read_text())
    cluster.apply(extended)
    with applied(cluster, session_daemon, EXAMPLES, tmp_path_factory.mktemp("examples")) as told:
        yield told
    cluster.kubectl("delete", "deviceclass", extended["metadata"]["name"])


@pytest.mark.since("1.36")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_it_is_as_its_head_says(cluster: Cluster, refused: dict[str, str], example: Example) -> None:
    """Its containers see the limits and GPUs that the file says, or its pod waits or does not start for the reason given."""
    check(cluster, example, refused)
