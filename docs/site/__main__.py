"""Make the pages of docs/reference: `python -m docs.site [--check]`, which hack/docs does."""

import difflib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docs.site import metrics, objects, options, troubles

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "options.md": options.page,
    "metrics.md": metrics.page,
    "objects.md": objects.page,
    "errors.md": troubles.page,
}
FOLDER: Final = Path(__file__).parent.parent / "reference"
_NOTE: Final = "<!-- Made from the code by hack/docs; change it there. -->\n\n"


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check say what would change. Exit status 1 if anything would."""
    if arguments not in ([], ["--check"]):
        print("usage: hack/docs [--check]", file=sys.stderr)
        return 2
    stale = False
    for name, made in PAGES.items():
        path = FOLDER / name
        now, wanted = path.read_text() if path.exists() else "", _NOTE + made()
        if not arguments:
            path.write_text(wanted)
        elif now != wanted:
            stale = True
            sys.stdout.writelines(
                difflib.unified_diff(
                    now.splitlines(keepends=True), wanted.splitlines(keepends=True), str(path), "the code"
                )
            )
    if stale:
        print(
            "hack/docs: docs/reference is not what the code says; run hack/docs and commit the result", file=sys.stderr
        )
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
