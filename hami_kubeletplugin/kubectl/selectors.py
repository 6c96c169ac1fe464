"""CEL selectors in the forms that can be judged here: our DeviceClass's, the webhook's, and simple ones like them. Pure.

Everything else isn't judged, and people are told so. Never is a device called unfit by a term that isn't understood.
Contract: k8s.io/dynamic-resource-allocation cel (the variable `device`), webhook/conversion/cel.py.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.kubectl.capacity import amount
from hami_kubeletplugin.webhook.conversion import cel

LONGEST: Final = cel.LONGEST
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_OF: Final = rf"device\.(?P<kind>attributes|capacity)\[(?P<domain>{_STRING})\]"
_ATTRIBUTE: Final = rf"device\.(?P<kind>attributes)\[(?P<domain>{_STRING})\]"
_CAPACITY: Final = rf"device\.(?P<kind>capacity)\[(?P<domain>{_STRING})\]"
_DRIVER: Final = re.compile(rf"device\.driver\s*(?P<compared>[=!]=)\s*(?P<value>{_STRING})")
_THERE: Final = re.compile(rf"(?P<name>{_STRING})\s+in\s+{_OF}")
_EQUAL: Final = re.compile(
    rf"{_ATTRIBUTE}\.(?P<name>\w+)\s*(?P<compared>[=!]=|[<>]=?)\s*(?P<value>{_STRING}|-?[0-9]{{1,18}}|true|false)"
)
_LIST: Final = rf"\[(?P<values>(?:{_STRING}(?:,\s*)?)*)\]"
_AMONG: Final = re.compile(rf"{_ATTRIBUTE}\.(?P<name>\w+)\s+in\s+{_LIST}")
_NOT: Final = re.compile(r"!\s*\((?P<inner>.*)\)", re.DOTALL)
_AMOUNT: Final = re.compile(
    rf"{_CAPACITY}\.(?P<name>\w+)\.compareTo\(quantity\((?P<value>{_STRING})\)\)\s*(?P<compared>[=!]=|[<>]=?)\s*0"
)
_MODEL: Final = re.compile(rf"(?P<negated>!?)\s*{_LIST}(?P<rest>\.exists\(part, .*)", re.DOTALL)
_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_Judge = Callable[[re.Match[str], str, Mapping[str, Any]], bool | None]
_Term = tuple[re.Match[str] | None, _Judge]
_KNOWN: Final = 256
"""Expressions that are read once."""
_AND: Final = "&&"
_WORD: Final = re.compile(rf"""{_STRING}|&&|\|\||//|[()\[\]{{}}?']|[^"&|/()\[\]{{}}?']+|.""", re.DOTALL)
_WEAKER: Final = frozenset({"||", "?"})
"""Where these join terms, what `&&` joins is only a part of one."""
_UNREAD: Final = frozenset({"//", "'"})
"""A comment, or a text of another form: what is within looks like terms and is none."""


def judge(expression: str, driver: str, device: Mapping[str, Any]) -> bool | None:
    """Whether a device satisfies a selector; None: that can't be told here.

    Args:
        expression: CEL.
        driver: Who publishes the device.
        device: As it is published.
    """
    found = [judged(form, driver, device) if form else None for form, judged in _read_terms(expression)]
    # One false term makes the whole false, whatever the others are.
    return False if False in found else None if None in found else True


def _terms(expression: str) -> Sequence[str]:
    """What `&&` joins, outside of strings and brackets; all of it as one, where that can't be told."""
    depth, terms = 0, [""]
    for word in _WORD.findall(expression):
        if word in _UNREAD or (depth == 0 and word in _WEAKER):
            return (expression,)
        if word == _AND and depth == 0:
            terms.append("")
            continue
        depth += (word in "([{") - (word in ")]}") if len(word) == 1 else 0
        terms[-1] += word
    return terms


def _read_term(term: str) -> _Term:
    for form, judged in _FORMS:
        if found := form.fullmatch(term):
            return found, judged
    return None, _judge_nothing


