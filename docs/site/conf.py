"""Sphinx's configuration, for hack/site: pages as they are on GitHub, and those of the repository that they lead to.

MyST reads them as GitHub does: CommonMark, its tables, its anchors. Files that are no pages (manifests, dashboards) become part
of the site where a page leads to them. Nothing comes from other hosts, and the search works from a folder, too.
"""

from pathlib import Path
from typing import Final, Protocol

from hami_kubeletplugin import __version__

project = "hami-dra"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "README"
exclude_patterns = [
    ".*",
    "build",
    "tests",
    "hami_kubeletplugin",
    "proto",
    "requirements",
]  # not to be searched for pages
highlight_language = "none"  # a fence that names no language has none
smartquotes = False
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"hami-dra {version}"
html_copy_source = False
html_show_sphinx = False
html_use_index = False

NAVIGATION: Final = {
    "Start": ("docs/first-steps", "docs/tutorial", "docs/claims", "examples/README", "docs/migrating-from-hami"),
    "Operate": (
        "docs/clusters",
        "docs/chart",
        "docs/operating",
        "docs/troubleshooting",
        "docs/doctor",
        "docs/observability",
        "docs/kubectl",
        "docs/with-other-controllers",
        "docs/grpcurl",
    ),
    "Know": ("docs/compatibility", "docs/limits", "docs/security", "docs/performance", "docs/decisions"),
    "Reference": (
        "docs/reference/options",
        "charts/hami-dra/README",
        "docs/reference/metrics",
        "docs/reference/objects",
        "docs/reference/errors",
    ),
    "The project": ("CONTRIBUTING", "SECURITY", "CHANGELOG", "hack/cluster/README", "native/hami-core/README"),
}
"""Every page, by chapter: each of docs/ has to be here, and of other folders those that are here are pages."""
include_patterns = ["README.md", "docs/**", *(f"{page}.md" for pages in NAVIGATION.values() for page in pages)]


class _Sphinx(Protocol):
    outdir: Path

    def add_config_value(self, name: str, default: object, rebuild: str) -> None: ...

    def connect(self, event: str, callback: object) -> int: ...


def setup(app: _Sphinx) -> None:
    """Add what Sphinx has no option for."""
    app.add_config_value("navigation", NAVIGATION, "env")  # what was read before another one is read again
    app.connect("source-read", _with_navigation)
    app.connect("build-finished", _with_index)


def _with_navigation(_app: _Sphinx, page: str, source: list[str]) -> None:
    """On the first page, which GitHub shows too, so the navigation isn't written in it."""
    if page == root_doc:
        for chapter, pages in NAVIGATION.items():
            source[0] += "\n".join(("", "```{toctree}", ":hidden:", f":caption: {chapter}", "", *pages, "```", ""))


def _with_index(app: _Sphinx, _trouble: Exception | None) -> None:
    """Where servers and people look for the first page."""
    text = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
    (Path(app.outdir) / "index.html").write_text(text)
