"""The examples for HAMi's fields run as their heads say: the webhook makes claims of them."""

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.examples import checks
from tests.e2e.webhook.process import Webhook
from tests.examples import FOLDER, Example, examples

EXAMPLES = examples(FOLDER / "hami")


@pytest.fixture(scope="module")
def checked(
    session_daemon: Daemon, installed: Webhook, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """What comes of each example, all of them on the cluster at once."""
    with checks(cluster, session_daemon, EXAMPLES, tmp_path_factory.mktemp("examples")) as given:
        yield given


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_it_is_as_its_head_says(checked: dict[str, Future[None]], example: Example) -> None:
    """Its containers see the limits and GPUs that the file says, or its pod is refused for the reason given."""
    checked[example.name].result()
