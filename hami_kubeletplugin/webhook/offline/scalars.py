"""What a scalar of YAML means to kubectl: the table of kinds, and the value of each. Pure.

Contract: YAML 1.1 as sigs.k8s.io/yaml decodes it (its goyaml.v2, resolve.go): `on`, `y` and the like are booleans, `08` is a
number, times are texts.
"""

import base64
import binascii
import re
from typing import Any, Final

import yaml
from yaml.nodes import Node, ScalarNode
from yaml.resolver import BaseResolver

TAG: Final = "tag:yaml.org,2002:"
MERGE: Final = f"{TAG}merge"

_TRUE: Final = frozenset(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"])
_FALSE: Final = frozenset(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"])
_BOOL: Final = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}
_INT: Final = r"[-+]?(0|0[bB][01][01_]*|0[oO]?[0-7][0-7_]*|0[xX][0-9a-fA-F][0-9a-fA-F_]*|[1-9][0-9_]*)"
_FLOAT: Final = r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"

_LONGEST_INT: Final = 400
"""Digits. Python takes any number of hexadecimal ones, but can't write so large a number."""


class Resolver(BaseResolver):
    """What a scalar without quotes is."""


for _name, _pattern, _first in (
    ("merge", "<<", "<"),
    ("null", "|~|null|Null|NULL", ["~", "n", "N", ""]),
    ("bool", "|".join(sorted(_BOOL)), list("yYnNtTfFoO")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    Resolver.add_implicit_resolver(f"{TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), _first)


def value_of(node: ScalarNode) -> Any:
    """What it means, as JSON.

    Raises:
        MarkedYAMLError: Its text is not of the kind that it is said to be.
    """
    kind, text = node.tag.removeprefix(TAG), node.value
    if kind == "null":
        return None
    try:
        if kind == "bool":
            return _BOOL[text]
        if kind == "int":
            return _integer(text.replace("_", "").lower())
        if kind == "float":
            number = float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
            return int(number) if number.is_integer() else number
        if kind == "binary":
            return base64.b64decode(text).decode()
    except (ValueError, KeyError, binascii.Error):
        raise problem(f"{text[:60]!r} is no {kind}", node) from None
    return text


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INT:
        raise ValueError
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if digits.startswith("0") and digits.isdigit():
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def problem(what: str, node: Node) -> yaml.MarkedYAMLError:
    """The error about something in a document."""
    return yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark)
