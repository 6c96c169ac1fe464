"""The chart's default is what the manifests at the root say, so that neither drifts."""

from typing import Any

import yaml

from hami_kubeletplugin import __version__
from tests import REPOSITORY
from tests.chart.rendering import CHART, MONITORING, Chart, plain

ROOT = ("daemonset.yaml", "webhook.yaml")
OPTIONAL = {
    "extended-resource.yaml": {"extendedResource": {"enabled": True}},
    "claim-limits.yaml": {"claimLimits": {"enabled": True}},
    "claim-status.yaml": {"claimStatus": {"enabled": True}},
    "deploy/monitoring/podmonitor.yaml": {"monitoring": {"enabled": True}},
    "deploy/monitoring/servicemonitor.yaml": {"monitoring": {"enabled": True}},
    "deploy/monitoring/rules.yaml": {"monitoring": {"rules": True}},
    "deploy/monitoring/hami-names.yaml": {"monitoring": {"hamiNames": True}},
}


def manifest(*files: str) -> dict[tuple[str, str], Any]:
    """Objects of manifests by kind and name. The namespace is helm's to make, or the user's."""
    items = [item for file in files for item in yaml.safe_load_all((REPOSITORY / file).read_text())]
    return {
        (item["kind"], item["metadata"]["name"]): plain(item) for item in items if item and item["kind"] != "Namespace"
    }


def test_the_default_is_daemonset_yaml_and_webhook_yaml(chart: Chart) -> None:
    """Object by object and field by field; nothing is missing, nothing is more."""
    made = {key: plain(item) for key, item in chart.objects().items()}
    expected = manifest(*ROOT)
    assert made.keys() == expected.keys()
    for key, item in expected.items():
        assert made[key] == item, key


def test_what_is_optional_is_as_its_manifest(chart: Chart) -> None:
    """Each value that stands for a manifest makes its objects, as they are there."""
    default = chart.objects().keys()
    for file, values in OPTIONAL.items():
        made = {key: plain(item) for key, item in chart.objects(values, apis=[MONITORING]).items()}
        expected = manifest(file)
        assert expected.keys() <= made.keys() - default, file
        for key, item in expected.items():
            assert made[key] == item, (file, key)


def test_the_chart_has_the_version_of_the_program() -> None:
    """Both its own and that of the image."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (__version__, __version__)
