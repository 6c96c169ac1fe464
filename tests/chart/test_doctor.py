"""What the chart installs, under whatever names, is sound for the cluster's doctor."""

from collections.abc import Mapping
from typing import Any

import pytest

from hami_kubeletplugin.findings import Level
from hami_kubeletplugin.webhook.doctor.checks import for_people, found_by
from hami_kubeletplugin.webhook.doctor.cluster import Cluster
from hami_kubeletplugin.webhook.doctor.installation import Installation, driver_of
from tests.chart.rendering import Chart
from tests.unit.webhook.doctor.sound import world

OTHER = {
    "fullnameOverride": "mine",
    "driverName": "hami.example",
    "serviceAccount": {"name": "daemon"},
    "claimLimits": {"enabled": True},
}


@pytest.mark.parametrize(("values", "namespace"), [({}, "hami-system"), (OTHER, "gpus")])
def test_sound(chart: Chart, values: Mapping[str, Any], namespace: str) -> None:
    """Nothing is found, and the driver's name is found out."""
    objects = chart.objects(values, namespace=namespace)
    driver = str(values.get("driverName", "gpu.hami.io"))
    there = world(objects.values(), driver)
    cluster = Cluster(there)
    assert driver_of(cluster) == driver
    cluster.driver = driver
    installation = Installation(cluster)
    found = found_by(installation, for_people(installation, "shop", there.try_out), 30)
    assert [each for each in found if each.level is not Level.ok] == []
