"""Credentials cut out of what others wrote. Pure.

What can be understood is taken apart: a value whose name sounds like a credential goes, and all that is below it. From texts goes
what looks like one, wherever it stands. What can't be understood is for whoever calls to leave out.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

REMOVED: Final = "(removed)"
_NAMES: Final = re.compile(
    r"pass|pwd|secret|token|auth|cred|private|bearer|cookie|session|api[-_]?key|access[-_]?key|key[-_]?data|identity|signature|header",
    re.IGNORECASE,
)
_DEPTH: Final = 32
_OPTIONS: Final = "pass|pwd|secret|token|credential|api-?key|access-?key"
_OPTION: Final = re.compile(rf"--?[\w-]*(?:{_OPTIONS})[\w-]*", re.IGNORECASE)
# Each looks at no text twice, whoever wrote it: a search holds up all threads until it has ended.
_TEXTS: Final = (
    re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
    re.compile(r"(?<![A-Za-z0-9_-])ey[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"),
    re.compile(r"\bLS0tLS1CRUdJTi[A-Za-z0-9+/=_-]+"),  # the first of these, in base64
    re.compile(r"(?<=://)[^/\s\"']+(?=@)"),
    re.compile(r"(?i)\b(?:bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}"),
    re.compile(rf"(?i)(?<!\S)--?[\w-]{{0,64}}(?:{_OPTIONS})[\w-]{{0,64}}\s+[^\s-]\S*"),
    re.compile(r"(?i)(?:pass|pwd|secret|token|credential|api_?key|access_?key)[\w.-]{0,64}\s{0,8}[=:]\s{0,8}[^\s,;&]+"),
    re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|AKIA|ASIA|xox[abpr]-|nvapi-)[A-Za-z0-9_-]{8,}"),
)


def structured(value: Any, *, keep: Collection[str] = (), depth: int = 0) -> Any:
    """The same, less what sounds like a credential.

    Args:
        value: As read from JSON, YAML or TOML.
        keep: Names at the top that sound like one and are known to have none below them.
        depth: How deep it is.
    """
    if depth > _DEPTH:
        return REMOVED
    if isinstance(value, Mapping):
        return {
            text(str(name)): REMOVED
            if _NAMES.search(str(name)) and name not in keep
            else structured(inner, depth=depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        before = [None, *value]  # of a program's words one may be an option, and the next what it is set to
        return [
            REMOVED if isinstance(option, str) and _OPTION.fullmatch(option) else structured(inner, depth=depth + 1)
            for option, inner in zip(before, value, strict=False)
        ]
    if isinstance(value, bool | int | float) or value is None:
        return value
    return text(str(value))


def text(content: str) -> str:
    """A text without what looks like a credential."""
    for pattern in _TEXTS:
        content = pattern.sub(REMOVED, content)
    return content


def as_json(value: Any, *, keep: Collection[str] = ()) -> bytes:
    """An object without credentials, for people to read; see `structured`."""
    return json.dumps(structured(value, keep=keep), indent=2).encode()
