"""Reads deploy/monitoring: rules, the dashboard's queries, and the names of metrics in them."""

import json
import re
from typing import Any

import yaml

from tests import REPOSITORY

MONITORING = REPOSITORY / "deploy" / "monitoring"
Json = dict[str, Any]

OF_OTHERS = frozenset(
    {
        "up",
        "kube_pod_resourceclaim_info",
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_XID_ERRORS",
    }
)
"""Metrics of Prometheus, kube-state-metrics (2.20 or newer) and dcgm-exporter that are read."""

_NAME = re.compile(r"\b(?:hami_[A-Za-z0-9_:]+|DCGM_\w+|kube_\w+|up)\b(?!\s*=)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def groups() -> Json:
    """What is below `spec` in rules.yaml: a file of rules."""
    spec: Json = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
    return spec


def rules() -> list[Json]:
    """All of them."""
    return [rule for group in groups()["groups"] for rule in group["rules"]]


def dashboard() -> Json:
    """The dashboard."""
    found: Json = json.loads((MONITORING / "dashboard.json").read_text())
    return found


def panels() -> list[Json]:
    """The dashboard's, without rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def filled(query: str) -> str:
    """A query of the dashboard as Grafana sends it with everything chosen."""
    return query.replace("$__rate_interval", "1m").replace("$node", ".*").replace("$namespace", ".*")


def queries() -> list[str]:
    """The dashboard's, as Grafana sends them."""
    return [filled(target["expr"]) for panel in panels() for target in panel["targets"]]


def metrics(query: str) -> set[str]:
    """The names of metrics in a query; a histogram's is its family's."""
    return {re.sub(r"_bucket$", "", name) for name in _NAME.findall(_STRING.sub('""', query))}
