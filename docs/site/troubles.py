"""docs/reference/errors.md: the tree of errors, and the few words in which metrics and the log have them."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

from docs.site.declared import code, first_paragraph, table
from hami_kubeletplugin.api import errors
from hami_kubeletplugin.claims import reasons as of_claims
from hami_kubeletplugin.webhook.admission import reasons as of_reviews

_INTRODUCTION: Final = """\
# Errors

Each message says what is wrong, where, and what to do; the symptoms that people see are in
[troubleshooting.md](../troubleshooting.md). This is how the programs themselves tell errors apart.
"""


def page() -> str:
    """The page."""
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    return (
        f"{_INTRODUCTION}\n## The tree\n\n```\n{inspect.cleandoc(tree)}\n```\n"
        "\n## Why claims fail\n\n`reason` of `hami_claim_operations_total` and of `claim failed` in the log; what to do is in "
        "[operating.md](../operating.md#why-claims-fail).\n\n"
        + table(
            _HEAD,
            [
                *_reasons(of_claims.REASONS),
                (code(of_claims.INTERNAL), "", "a fault of ours; the log has its traceback"),
            ],
        )
        + "\n## Why reviews are refused\n\n`reason` of `hami_webhook_refusals_total`, and `why` in the webhook's log.\n\n"
        + table(_HEAD, _reasons(of_reviews.REASONS))
    )


_HEAD: Final = ("reason", "error", "it means")


def _reasons(words: Mapping[Any, str]) -> Iterator[tuple[str, str, str]]:
    for error, word in words.items():
        own = error.__module__ == errors.__name__
        yield code(word), code(error.__name__), first_paragraph(error) if own else "No answer in time."
