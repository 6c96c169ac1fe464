"""A person's kubeconfig, as kubectl reads it, made ready for requests by the official `kubernetes` package.

Exec plug-ins, ID tokens of OIDC, merged files, contexts and proxies are that package's matter. It is imported when it is needed,
and only by commands for people. What it would do differently from kubectl, or silently, is looked after here: which file's
current-context counts, a plug-in that failed, an ID token that has expired.
Contract: k8s.io/client-go tools/clientcmd (loading rules, api/v1/types.go), kubernetes.config.kube_config.
"""

import base64
import json
import logging
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.api.quoting import quoted

DEFAULT: Final = "~/.kube/config"
INSTALL: Final = "pip install 'hami-kubeletplugin[kubectl]'"
_IMPERSONATION: Final = ("as", "as-uid", "as-groups", "as-user-extra")
_LOGGED_IN: Final = 10.0
"""Seconds that an ID token has to be good for yet."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a context leads to.

    Attributes:
        context: Its name.
        server: URL.
        namespace: Where its user is, if nothing else is said.
        configuration: `kubernetes.client.Configuration`.
        headers: Of each request: who asks.
    """

    context: str
    server: str
    namespace: str
    configuration: Any = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


def load(kubeconfig: str | None, context: str | None) -> Access:
    """The access of a context.

    Args:
        kubeconfig: A file, or several with colons between; None: as kubectl finds it.
        context: Its name; None: the current one.

    Raises:
        SettingsError: It can't be used: the message names the file or the context and what to do.
    """
    try:
        from kubernetes.client import Configuration  # noqa: PLC0415 - the daemon has it not, and it costs a second
        from kubernetes.config import kube_config  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(
            f"the Python package kubernetes is not installed, which reads kubeconfigs: {INSTALL}"
        ) from error
    paths = kubeconfig or os.environ.get(names.KUBECONFIG) or DEFAULT
    merged = _merged(kube_config, paths)
    files = [config for config in merged.config_files.values() if isinstance(config, dict)]
    chosen = context or next(filter(None, (config.get("current-context") for config in files)), None)
    about = _entry(files, "contexts", "context", chosen, f"kubeconfig {paths}")
    where = f"kubeconfig {paths}, context {chosen}"
    cluster = _entry(files, "clusters", "cluster", about.get("cluster"), where)
    user = _entry(files, "users", "user", about["user"], where) if about.get("user") else {}
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("http://", "https://")):
        raise SettingsError(f"{where}: the server of its cluster must be an http or https URL, got {quoted(server)}")
    _check_user(user, where)
    configuration = Configuration()
    with _errors_told(where), _failures() as failures:
        loader = kube_config.KubeConfigLoader(config_dict=merged.config, active_context=chosen, config_base_path=None)
        loader.load_and_set(configuration)
    token = configuration.api_key.get("BearerToken", "").strip()
    if "exec" in user and not token and not configuration.cert_file:
        plugin = fields.mapping(user["exec"])
        hint = plugin.get("installHint")
        raise SettingsError(
            f"{where}: the credential plug-in {quoted(plugin.get('command'))} gave no credentials: "
            f"{'; '.join(failures) or 'it says nothing'}{f' ({hint})' if isinstance(hint, str) else ''}"
        )
    if not (token.isascii() and token.isprintable()):
        raise SettingsError(f"{where}: what its user has for a token is none")
    configuration.retries = False  # urllib3 would try a server that is not there three times
    namespace = about.get("namespace")
    return Access(
        str(chosen),
        server.rstrip("/"),
        namespace if isinstance(namespace, str) and namespace else "default",
        configuration,
        {"Authorization": token} if token else {},
    )


def _merged(kube_config: Any, paths: str) -> Any:
    there = [path for path in paths.split(os.pathsep) if path and Path(path).expanduser().exists()]
    if not there:
        raise SettingsError(
            f"kubeconfig {paths}: there is no such file; name one with --kubeconfig or {names.KUBECONFIG}"
        )
    with _errors_told(f"kubeconfig {paths}"):
        return kube_config.KubeConfigMerger(os.pathsep.join(there))


def _entry(files: list[dict[str, Any]], section: str, kind: str, name: object, where: str) -> Mapping[str, Any]:
    """The first of that name, as when kubectl merges files."""
    known: list[str] = []
    for config in files:
        for _, entry in fields.mappings(config.get(section)):
            if name is not None and entry.get("name") == name:
                return fields.mapping(entry.get(kind))
            known.append(str(entry.get("name")))
    there = f"there are {', '.join(known[:10])}" if known else "there are none"
    if name is None:
        raise SettingsError(f"{where}: no {kind} is chosen: name one with --context; {there}")
    raise SettingsError(f"{where}: {kind} {quoted(name)} is not among its {section}: {there}")


def _check_user(user: Mapping[str, Any], where: str) -> None:
    """Refuse what the package would pass over without a word, and ask as nobody, or as somebody else."""
    said = [name for name in _IMPERSONATION if user.get(name)]
    if said:
        raise SettingsError(f"{where}: impersonation ({said[0]}) is not supported here: choose a context without it")
    provider = user.get("auth-provider")
    if provider is None:
        return
    if fields.at(provider, "name") != "oidc":
        raise SettingsError(
            f"{where}: auth-provider {quoted(fields.at(provider, 'name'))} is gone from kubectl, too: use its credential plug-in"
        )
    until = _expiry(fields.at(provider, "config", "id-token"))
    if until is None:
        raise SettingsError(f"{where}: the id-token of its user is none: log in again")
    # The package would renew it, but asks for the token's endpoint without looking at the certificate of who answers.
    if until < time.time() + _LOGGED_IN:
        raise SettingsError(
            f"{where}: the id-token has expired: any command of kubectl has it renewed, e.g. kubectl get ns"
        )


def _expiry(token: object) -> float | None:
    """When a JWT ends, in seconds of the epoch; for ever, if it doesn't say. None: it is none."""
    parts = token.split(".") if isinstance(token, str) else []
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims.get("exp", "inf")) if len(parts) == 3 else None
    except (IndexError, ValueError, TypeError, AttributeError, RecursionError):
        return None


@contextmanager
def _errors_told(where: str) -> Iterator[None]:
    """Make errors of the package ours. Their texts are not shown where they may quote the file: there are tokens in it."""
    import yaml  # noqa: PLC0415 - as above
    from kubernetes.config import ConfigException  # noqa: PLC0415

    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise SettingsError(f"{where}: it is not YAML{f', see line {mark.line + 1}' if mark else ''}") from None
    except OSError as error:
        raise SettingsError(f"{where}: {error.filename or 'a file'} can't be read: {error.strerror}") from error
    except ConfigException as error:
        raise SettingsError(f"{where}: {str(error).partition('{')[0].strip()}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ssl.SSLError) as error:
        raise SettingsError(
            f"{where}: something in it has another form than kubectl's ({type(error).__name__})"
        ) from None


@contextmanager
def _failures() -> Iterator[list[str]]:
    """What the package logs of a plug-in that failed, and then goes on without it."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(" ".join(record.getMessage().split())[:500])  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield told
    finally:
        logging.getLogger().removeHandler(handler)
