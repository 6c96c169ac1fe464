"""What belongs to one installation, whatever its parts are called."""

from collections.abc import Mapping
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import ApiError, ApiUnavailable
from hami_kubeletplugin.hanging import OwnThreads
from hami_kubeletplugin.kube.call import Object
from hami_kubeletplugin.webhook.doctor import configuration
from hami_kubeletplugin.webhook.doctor.cluster import Cluster, daemon_sets, environment

CONFIGURATIONS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_WEBHOOK_VARIABLE: Final = "HAMI_NAMESPACE"


def answers(cluster: Cluster, timeout: float) -> None:
    """Have the API server answer once, so that one which can't be asked is told of once, and not by each check.

    Raises:
        ApiError: It does not, or not in time.
    """
    asked = OwnThreads(last_wait=0.0).submit(cluster.path, "/version", "version", "gitVersion")
    try:
        asked.result(timeout)
    except TimeoutError as error:
        raise ApiUnavailable(
            f"get version failed: no answer in {timeout:g} s; look at the context, or give it more --timeout"
        ) from error


def driver_of(cluster: Cluster) -> str:
    """The driver's name as the node daemon has it; the default if nobody says another, or DaemonSets may not be read."""
    try:
        found = daemon_sets(cluster.all("daemonsets"))
    except ApiError:
        found = []  # told by the checks
    given = (environment(each).get(names.DRIVER_NAME) for each in found)
    return next(filter(None, given), names.DRIVER)


class Installation:
    """What belongs to an installation, whatever it is called.

    Args:
        cluster: Where.
        name: Of both webhook configurations; empty: those that have our webhooks are looked for.
        namespace: The webhook's, if no configuration says; empty: the default.
    """

    def __init__(self, cluster: Cluster, name: str = "", namespace: str = "") -> None:
        self.cluster = cluster
        self._name, self._namespace = name, namespace

    def configurations(self, resource: str) -> list[Object]:
        """Webhook configurations: ours, or all where ours are looked for."""
        if not self._name:
            return self.cluster.all(resource)
        found = self.cluster.get(resource, self._name)
        return [found] if found else []

    def entries(self) -> dict[str, Mapping[str, Any]]:
        """Our webhooks by name."""
        return configuration.entries([each for kind in CONFIGURATIONS for each in self.configurations(kind)])

    def daemon_sets(self) -> list[Object]:
        """The node daemon's."""
        return daemon_sets(self.cluster.all("daemonsets"))

    def daemon_pods(self) -> list[Object]:
        """The node daemon's pods."""
        return [pod for each in self.daemon_sets() for pod in self.cluster.pods(each)]

    @property
    def namespace(self) -> str:
        """Where daemon and webhook are."""
        called = {configuration.called(entry).namespace for entry in self.entries().values()} - {""}
        daemons = (str(fields.at(each, "metadata", "namespace")) for each in self.daemon_sets())
        return min(called, default="") or self._namespace or next(daemons, names.WEBHOOK_NAMESPACE)

    def webhook(self) -> Object | None:
        """Its Deployment; None: it is none, or there is no webhook."""
        found = self.cluster.all("deployments", self.namespace)
        return next((each for each in found if _WEBHOOK_VARIABLE in environment(each)), None)

    def variables(self) -> dict[str, str]:
        """The webhook's."""
        return environment(self.webhook() or {})

    def users(self) -> dict[str, set[tuple[str, str]]]:
        """By policies' word for them, the accounts that daemon and webhook have."""
        webhook = self.webhook()
        return {
            "daemon": {_account(each) for each in self.daemon_sets()},
            "webhook": {_account(webhook)} if webhook else set(),
        }


def _account(workload: Mapping[str, Any]) -> tuple[str, str]:
    account = fields.at(workload, "spec", "template", "spec", "serviceAccountName")
    return str(fields.at(workload, "metadata", "namespace")), str(account or "default")
