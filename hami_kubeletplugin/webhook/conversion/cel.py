"""CEL for the selectors of device requests. Whatever people wrote gets in here as a string literal, and nowhere else.

Contract: https://github.com/google/cel-spec doc/langdef.md (literals), k8s.io/dynamic-resource-allocation cel (the variable
`device`). Reading an attribute that a device lacks stops the scheduling of the pod on every node, so each read is guarded.
"""

import re
import string as string_of
from collections.abc import Iterable, Sequence
from typing import Final

from hami_kubeletplugin.api import names

LONGEST: Final = 10 * 1024
"""Characters of one expression (resource.k8s.io CELSelectorExpressionMaxLength)."""

_TO_ESCAPE: Final = re.compile(r'[^ -~]|["\\]')
"""All but printable ASCII, and what ends a literal or escapes in it."""
_LOWER: Final = str.maketrans(string_of.ascii_uppercase, string_of.ascii_lowercase)
_BRAND: Final = '"NVIDIA"'


def string(text: str) -> str:
    """A CEL string literal whose value is `text`. All but plain ASCII is escaped; lone surrogates become `?`."""
    return f'"{_TO_ESCAPE.sub(_escaped, text.encode("utf-16", "replace").decode("utf-16"))}"'


def one_of(driver: str, attribute: str, values: Sequence[str], *, wanted: bool = True) -> str:
    """True for devices whose attribute is one of `values` (or, not wanted, has another value)."""
    test = f"{_attribute(driver, attribute)} in [{_listed(values)}]"
    return _guarded(driver, attribute, test if wanted else f"!({test})")


def model_contains(driver: str, parts: Sequence[str], *, wanted: bool = True) -> str:
    """True for devices whose model name contains one of `parts` (or, not wanted, none of them), in whatever case.

    HAMi puts `NVIDIA-` before names that don't start with NVIDIA (register.go:170), so `nvidia` finds a "Tesla P4" too.
    """
    name = _attribute(driver, names.PRODUCT_NAME)
    model = f'({name}.startsWith({_BRAND}) ? {name} : "NVIDIA-" + {name}).lowerAscii()'
    test = f"[{_listed(map(lower_ascii, parts))}].exists(part, {model}.contains(part))"
    return _guarded(driver, names.PRODUCT_NAME, test if wanted else f"!{test}")


def memory_is(driver: str, mib: int) -> str:
    """True for devices that publish just this much memory."""
    return _memory(driver, mib, "== 0")


def memory_at_least(driver: str, mib: int) -> str:
    """True for devices that publish so much memory, or more."""
    return _memory(driver, mib, ">= 0")


def _memory(driver: str, mib: int, compared: str) -> str:
    domain = f"device.capacity[{string(driver)}]"
    return f'{string(names.MEMORY)} in {domain} && {domain}.{names.MEMORY}.compareTo(quantity("{mib}Mi")) {compared}'


def _guarded(driver: str, attribute: str, test: str) -> str:
    return f"{string(attribute)} in device.attributes[{string(driver)}] && {test}"


def _attribute(driver: str, name: str) -> str:
    return f"device.attributes[{string(driver)}].{name}"


def _listed(values: Iterable[str]) -> str:
    return ", ".join(map(string, values))


def lower_ascii(text: str) -> str:
    """As CEL's lowerAscii: other letters, which no model name has, stay."""
    return text.translate(_LOWER)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character in '"\\':
        return f"\\{character}"
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
