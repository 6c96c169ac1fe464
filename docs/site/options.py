"""docs/reference/options.md: every option of every command, from the command lines themselves."""

import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, get_args

import typer.main

from docs.site.declared import code, table
from hami_kubeletplugin import cli
from hami_kubeletplugin.kubectl import cli as kubectl
from hami_kubeletplugin.webhook import cli as webhook

PROGRAMS: Final = {"hami-kubeletplugin": cli.app, "hami-webhook": webhook.app, "kubectl hami": kubectl.app}
_Row = tuple[str, str, str]
_INTRODUCTION: Final = """\
# Options

Of all commands, in the words of `--help`. The command line wins over an environment variable, and a variable that is set to
nothing counts as not set. What people change most, with links to what it means, is in [operating.md](../operating.md#options).
"""


def page() -> str:
    """The page."""
    return _INTRODUCTION + "".join(_programs())


def _programs() -> Iterator[str]:
    told: dict[Any, str] = {}
    for program, app in PROGRAMS.items():
        group: Any = typer.main.get_command(app)
        yield f"\n## {program}\n\n{group.help}\n"
        callbacks = {
            command.name or command.callback.__name__: command.callback
            for command in app.registered_commands
            if command.callback
        }
        most: list[_Row] = []
        for name, command in group.commands.items():
            called = f"{program} {name}"
            yield f"\n### {called}\n\n{_summary(command)}\n"
            first = told.setdefault(callbacks[name], called)
            if first != called:
                yield f"\nThe same as {_link(first)}.\n"
                continue
            rows = sorted(_row(param) for param in command.params if param.name != "help")
            if most and set(most) <= set(rows):
                yield f"\nAll options of {_link(f'{program} run')}, and these:\n"
                rows = [row for row in rows if row not in most]
            if name == "run":
                most = rows
            if rows:
                yield "\n" + table(("option", "variable", "what"), rows)


def _link(command: str) -> str:
    return f"[{command}](#{command.replace(' ', '-')})"


def _summary(command: Any) -> str:
    return str(command.help or "").partition("\n\n")[0].replace("\n", " ")


def _row(param: Any) -> _Row:
    is_option = param.param_type_name == "option"
    # The long name first, as people look for it.
    names = sorted(param.opts, key=len, reverse=True) if is_option else [str(param.name).upper()]
    return ", ".join(map(code, names)), code(param.envvar or ""), _help(param)


def _help(param: Any) -> str:
    """With the values and the default that typer knows; options from settings say theirs themselves."""
    annotation = param.type_descriptor.annotation
    values = (
        [value.value for value in annotation]
        if inspect.isclass(annotation) and issubclass(annotation, Enum)
        else get_args(annotation)
    )
    default = getattr(param.default, "value", param.default)
    told = (
        param.help,
        f"One of {', '.join(values)}." if values and all(isinstance(value, str) for value in values) else "",
        f"(default: {default})" if isinstance(default, str | float) else "",
    )
    return " ".join(filter(None, told))