@lru_cache(_KNOWN)
def _read_terms(expression: str) -> tuple[_Term, ...]:
    """Once for all devices."""
    if len(expression) > LONGEST:
        return ((None, _judge_nothing),)
    return tuple(_read_term(term.strip()) for term in _terms(expression))


def _judge_nothing(_: re.Match[str], __: str, ___: Mapping[str, Any]) -> bool | None:
    return None


def _judge_driver(found: re.Match[str], driver: str, _: Mapping[str, Any]) -> bool | None:
    return _compare(found["compared"], driver, _literal(found["value"]))


def _judge_there(found: re.Match[str], driver: str, device: Mapping[str, Any]) -> bool | None:
    name = _literal(found["name"])
    return None if name is None else _value(found["kind"], found["domain"], str(name), driver, device) is not None


def _judge_amount(found: re.Match[str], driver: str, device: Mapping[str, Any]) -> bool | None:
    has, wanted = amount(fields.at(_read(found, driver, device), "value")), amount(_literal(found["value"]))
    return _compare(found["compared"], has, wanted)


def _judge_equal(found: re.Match[str], driver: str, device: Mapping[str, Any]) -> bool | None:
    return _compare(found["compared"], _plain(_read(found, driver, device)), _literal(found["value"]))


def _judge_among(found: re.Match[str], driver: str, device: Mapping[str, Any]) -> bool | None:
    value, listed = _plain(_read(found, driver, device)), _literals(found["values"])
    return None if value is None or listed is None else value in listed


def _judge_not(found: re.Match[str], driver: str, device: Mapping[str, Any]) -> bool | None:
    form, judged = _read_term(found["inner"].strip())
    # Not one within another: a thousand of them are no selector that anybody needs.
    inner = judged(form, driver, device) if form and judged is not _judge_not else None
    return None if inner is None else not inner


def _judge_model(found: re.Match[str], driver: str, device: Mapping[str, Any]) -> bool | None:
    """What the webhook writes for `use-gputype`: with the parts taken out it is always the same text."""
    parts = _literals(found["values"])
    name = fields.at(device, "attributes", names.PRODUCT_NAME, "string")
    if parts is None or not isinstance(name, str) or not cel.model_contains(driver, ()).endswith(found["rest"]):
        return None
    model = cel.lower_ascii(name if name.startswith("NVIDIA") else f"NVIDIA-{name}")
    return any(part in model for part in parts) != bool(found["negated"])


def _read(found: re.Match[str], driver: str, device: Mapping[str, Any]) -> Any:
    return _value(found["kind"], found["domain"], found["name"], driver, device)


def _value(kind: str, domain: str, name: str, driver: str, device: Mapping[str, Any]) -> Any:
    """Names without a domain are in that of the driver."""
    given = fields.mapping(device.get(kind))
    called = _literal(domain)
    return given.get(f"{called}/{name}", given.get(name) if called == driver else None)


def _plain(attribute: Any) -> str | int | bool | None:
    """Of a version nothing is said: it is no text to compare with."""
    for kind in ("string", "int", "bool"):
        value = fields.at(attribute, kind)
        if isinstance(value, str | int):
            return value
    return None


def _compare(how: str, left: Any, right: Any) -> bool | None:
    return _COMPARED[how](left, right) if left is not None and type(left) is type(right) else None


def _literal(text: str) -> str | int | bool | None:
    try:
        value = json.loads(text)
    except ValueError:  # an escape that only CEL has
        return None
    return value if isinstance(value, str | int) else None


def _literals(text: str) -> list[str] | None:
    try:
        return list(json.loads(f"[{text}]"))
    except ValueError:
        return None


_FORMS: Final[tuple[tuple[re.Pattern[str], _Judge], ...]] = (
    (_DRIVER, _judge_driver),
    (_THERE, _judge_there),
    (_AMOUNT, _judge_amount),
    (_EQUAL, _judge_equal),
    (_AMONG, _judge_among),
    (_MODEL, _judge_model),
    (_NOT, _judge_not),
)
