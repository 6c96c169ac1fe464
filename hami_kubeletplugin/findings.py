"""What checks of an installation found: the form that all doctors share, for people, for programs and for scripts.

A check is a function without arguments that gives findings. `examine` runs it where it can hang or fail without the others.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import asdict, dataclass
from enum import StrEnum
from textwrap import fill
from typing import Final

from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.api.quoting import printable
from hami_kubeletplugin.hanging import OwnThreads

_WIDTH: Final = 110


class Level(StrEnum):
    """How bad it is."""

    ok = "ok"
    """As it should be."""
    hint = "hint"
    """Worth knowing; nothing is to be mended."""
    warning = "warning"
    """Works now, and a part of it will not, or not for all."""
    error = "error"
    """Pods don't start, or a promise isn't kept."""
    unknown = "unknown"
    """Could not be found out, and why."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: Which check, a short word for scripts, such as `cdi`.
        level: How bad it is.
        what: What is so, in one sentence, with the file, object or option that it is about.
        why: Why it matters; empty where all is well.
        mend: A command or an edit that mends it; empty where nothing is to be mended.
    """

    check: str
    level: Level
    what: str
    why: str = ""
    mend: str = ""


Check = Callable[[], Iterable[Finding]]


def examine(checks: Mapping[str, Check], timeout: float) -> list[Finding]:
    """Run all side by side, and give what they found in their order.

    Args:
        checks: By name.
        timeout: Seconds for all together. A check that takes longer becomes a finding of its own, as does one that fails.
    """
    threads = OwnThreads(most=len(checks), last_wait=0.0)
    running = {name: threads.submit(_listed, check) for name, check in checks.items()}
    wait_for(running.values(), timeout)
    return [finding for name, future in running.items() for finding in _found(name, future, timeout)]


def _listed(check: Check) -> list[Finding]:
    return list(check())


def _found(name: str, future: Future[list[Finding]], timeout: float) -> list[Finding]:
    if not future.done():
        return [Finding(check=name, level=Level.unknown, what=f"did not end within {timeout:g} s")]
    error = future.exception()
    if isinstance(error, HamiError):
        return [Finding(check=name, level=Level.unknown, what=str(error))]
    if error is not None:  # a fault of ours must not keep the other findings from who is in need of them
        return [Finding(check=name, level=Level.unknown, what=f"the check failed: {type(error).__name__}: {error}")]
    return future.result()


def exit_code(findings: Iterable[Finding], *, strict: bool = False) -> int:
    """0: no error; 1: an error, or with `strict` a warning; 3: neither, but not all could be found out. 2 is wrong usage."""
    levels = {finding.level for finding in findings}
    if Level.error in levels or (strict and Level.warning in levels):
        return 1
    return 3 if Level.unknown in levels else 0


def as_json(findings: Iterable[Finding]) -> str:
    """A list of objects, one for each finding, with all fields."""
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def as_text(findings: Sequence[Finding]) -> str:
    """For a terminal: each in its place, what is to be done below it, and at the end a line that counts."""
    counts = [f"{number} {level}" for level in Level if (number := sum(finding.level is level for finding in findings))]
    return "\n".join([*map(_block, findings), ", ".join(counts)])


def _wrapped(text: str) -> str:
    return fill(text, _WIDTH, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)


def _block(finding: Finding) -> str:
    label = {Level.ok: "ok", Level.hint: "hint", Level.unknown: "?"}.get(finding.level, finding.level.upper())
    text = [_wrapped(f"{label:<8}{finding.check}: {printable(finding.what)}")]
    text += [_wrapped(" " * 8 + printable(finding.why))] * bool(finding.why)
    # Commands are not wrapped: people copy them.
    text += [f"{'':8}$ {printable(line)}" for line in finding.mend.splitlines()]
    return "\n".join(text)
