"""Structured logs: JSON for machines, key=value in colour for people.

Other rooms use `get_logger`, and what binds facts to the lines that follow.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Let imports of an optional module fail for a while."""
    found = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if found is not None:
            sys.modules[module] = found


# structlog takes rich along where it is installed (typer needs it for help in colours), for colourful tracebacks: 4 MB and
# 50 ms for nothing here, and it has no switch. So nobody else imports structlog: who comes first decides.
with _without("rich"):
    import structlog
    from structlog.contextvars import bind_contextvars, bound_contextvars

__all__ = ["bind_contextvars", "bound_contextvars", "configure", "get_logger"]

LogFormat = Literal["json", "console"]


def configure(log_format: LogFormat, level: str) -> None:
    """Set up the process's logging, once, at its start. `level` is one of debug, info, warning, error."""
    renderer: Any
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def get_logger() -> "structlog.typing.FilteringBoundLogger":
    """The process's logger. Events are short sentences; facts go into keys (claim=, device=, error=)."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
