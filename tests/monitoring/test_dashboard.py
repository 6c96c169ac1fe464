"""dashboard.json: Grafana can import it, and each of its queries is valid and reads metrics that there are."""

import itertools
import re
from pathlib import Path

import yaml

from tests.monitoring.conftest import Promtool
from tests.monitoring.exposition import exported
from tests.monitoring.reading import OF_OTHERS, dashboard, metrics, panels, queries, rules


def test_each_query_is_valid(promtool: Promtool, tmp_path: Path) -> None:
    """As promtool says, of rules that record each; with everything chosen."""
    recorded = [{"record": f"panel:query:{number}", "expr": query} for number, query in enumerate(queries())]
    assert recorded
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", "rules", str(tmp_path / "rules.yaml"))


def test_queries_read_metrics_that_there_are() -> None:
    """Those of the daemon and the webhook, and what rules.yaml records; variables too."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    variables = [str(each.get("definition", "")) for each in dashboard()["templating"]["list"]]
    read = {name for query in (*queries(), *variables) for name in metrics(query)}
    assert read
    assert read - recorded - OF_OTHERS - exported() == set()


def test_grafana_can_import_it() -> None:
    """It has an id that links can name, and lets whoever imports it choose the data source; panels don't overlap."""
    whole = dashboard()
    assert whole["uid"] == "hami-dra"
    assert whole["schemaVersion"] == 39  # Grafana 10 and newer read it; older ones show it as well as they can
    assert "id" not in whole
    names = {each["name"] for each in whole["templating"]["list"]}
    text = str(whole["panels"])
    assert set(re.findall(r"\$\{?([a-z]+)", text)) == names == {"datasource", "node", "namespace"}
    ids = [panel["id"] for panel in whole["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for first, second in itertools.combinations((panel["gridPos"] for panel in whole["panels"]), 2):
        apart = [
            first[a] + first[size] <= second[a] or second[a] + second[size] <= first[a] for a, size in ("xw", "yh")
        ]
        assert any(apart), (first, second)
        assert first["x"] + first["w"] <= 24
