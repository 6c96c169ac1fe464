"""What values do."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from tests import REPOSITORY
from tests.chart.rendering import CERT_MANAGER, CHART, MONITORING, OPENSHIFT, Chart, env, pod
from tests.chart.values import RICH

APIS = [CERT_MANAGER, MONITORING, OPENSHIFT]
DAEMON, WEBHOOK = ("DaemonSet", "hami-kubeletplugin"), ("Deployment", "hami-webhook")


def rich(chart: Chart) -> dict[tuple[str, str], Any]:
    """All objects of many values at once, in another namespace."""
    return chart.objects(RICH, apis=APIS, namespace="gpu")


def test_another_driver_name_goes_everywhere(chart: Chart) -> None:
    """Into both programs, the DeviceClasses, the policies and the rights; the old name stays that of the class, for claims."""
    made = rich(chart)
    assert {
        env(item).get("HAMI_DRIVER_NAME") for key, item in made.items() if key[0] in {"DaemonSet", "Deployment"}
    } == {"hami-core-gpu.project-hami.io"}
    assert env(made["Deployment", "acme-webhook"])["HAMI_DEVICE_CLASS"] == "gpu.hami.io"
    for (kind, name), item in made.items():
        if kind in {"DeviceClass", "ValidatingAdmissionPolicy"} and name != "acme-claim-limits":
            assert '"gpu.hami.io"' not in json.dumps(item["spec"]), name
    assert "driver hami-core-gpu.project-hami.io only" in str(
        made["ValidatingAdmissionPolicy", "acme-kubeletplugin-own-node"]
    )
    assert "hami-core-gpu.project-hami.io" in str(made["ClusterRole", "acme-kubeletplugin-claim-status"])


def test_other_names_and_another_namespace_go_everywhere(chart: Chart) -> None:
    """Nothing is left of the default ones, but what the webhook's program has as constants."""
    text = chart.text(RICH, apis=APIS, namespace="gpu")
    said = [line for line in text.splitlines() if not line.lstrip().startswith("#") and "hami-system" in line]
    assert not said
    for (kind, name), item in rich(chart).items():
        assert item["metadata"].get("namespace", "gpu") == "gpu"
        for each in ("hami-kubeletplugin", "system:serviceaccount:hami-system"):
            assert each not in json.dumps({**item, "spec": {}} if kind in {"DaemonSet", "ConfigMap"} else item), name
    users = json.dumps([*rich(chart).values()])
    assert "system:serviceaccount:gpu:acme-kubeletplugin" in users
    assert "system:serviceaccount:gpu:acme-webhook" in users


def test_resources_go_into_options_and_conditions(chart: Chart) -> None:
    """HAMi's names of the values do; API servers ask the webhook about pods that name them, and about no others."""
    made = rich(chart)
    assert env(made["Deployment", "acme-webhook"])["HAMI_RESOURCE_COUNT_NAME"] == "example.com/gpu"
    configuration = json.dumps(made["MutatingWebhookConfiguration", "zz-webhook.gpu.hami.io"])
    listed = json.dumps('["example.com/gpu", "nvidia.com/gpumem"')[1:-1]
    assert configuration.count(listed) == 3
    assert '\\"nvidia.com/gpu\\",' not in configuration


def test_options_are_variables(chart: Chart) -> None:
    """Numbers stand there as people write them, what a profile says counts there, and HAMi's values have their equals."""
    made = rich(chart)
    default, a100, runtime = (env(made["DaemonSet", f"acme-kubeletplugin{name}"]) for name in ("", "-a100", "-runtime"))
    assert (default["HAMI_RESCAN_INTERVAL"], default["HAMI_HEALTH_POLL"]) == ("1000000", "30")
    assert (a100["HAMI_RESCAN_INTERVAL"], a100["HAMI_HEALTH_POLL"], a100["HAMI_GPU_ORDER"]) == (
        "1000000",
        "5",
        "spread",
    )
    assert (default["HAMI_DEVICE_SPLIT_COUNT"], a100["HAMI_DEVICE_SPLIT_COUNT"]) == ("5", "20")
    assert default["HAMI_DEVICE_MEMORY_SCALING"] == "1.5"
    assert (default["HAMI_LEGACY_METRICS"], default["HAMI_LOG_LEVEL"]) == ("true", "debug")
    assert (runtime["HAMI_DRIVER_EDITS"], runtime["NVIDIA_VISIBLE_DEVICES"]) == ("runtime", "all")
    assert default["HAMI_DEVICE_STATUS"] == "written"
    assert (runtime["X"], runtime["Z"]) == ("1", "2")
    assert env(made["Deployment", "acme-webhook"])["HAMI_REPLACE_SCHEDULER"] == "hami-scheduler"


