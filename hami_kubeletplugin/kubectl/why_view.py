"""Why a pod waits, as text for people and JSON for programs. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from hami_kubeletplugin.kubectl.capacity import shown
from hami_kubeletplugin.kubectl.printable import printable
from hami_kubeletplugin.kubectl.usage_view import written
from hami_kubeletplugin.kubectl.wanted import Claim, Want
from hami_kubeletplugin.kubectl.why import Node, Why
from hami_kubeletplugin.program import table

NODES: Final = 20
"""So many are shown, if not all are wanted."""
_GPUS: Final = 3


def text(pod: str, found: Why, *, wide: bool) -> str:
    """The whole answer.

    Args:
        pod: Its namespace and name.
        found: The answer.
        wide: All nodes, and each GPU on a line of its own.
    """
    lines = [f"pod {printable(pod, 320)} {found.state}", *(f"  {problem}" for problem in found.problems)]
    lines += [f"  claim {printable(name, 253)} is allocated" for name in found.asked.allocated]
    lines += [f"  claim {printable(claim.name, 253)} is not allocated: {_asks(claim)}" for claim in found.asked.waiting]
    lines += [f"  {told}" for told in found.told]
    if not (found.asked.waiting or found.asked.allocated or found.problems):
        lines.append("  it asks for no GPUs by claims")
    return "\n\n".join(filter(None, ["\n".join(lines), _nodes(found.nodes, wide=wide), "\n".join(_sum(found))]))


def as_json(found: Why) -> dict[str, Any]:
    """All of it."""
    return {
        "state": found.state,
        "problems": list(found.problems),
        "told": list(found.told),
        "allocated": list(found.asked.allocated),
        "waiting": [
            {
                "claim": claim.name,
                "requests": [
                    {
                        "name": want.request,
                        "count": want.count,
                        "amounts": written(want.amounts),
                        "selectors": list(want.selectors),
                    }
                    for request in claim.requests
                    for want in request.alternatives
                ],
            }
            for claim in found.asked.waiting
        ],
        "nodes": [
            {
                "nodeName": node.name,
                "reasons": list(node.reasons),
                "lacking": [
                    {
                        "claim": claim,
                        "request": request,
                        "name": gpu.name,
                        "missing": [lack._asdict() for lack in missing],
                    }
                    for claim, request, gpu, missing in node.lacking
                ],
                "hasRoomOn": [
                    {"claim": placed.claim, "request": placed.want.request, "names": [gpu.name for gpu in placed.gpus]}
                    for placed in node.placed
                ],
            }
            for node in found.nodes
        ],
        "notes": list(found.notes),
    }


def _asks(claim: Claim) -> str:
    return "; ".join(" or ".join(map(_want, request.alternatives)) for request in claim.requests)


def _want(want: Want) -> str:
    amounts = ", ".join(f"{printable(name, 64)} {shown(name, value)}" for name, value in want.amounts.items())
    count = "all GPUs" if want.count is None else "1 GPU" if want.count == 1 else f"{want.count} GPUs"
    each = "" if want.count == 1 or not amounts else ", each"
    return f"{printable(want.request, 130)} wants {count}{each}{' with ' if amounts else ''}{amounts}"


def _nodes(nodes: Sequence[Node], *, wide: bool) -> str:
    if not nodes:
        return ""
    ordered = sorted(nodes, key=lambda node: (bool(node.reasons or node.lacking), len(node.reasons), node.name))
    chosen = ordered if wide else ordered[:NODES]
    rows = [["NODE", "GPU", "MISSING"]]
    rows += [[printable(node.name, 253) or "-", *cells] for node in chosen for cells in _rows(node, wide=wide)]
    more = f"\n{len(ordered) - NODES} more nodes: -o wide shows all" if len(chosen) < len(ordered) else ""
    return table(rows) + more


def _rows(node: Node, *, wide: bool) -> Iterator[list[str]]:
    if not node.reasons and not node.lacking:
        gpus = ", ".join(dict.fromkeys(printable(gpu.name, 63) for placed in node.placed for gpu in placed.gpus))
        yield [gpus or "-", "nothing: it has room"]
    for reason in node.reasons:
        yield ["-", reason]
    alike: dict[str, list[str]] = defaultdict(list)
    for _, _, gpu, missing in node.lacking:
        name, reasons = printable(gpu.name, 63), "; ".join(lack.text for lack in missing)
        if name not in alike[reasons]:
            alike[reasons].append(name)
    for reasons, names in alike.items():
        if wide:
            yield from ([name, reasons] for name in names)
        else:
            yield [
                ", ".join(names[:_GPUS]) + (f" and {len(names) - _GPUS} more" if len(names) > _GPUS else ""),
                reasons,
            ]


def _sum(found: Why) -> Iterator[str]:
    having = [node for node in found.nodes if not node.reasons and not node.lacking]
    if having:
        yield (
            f"{len(having)} of {len(found.nodes)} nodes with GPUs have room: the scheduler's own message says what else is "
            "missing, or it has not tried since"
        )
    elif found.asked.waiting and not found.nodes and found.state == "is not scheduled":
        yield "no node publishes GPUs of this driver"
    for note in found.notes:
        yield f"note: {note}"
