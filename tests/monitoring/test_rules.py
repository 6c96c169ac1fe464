"""rules.yaml: it is valid, its alerts fire when they should, and each leads to a page that helps."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests import REPOSITORY
from tests.monitoring.conftest import Promtool
from tests.monitoring.exposition import exported
from tests.monitoring.reading import OF_OTHERS, groups, metrics, rules

HERE = Path(__file__).parent
ALERTS = [rule for rule in rules() if "alert" in rule]


def anchors(page: str) -> set[str]:
    """The anchors of headings, as they are made of their words."""
    text = re.sub(r"^```.*?^```", "", (REPOSITORY / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    found = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    again = {f"{name}-{before}" for number, name in enumerate(found) if (before := found[:number].count(name))}
    return {*found} | again


def test_the_rules_are_valid_and_do_what_their_tests_say(promtool: Promtool, tmp_path: Path) -> None:
    """As promtool says, of the rules as the operator hands them to Prometheus."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups()))
    tests = [shutil.copy(file, tmp_path) for file in sorted(HERE.glob("*_test.yaml"))]
    assert tests
    promtool("check", "rules", "--lint-fatal", str(tmp_path / "rules.yaml"))
    promtool("test", "rules", *tests)


def test_each_rule_is_tested() -> None:
    """An alert that never fired in a test, or a record that none read, is not known to work."""
    tests = "".join(file.read_text() for file in HERE.glob("*_test.yaml"))
    names = {rule.get("alert") or rule["record"] for rule in rules()}
    assert len(names) == len(rules())
    assert {name for name in names if name not in tests} == set()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    """It has a severity, a sentence, what it means, and a section of our docs that is there; docs/observability.md lists it."""
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor in anchors(page)
    assert f"`{rule['alert']}`" in (REPOSITORY / "docs" / "observability.md").read_text()


def test_links_of_the_page_lead_somewhere() -> None:
    """Each link of docs/observability.md is to a file that is there, and to a heading of it."""
    docs = REPOSITORY / "docs"
    links = re.findall(r"\]\(([^):]+)\)", (docs / "observability.md").read_text())
    assert links
    for link in links:
        to, _, anchor = link.partition("#")
        assert (docs / to).exists(), link
        assert not anchor or anchor in anchors(f"docs/{to or 'observability.md'}"), link


def test_rules_read_metrics_that_there_are() -> None:
    """Those of the daemon and the webhook, what rules record themselves, and known ones of others."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    read = {name for rule in rules() for name in metrics(rule["expr"])}
    assert read - recorded - OF_OTHERS - exported() == set()