def test_paths_are_the_same_in_and_out(chart: Chart) -> None:
    """What an option names is mounted there, from there on the host."""
    made = rich(chart)
    for name in ("", "-a100"):
        item = made["DaemonSet", f"acme-kubeletplugin{name}"]
        (container,) = pod(item)["containers"]
        host = {each["name"]: each["hostPath"]["path"] for each in pod(item)["volumes"] if "hostPath" in each}
        mounted = {each["mountPath"]: host.get(each["name"]) for each in container["volumeMounts"]}
        said = env(item)
        assert mounted[said["HAMI_DIR"]] == said["HAMI_DIR"] == "/opt/vgpu"
        assert mounted[said["HAMI_REGISTRY_DIR"]] == said["HAMI_REGISTRY_DIR"]
        plugins = said["HAMI_PLUGIN_DIR"].removesuffix("/hami-core-gpu.project-hami.io")
        assert mounted[plugins] == plugins
        root = said["HAMI_HOST_DRIVER_ROOT"]
        assert said["HAMI_DRIVER_ROOT"] == f"/driver-root{root}"
        assert any(
            said["HAMI_DRIVER_ROOT"].startswith(path) and path == f"/driver-root{host}"
            for path, host in mounted.items()
        )


def nodes_of(item: Any, labels: dict[str, str]) -> bool:
    """Whether a DaemonSet runs on a node with these labels, as the scheduler decides it."""
    spec = pod(item)
    if not spec.get("nodeSelector", {}).items() <= labels.items():
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    operators: dict[str, Callable[[str | None, Any], bool]] = {
        "NotIn": lambda label, values: label not in values,
        "In": lambda label, values: label in values,
        "Exists": lambda label, _: label is not None,
    }
    return any(
        all(
            operators[each["operator"]](labels.get(each["key"]), each.get("values"))
            for each in term["matchExpressions"]
        )
        for term in required["nodeSelectorTerms"]
    )


def test_each_node_has_one_daemon(chart: Chart) -> None:
    """Whatever labels it has: its profile's, or the default one; none where the profile is off or the affinity says no."""
    term = {"matchExpressions": [{"key": "old", "operator": "NotIn", "values": ["yes"]}]}
    other = {"matchExpressions": [{"key": "kept", "operator": "Exists"}]}
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, other]}}
    }
    values = {"kubeletPlugin": {"affinity": affinity}, "nodeProfiles": RICH["nodeProfiles"]}
    sets = {name: item for (kind, name), item in chart.objects(values).items() if kind == "DaemonSet"}
    assert sets.keys() == {"hami-kubeletplugin", "hami-kubeletplugin-a100", "hami-kubeletplugin-runtime"}
    for kind in (None, "a100", "h100", "cpu", "other"):
        for zone in (None, "x", "y"):
            for more in ({}, {"old": "yes"}, {"old": "yes", "kept": ""}):
                given = {"kind": kind, "zone": zone, **more}
                labels = {key: value for key, value in given.items() if value is not None}
                found = {
                    name.removeprefix("hami-kubeletplugin") for name, item in sets.items() if nodes_of(item, labels)
                }
                profile = "-a100" if (kind, zone) == ("a100", "x") else {"h100": "-runtime"}.get(str(kind), "")
                wanted = {profile} if kind != "cpu" and ("old" not in more or "kept" in more) else set()
                assert found == wanted, labels


