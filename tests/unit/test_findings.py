"""What doctors say, and how scripts hear it."""

import json
import threading
from collections.abc import Iterator

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.findings import Finding, Level, as_json, as_text, examine, exit_code


def found(level: Level, check: str = "cdi") -> Finding:
    """Any."""
    return Finding(check=check, level=level, what="the folder is full")


def refused() -> Iterator[Finding]:
    """Fails as our own code does, after its first finding."""
    yield found(Level.ok)
    raise StorageError("/var/run/cdi can't be read")


def broken() -> list[Finding]:
    """Fails as a fault of ours does."""
    return [found(Level.ok)] * (1 // 0)


def test_a_check_that_fails_or_hangs_costs_no_other_finding() -> None:
    """Each of them becomes a finding that says so, in the order of the checks."""
    end = threading.Event()

    def hangs() -> list[Finding]:
        end.wait(30)
        return []

    checks = {"a": hangs, "b": refused, "c": broken, "d": lambda: [found(Level.ok, "d")]}
    try:
        findings = examine(checks, timeout=0.5)
    finally:
        end.set()
    assert [(finding.check, finding.level) for finding in findings] == [
        ("a", "unknown"),
        ("b", "unknown"),
        ("c", "unknown"),
        ("d", "ok"),
    ]
    assert findings[0].what == "did not end within 0.5 s"
    assert findings[1].what == "/var/run/cdi can't be read"
    assert "ZeroDivisionError" in findings[2].what


def test_scripts_get_an_exit_code() -> None:
    """An error counts more than what could not be found out; warnings count when that is asked for."""
    assert exit_code([found(Level.ok), found(Level.hint), found(Level.warning)]) == 0
    assert exit_code([found(Level.warning)], strict=True) == 1
    assert exit_code([found(Level.unknown), found(Level.warning)]) == 3
    assert exit_code([found(Level.unknown), found(Level.error)]) == 1


def test_a_terminal_is_safe_and_commands_can_be_copied() -> None:
    """What a stranger named can't move the cursor, and a command stays on its line."""
    command = "kubectl delete pod " + "x" * 200
    text = as_text(
        [
            Finding(check="pod", level=Level.error, what="pod \x1b[2J hangs", why="It waits.", mend=command),
            found(Level.ok),
        ]
    )
    assert "\x1b" not in text
    assert f"        $ {command}" in text.splitlines()
    assert text.splitlines()[-1] == "1 ok, 1 error"


def test_programs_get_all_fields() -> None:
    """As JSON, one object for each finding."""
    assert json.loads(as_json([found(Level.error)])) == [
        {"check": "cdi", "level": "error", "what": "the folder is full", "why": "", "mend": ""}
    ]
