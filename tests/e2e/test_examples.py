"""The examples for claims that people write themselves run as their heads say, on a cluster without the webhook."""

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import yaml

from tests.e2e.cluster import REPOSITORY, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.examples import checks
from tests.examples import FOLDER, Example, examples

EXAMPLES = examples(FOLDER)


@pytest.fixture(scope="module")
def checked(
    session_daemon: Daemon, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """What comes of each example, all of them on the cluster at once."""
    extended = yaml.safe_load((REPOSITORY / "extended-resource.yaml").read_text())
    with checks(cluster, session_daemon, EXAMPLES, tmp_path_factory.mktemp("examples"), extended) as given:
        yield given


@pytest.mark.since("1.36")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_it_is_as_its_head_says(checked: dict[str, Future[None]], example: Example) -> None:
    """Its containers see the limits and GPUs that the file says, or its pod waits or does not start for the reason given."""
    checked[example.name].result()