def test_pods_of_profiles_are_found_like_the_others(chart: Chart) -> None:
    """By the policies' ServiceAccount, and by the label of NetworkPolicy and monitors; each DaemonSet selects what it makes."""
    made = rich(chart)
    label = ("app.kubernetes.io/name", "acme-kubeletplugin")
    for item in (item for (kind, _), item in made.items() if kind == "DaemonSet"):
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert label in labels.items()
        assert item["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert pod(item)["serviceAccountName"] == "acme-kubeletplugin"
    assert made["NetworkPolicy", "acme-kubeletplugin"]["spec"]["podSelector"]["matchLabels"] == dict([label])


def test_a_certificate_of_cert_manager(chart: Chart) -> None:
    """It fills a Secret that is mounted, and both configurations' caBundle; the webhook has no right to either any more."""
    values = {"webhook": {"tls": {"mode": "cert-manager"}}}
    made = chart.objects(values, apis=[CERT_MANAGER])
    certificate = made["Certificate", "hami-webhook"]["spec"]
    assert certificate["dnsNames"] == ["hami-webhook.hami-system.svc"]
    assert certificate["issuerRef"]["name"] == made["Issuer", "hami-webhook"]["metadata"]["name"]
    (volume,) = pod(made[WEBHOOK])["volumes"]
    assert volume["secret"]["secretName"] == certificate["secretName"]
    (container,) = pod(made[WEBHOOK])["containers"]
    folder = container["volumeMounts"][0]["mountPath"]
    assert env(made[WEBHOOK])["HAMI_TLS_CERT_FILE"] == f"{folder}/tls.crt"
    for kind in ("Mutating", "Validating"):
        annotations = made[f"{kind}WebhookConfiguration", "zz-webhook.gpu.hami.io"]["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": "hami-system/hami-webhook"}
    assert ("Secret", "hami-webhook-tls") not in made
    rights = str(made["Role", "hami-webhook"]["rules"]) + str(made["ClusterRole", "webhook.gpu.hami.io"]["rules"])
    assert "secrets" not in rights
    assert "admissionregistration.k8s.io" not in rights


def test_an_issuer_of_the_clusters(chart: Chart) -> None:
    """Then the chart makes none."""
    issuer = {"name": "corp", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    values = {"webhook": {"tls": {"mode": "cert-manager", "certManager": {"issuerRef": issuer}}}}
    made = chart.objects(values, apis=[CERT_MANAGER])
    assert made["Certificate", "hami-webhook"]["spec"]["issuerRef"] == issuer
    assert not any(kind == "Issuer" for kind, _ in made)


def test_a_certificate_of_ones_own(chart: Chart) -> None:
    """Its CA is in each entry that API servers call."""
    values = {"webhook": {"tls": {"mode": "secret", "secretName": "mine", "caBundle": "PEM"}}}
    made = chart.objects(values)
    for kind in ("Mutating", "Validating"):
        for entry in made[f"{kind}WebhookConfiguration", "zz-webhook.gpu.hami.io"]["webhooks"]:
            assert entry["clientConfig"]["caBundle"] == "UEVN"
    assert pod(made[WEBHOOK])["volumes"][0]["secret"]["secretName"] == "mine"


def test_openshift(chart: Chart) -> None:
    """The daemon gets constraints of its own; the webhook's user is OpenShift's to choose. Seen by the cluster, or said."""
    for values, apis in (({}, [OPENSHIFT]), ({"platform": {"openshift": True}}, [])):
        made = chart.objects(values, apis=apis)
        constraints = made["SecurityContextConstraints", "hami-kubeletplugin"]
        assert (constraints["users"], constraints["groups"]) == ([], [])
        (rule,) = made["ClusterRole", "hami-kubeletplugin-scc"]["rules"]
        assert (rule["resourceNames"], rule["verbs"]) == (["hami-kubeletplugin"], ["use"])
        (subject,) = made["RoleBinding", "hami-kubeletplugin-scc"]["subjects"]
        assert subject["name"] == pod(made[DAEMON])["serviceAccountName"]
        used = {next(iter(each.keys() - {"name"})) for each in pod(made[DAEMON])["volumes"]}
        assert used <= {*constraints["volumes"]}
        assert "runAsUser" not in pod(made[WEBHOOK])["securityContext"]
        assert pod(made[WEBHOOK])["securityContext"]["runAsNonRoot"] is True
    off = chart.objects({"openshift": {"enabled": False}}, apis=[OPENSHIFT])
    assert not any(kind == "SecurityContextConstraints" for kind, _ in off)


def test_a_quota_for_gke(chart: Chart) -> None:
    """It names the two priority classes that the pods have."""
    made = chart.objects({"resourceQuota": {"enabled": True}})
    (expression,) = made["ResourceQuota", "hami-critical-pods"]["spec"]["scopeSelector"]["matchExpressions"]
    assert {pod(made[key])["priorityClassName"] for key in (DAEMON, WEBHOOK)} == {*expression["values"]}


def test_without_the_webhook(chart: Chart) -> None:
    """Nothing of it is there, and claims by hand have all that they need."""
    made = chart.objects({"webhook": {"enabled": False}})
    assert not any("webhook" in name for _, name in made)
    assert ("DeviceClass", "gpu.hami.io") in made


def test_without_metrics(chart: Chart) -> None:
    """No port, no probe at a port that isn't there, nothing let in."""
    made = chart.objects({"kubeletPlugin": {"metrics": {"enabled": False}}})
    (container,) = pod(made[DAEMON])["containers"]
    assert not {"ports", "startupProbe", "livenessProbe", "readinessProbe"} & container.keys()
    assert "HAMI_METRICS_ADDRESS" not in env(made[DAEMON])
    assert "ingress" not in made["NetworkPolicy", "hami-kubeletplugin"]["spec"]


def test_one_replica_can_be_drained(chart: Chart) -> None:
    """A budget for one would stop the drain of its node for ever."""
    assert ("PodDisruptionBudget", "hami-webhook") not in chart.objects({"webhook": {"replicas": 1}})


def test_rules_name_the_jobs_that_there_are(chart: Chart) -> None:
    """Monitors' names are Prometheus' jobs."""
    made = rich(chart)
    rules = json.dumps(made["PrometheusRule", "acme-dra"]["spec"])
    assert "(.+/)?acme-kubeletplugin" in rules
    assert "(.+/)?acme-webhook" in rules
    assert json.loads(made["ConfigMap", "acme-dra-dashboard"]["data"]["hami-dra.json"]) == json.loads(
        (REPOSITORY / "deploy/monitoring/dashboard.json").read_text()
    )


def test_each_value_is_described() -> None:
    """Each leaf of values.yaml has a comment, or what it is in has one: the README is made of them."""
    readme = (CHART / "README.md").read_text()

    def leaves(value: Any, path: str) -> list[str]:
        if isinstance(value, dict) and value:
            return [leaf for key, each in value.items() for leaf in leaves(each, f"{path}.{key}" if path else key)]
        return [path]

    for path in leaves(yaml.safe_load((CHART / "values.yaml").read_text()), ""):
        parts = path.split(".")
        above = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        assert any(f"\n| `{each}` | " in readme for each in above), path


def taken_away(values: Any, defaults: Any) -> Any:
    """What an empty line in somebody's values takes away: each list, each free map, and each text that may be empty."""
    return {
        name: taken_away(inner, defaults["properties"][name]) if "properties" in defaults["properties"][name] else None
        for name, inner in values.items()
        if "properties" in defaults["properties"][name] or name not in defaults["required"]
    }


def test_what_is_left_empty_is_not_there(chart: Chart) -> None:
    """`affinity:` and nothing behind it is null, and helm takes the default away: the chart does without, or refuses."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    empty = taken_away(defaults, json.loads((CHART / "values.schema.json").read_text()))
    assert empty["kubeletPlugin"]["options"] is empty["kubeletPlugin"]["affinity"] is None
    assert chart.objects(empty).keys() == chart.objects().keys()


def strings(value: Any) -> Iterator[tuple[str, Any]]:
    """Values of fields and labels whose names say that they are names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in {"name", "namespace", "serviceAccountName", "secretName", "app.kubernetes.io/instance"}:
                yield key, inner
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def test_names_that_yaml_takes_for_something_else(chart: Chart) -> None:
    """A namespace `456` is a name; as a number the API server would refuse it."""
    values = {
        "serviceAccount": {"name": "1e3"},
        "deviceClass": {"name": "null"},
        "driverName": "8.5",
        "kubeletPlugin": {"priorityClassName": "true", "metrics": {"tlsSecretName": "12", "tokenSecretName": "13"}},
        "webhook": {"serviceAccount": {"name": "17"}, "tls": {"mode": "secret", "secretName": "18", "caBundle": "x"}},
        "openshift": {"enabled": True, "sccName": "19"},
        "claimStatus": {"enabled": True},
        "claimLimits": {"enabled": True},
        "extendedResource": {"enabled": True},
        "monitoring": {"enabled": True},
    }
    made = chart.objects(values, namespace="456", release="123", apis=[MONITORING])
    found = list(strings(list(made.values())))
    assert {"123", "456", "1e3", "null", "12", "13", "17", "18", "19"} <= {value for _, value in found}
    assert [each for each in found if not isinstance(each[1], str | dict)] == []
    assert pod(made["DaemonSet", "hami-kubeletplugin"])["priorityClassName"] == "true"


def test_another_way_of_updating(chart: Chart) -> None:
    """Only the type has to be said: what rolling updates have goes with them."""
    made = chart.objects(
        {"webhook": {"updateStrategy": {"type": "Recreate"}}, "kubeletPlugin": {"updateStrategy": {"type": "OnDelete"}}}
    )
    assert made["Deployment", "hami-webhook"]["spec"]["strategy"] == {"type": "Recreate"}
    assert made["DaemonSet", "hami-kubeletplugin"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
