"""What is wrong with a ResourceClaim or ResourceClaimTemplate that people wrote for our devices. Pure.

The API server has checked the object already; here it is held against what the devices publish (`publish.devices`): what the
scheduler would round up, so that more is taken than was asked for, and what no device can ever satisfy, so that the pod would
wait for ever.

Contract: resource.k8s.io types.go of v1, v1beta2 and v1beta1 (whose requests have no `exactly`), KEP-5075 (rounding).
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import Any, Final, NamedTuple

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import ConfigError
from hami_kubeletplugin.api.fields import at, mapping, sequence
from hami_kubeletplugin.api.gpuconfig import decode
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.webhook.conversion.fleet import CONTEXT_MIB, too_few

_KNOWN: Final = (names.MEMORY, names.CORES, names.SHARES)
_POSSIBLE_SLOTS: Final = frozenset(names.SHARES_TOTAL // sharers for sharers in range(1, names.MAX_SHARERS + 1))
_LONGEST: Final = 32
"""Elements of each list that are looked at. The API server takes no more; who comes from elsewhere must not keep us busy."""
_LONGEST_NAME: Final = 63
"""Of a request (a DNS label)."""
_MOST_TOLD: Final = 32
"""Problems, and warnings, that are told: more fit in no message."""
_MANY_REQUESTS: Final = 4
_ONE_OR_ALL: Final = f'write "1" for one slot, or "{names.SHARES_TOTAL}" for the whole GPU'


class Verdict(NamedTuple):
    """What there is to say about an object.

    Attributes:
        problems: Why it must not be admitted; each starts with its field path. Empty: admit it.
        warnings: What its author should know.
    """

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class _Amount(NamedTuple):
    """One capacity of one request, as it is written."""

    path: str
    written: object
    number: Fraction

    def invalid(self, reason: str) -> str:
        return f"{self.path}: Invalid value: {quoted(self.written)}: {reason}"


class _Wish(NamedTuple):
    """A request, or one alternative of a request, for devices of our class."""

    request: str
    """Path of the request."""
    path: str
    """Its own."""
    names: frozenset[str]
    """What constraints may call it."""
    fields: Mapping[str, Any]


class _Apart(NamedTuple):
    """A constraint that keeps requests on different GPUs."""

    number: int
    requests: frozenset[str] | None
    """None: all."""

    def covers(self, wish: _Wish) -> bool:
        return self.requests is None or not self.requests.isdisjoint(wish.names)


def validate(obj: Mapping[str, Any], rules: Conversion, slots: Collection[int]) -> Verdict:
    """Judge an object; never raises, whatever it is.

    Args:
        obj: A ResourceClaim or ResourceClaimTemplate of resource.k8s.io v1, v1beta2 or v1beta1. What does not have their form
            is left to the API server.
        rules: Driver and class.
        slots: The smallest valid `shares` of all published devices; empty if none is published (yet).
    """
    spec, path = mapping(obj.get("spec")), "spec"
    if obj.get("kind") == "ResourceClaimTemplate":
        spec, path = mapping(spec.get("spec")), "spec.spec"
    devices, path = mapping(spec.get("devices")), f"{path}.devices"
    flat = obj.get("apiVersion") == "resource.k8s.io/v1beta1"
    wishes = list(_wishes(devices, path, rules.device_class, flat=flat))
    apart = list(_apart(devices, names.qualified(rules.driver_name, names.UUID)))
    problems: list[str] = list(_config_problems(devices, path, rules.driver_name))
    warnings: list[str] = []
    for wish in wishes:
        # What is beyond that is unknown, and so refused already: three are known.
        amounts = islice(mapping(at(wish.fields, "capacity", "requests")).items(), _LONGEST)
        for name, written in amounts if len(problems) < _MOST_TOLD else ():
            problem, warning = _judge(f"{wish.path}.capacity.requests", name, written, slots)
            problems += filter(None, [problem])
            # With admin access what is asked for is no limit: it only has to be free.
            warnings += filter(None, [None if wish.fields.get("adminAccess") is True else warning])
        if rules.separate_requests:
            warnings += filter(None, [_count_warning(wish, apart, names.qualified(rules.driver_name, names.UUID))])
    warnings += _apart_warnings(wishes, apart, path)
    return Verdict(tuple(problems[:_MOST_TOLD]), tuple(warnings[:_MOST_TOLD]))


def _config_problems(devices: Mapping[str, Any], path: str, driver: str) -> Iterator[str]:
    for index, entry in enumerate(_list(devices.get("config"))):
        opaque = mapping(at(entry, "opaque"))
        if opaque.get("driver") == driver:
            try:
                decode(opaque.get("parameters"), f"{path}.config[{index}].opaque.parameters")
            except ConfigError as error:
                yield str(error)


def _wishes(devices: Mapping[str, Any], path: str, device_class: str, *, flat: bool) -> Iterator[_Wish]:
    for index, entry in enumerate(_list(devices.get("requests"))):
        request, where, name = mapping(entry), f"{path}.requests[{index}]", _name(at(entry, "name"))
        found = [(where, where, frozenset({name}), request)] if flat else []
        if not flat:
            found.append((where, f"{where}.exactly", frozenset({name}), mapping(request.get("exactly"))))
        for number, alternative in enumerate(map(mapping, _list(request.get("firstAvailable")))):
            called = frozenset({name, f"{name}/{_name(alternative.get('name'))}"})
            found.append((where, f"{where}.firstAvailable[{number}]", called, alternative))
        yield from (_Wish(*wish) for wish in found if wish[3].get("deviceClassName") == device_class)


def _judge(path: str, name: object, written: object, slots: Collection[int]) -> tuple[str, str]:
    """A problem and a warning, either of them empty, of one amount."""
    where = f"{path}[{name}]"
    if name not in _KNOWN:
        known = ", ".join(_KNOWN)
        return (
            f"{path}[{quoted(name)}]: no device has this capacity, so the pod could never be scheduled; known are {known}",
            "",
        )
    try:
        # Whatever else than a number or a text comes, its text is no quantity.
        amount = _Amount(where, written, quantity.parse(str(written)))
    except ValueError:
        return f"{where}: Invalid value: {quoted(written)}: is not a quantity such as 4000Mi or 30", ""
    if name == names.MEMORY:
        problem = _memory_problem(amount)
        return problem, "" if problem else _memory_warning(amount)
    if name == names.CORES:
        return _cores_problem(amount), ""
    return _shares_problem(amount, slots), _shares_warning(amount, slots)


def _memory_problem(amount: _Amount) -> str:
    mib = amount.number / names.MIB
    if mib <= 0:
        return amount.invalid("must be at least 1Mi; leave it out for all of the GPU's memory")
    if mib.denominator != 1:
        rounded = math.ceil(mib)
        hint = "" if amount.number >= names.MIB else ", or was a unit forgotten? Without one these are bytes"
        return amount.invalid(f"must be whole MiB; it would be rounded up to {rounded}Mi: write {rounded}Mi{hint}")
    return ""


def _memory_warning(amount: _Amount) -> str:
    mib = amount.number / names.MIB
    return f"{amount.path}: {too_few(int(mib))}" if mib < CONTEXT_MIB else ""


def _cores_problem(amount: _Amount) -> str:
    if not 0 <= amount.number <= 100:
        return amount.invalid("must be a percentage of the GPU's compute, from 0 (no limit) to 100")
    if amount.number.denominator != 1:
        rounded = math.ceil(amount.number)
        return amount.invalid(f'must be whole percent; it would be rounded up to {rounded}: write "{rounded}"')
    return ""


def _shares_problem(amount: _Amount, slots: Collection[int]) -> str:
    shares = amount.number
    if shares.denominator != 1 or not 1 <= shares <= names.SHARES_TOTAL:
        return amount.invalid(f"must be a whole number from 1 to {names.SHARES_TOTAL}: {_ONE_OR_ALL}")
    if shares == names.SHARES_TOTAL or shares <= _surely_one_slot(slots):
        return ""
    if slots:
        where = "" if len(set(slots)) == 1 else " on some nodes"
        return amount.invalid(
            f"is more than one slot, which is {min(slots)}{where}, and would be rounded up to the whole GPU: {_ONE_OR_ALL}"
        )
    # While no GPU is up, claims are applied too. What a node may well have as its slot is let through, with a warning.
    if shares in _POSSIBLE_SLOTS:
        return ""
    return amount.invalid(f"is no slot of any deviceSplitCount, and would be rounded up: {_ONE_OR_ALL}")


def _shares_warning(amount: _Amount, slots: Collection[int]) -> str:
    shares = amount.number
    if slots or shares not in _POSSIBLE_SLOTS or shares == names.SHARES_TOTAL or shares <= _surely_one_slot(slots):
        return ""
    return (
        f"{amount.path}: no GPU is published yet, so the size of a slot is not known; where slots are smaller than {shares} "
        f"this takes the whole GPU: {_ONE_OR_ALL}"
    )


def _surely_one_slot(slots: Collection[int]) -> int:
    return min(slots, default=names.SHARES_TOTAL // names.MAX_SHARERS)


def _count_warning(wish: _Wish, apart: Iterable[_Apart], uuid: str) -> str:
    count = wish.fields.get("count")
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        return ""
    if not any(constraint.covers(wish) for constraint in apart):
        return (
            f"{wish.path}.count: on Kubernetes 1.35 the {count} may be shares of one GPU, whose limits then add up; add the "
            f"constraint distinctAttribute: {uuid}" + (", and write separate requests" if count > 2 else "")
        )
    if count > 2:
        return (
            f"{wish.path}.count: on Kubernetes 1.35 distinctAttribute does not keep 3 and more of one request apart: write "
            f"{count} requests"
        )
    return ""


def _apart_warnings(wishes: Sequence[_Wish], apart: Iterable[_Apart], path: str) -> Iterator[str]:
    """The scheduler tries equal requests in every order before it says no, on each node, and schedules nothing else meanwhile."""
    for constraint in apart:
        kept = len({wish.request for wish in wishes if constraint.covers(wish)})
        if kept >= _MANY_REQUESTS:
            yield (
                f"{path}.constraints[{constraint.number}].distinctAttribute: {kept} requests are kept apart by it: while no node "
                f"has room for all, each try holds up the scheduler for all pods of the cluster. Where the GPUs are to be alike, "
                f"write one request with count: {kept} instead, from Kubernetes 1.36 on, whose GPUs are always different"
            )


def _apart(devices: Mapping[str, Any], uuid: str) -> Iterator[_Apart]:
    for index, constraint in enumerate(map(mapping, _list(devices.get("constraints")))):
        if constraint.get("distinctAttribute") == uuid:
            requests = _list(constraint.get("requests"))
            called = frozenset(name for name in requests if isinstance(name, str))
            yield _Apart(index, called if requests else None)


def _name(value: object) -> str:
    """A request's name; empty for what is none, however long: it is compared with many."""
    return value if isinstance(value, str) and len(value) <= _LONGEST_NAME else ""


def _list(value: object) -> Sequence[Any]:
    """As much of a list as is looked at."""
    return sequence(value)[:_LONGEST]
