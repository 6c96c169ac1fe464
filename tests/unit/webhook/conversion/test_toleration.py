"""webhook.toleration: what the plugin of GKE's and AKS's API servers would have added, had HAMi's webhook been there."""

from typing import Any

import pytest

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.convert import convert
from hami_kubeletplugin.webhook.conversion.toleration import after_plugin
from tests.unit.webhook.pods import CORES, GPU, MEMORY, container, pod

RULES = Conversion()


def tolerated(resource: str) -> dict[str, str]:
    """As ExtendedResourceToleration writes it."""
    return {"key": resource, "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("named", "there", "added"),
    [
        # As the plugin leaves a pod that names memory or cores only.
        ({MEMORY: 100}, [tolerated(MEMORY)], [tolerated(GPU)]),
        ({CORES: 10}, [{"key": "x", "operator": "Exists"}, tolerated(CORES)], [tolerated(GPU)]),
        # It has added it itself, or there is no such plugin, or nothing to tolerate.
        ({GPU: 1, MEMORY: 100}, [tolerated(GPU), tolerated(MEMORY)], []),
        ({MEMORY: 100}, [tolerated(MEMORY), {"operator": "Exists"}], []),
        ({MEMORY: 100}, [], []),
        ({MEMORY: 100}, [{"key": MEMORY, "operator": "Exists", "effect": "NoExecute"}], []),
        ({GPU: 0, MEMORY: 100}, [tolerated(MEMORY)], []),
        ({MEMORY: 100}, [{"key": [MEMORY], "operator": "Exists", "effect": {}}], []),
        ({MEMORY: 100}, "no list", []),
    ],
)
def test_who_names_no_count(named: dict[str, Any], there: Any, added: list[dict[str, str]]) -> None:
    """Where the plugin is, who gets a GPU tolerates the taint of GPUs, whichever resource it names; elsewhere nothing changes."""
    made = pod(container(limits=named), tolerations=there)
    operations = list(after_plugin(made, convert(made, RULES, list), RULES))
    assert operations == [{"op": "add", "path": "/spec/tolerations/-", "value": value} for value in added]
