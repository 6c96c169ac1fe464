"""Settings: each mistake is named by its option, with what it must be."""

from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.api.settings import Identity, Settings
from hami_kubeletplugin.api.taint_settings import DEFAULT_EFFECTS


def test_defaults() -> None:
    """Only the node name has to be given."""
    settings = Settings.checked(node_name="n")
    assert settings.driver_name == "gpu.hami.io"
    assert settings.plugin_dir == Path("/var/lib/kubelet/plugins/gpu.hami.io")
    assert settings.prepare_timeout < 45


def test_text_becomes_values() -> None:
    """The command line and the environment give text."""
    settings = Settings.checked(
        node_name="n", device_split_count="4", device_memory_scaling="1.5", plugin_dir="/p", simulate=None
    )
    assert (settings.device_split_count, settings.device_memory_scaling, settings.plugin_dir) == (4, 1.5, Path("/p"))
    assert settings.simulate is None


def test_the_plugin_directory_follows_the_driver() -> None:
    """Two drivers on one node never share a directory; commands beside the daemon find the same."""
    name = "hami-core-gpu.project-hami.io"
    expected = Path("/var/lib/kubelet/plugins") / name
    assert Settings.checked(node_name="n", driver_name=name).plugin_dir == expected
    assert Identity.checked(driver_name=name).plugin_dir == expected


@pytest.mark.parametrize("given", [{}, {"node_name": None}, {"node_name": ""}])
def test_a_missing_node_name(given: dict[str, object]) -> None:
    """The message says where it comes from in a DaemonSet."""
    with pytest.raises(
        SettingsError, match=r"--node-name is missing .*NODE_NAME to spec.nodeName through the downward API"
    ):
        Settings.checked(**given)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("device_split_count", "0", "--device-split-count: .*greater than or equal to 1, got '0'"),
        ("device_split_count", "10001", "--device-split-count: .*less than or equal to 100"),
        ("device_split_count", "ten", "--device-split-count: .*integer.*got 'ten'"),
        ("device_memory_scaling", "0", "--device-memory-scaling: .*greater than .*got '0'"),
        ("device_memory_scaling", "nan", "--device-memory-scaling: "),
        ("device_core_scaling", "101", "--device-core-scaling: .*less than or equal to 100"),
        ("prepare_timeout", "45", "--prepare-timeout: .*less than 45"),
        ("health_interval", "30", "--health-interval: .*less than or equal to 25"),
        ("rescan_interval", "-1", "--rescan-interval: .*greater than 0"),
        ("glibc_floor", "new", "--glibc-floor: .*got 'new'"),
        ("driver_edits", "docker", "--driver-edits: .*'toolkit', 'runtime' or 'none', got 'docker'"),
        ("log_level", "loud", "--log-level: .*got 'loud'"),
        ("log_format", "xml", "--log-format: .*'json' or 'console'"),
        ("driver_name", "GPU.hami.io", "--driver-name: .*got 'GPU.hami.io'"),
        ("driver_name", "a" * 64, "--driver-name: .*at most 63"),
        ("driver_name", "../x", "--driver-name: "),
        ("taints", "lost", "--taints: .*'lost' must be KIND=EFFECT"),
        ("taints", "lots=None", "--taints: .*no kind 'lots', only xid, .*lost"),
        ("taints", "lost=Evict", "--taints: .*lost can't have effect 'Evict', only None, NoSchedule, NoExecute, Off"),
        ("taints", "lost=None,lost=Off", "--taints: .*lost is named twice"),
        ("health_poll", "0", "--health-poll: .*greater than or equal to 0.05, got '0'"),
        ("health_events", "on", "--health-events: .*'watched' or 'off', got 'on'"),
        ("xids_informational", "48;63", "--xids-informational: .*commas between, such as 48,63, got '48;63'"),
        ("xids_critical", "all", "--xids-critical: .*commas between, such as 48,63, got 'all'"),
        ("legacy_metrics", "older", "--legacy-metrics: .*boolean.*got 'older'"),
        ("legacy_metrics", "true", "what is said of the port for metrics needs --metrics-address"),
        ("metrics_address", "9400", "--metrics-address: .*got '9400'"),
        ("metrics_token_file", "/t", "--metrics-token-file needs --tls-cert-file and --tls-key-file: without TLS"),
        ("tls_cert_file", "/c", "--tls-cert-file and --tls-key-file go together"),
        ("tls_key_file", "/k", "--tls-cert-file and --tls-key-file go together"),
        ("no_such_option", "1", "--no-such-option: "),
    ],
)
def test_wrong_values(option: str, value: str, message: str) -> None:
    """Option, what is allowed, and what was given."""
    with pytest.raises(SettingsError, match=message):
        Settings.checked(**{"node_name": "n", option: value})


def test_effects_of_taints() -> None:
    """Those that are named, and the defaults of all others."""
    settings = Settings.checked(node_name="n", taints=" lost=NoExecute, xid=Off,")
    assert settings.effects == {**DEFAULT_EFFECTS, "lost": "NoExecute", "xid": "Off"}


def test_every_mistake_is_named() -> None:
    """People mend all of them at once."""
    with pytest.raises(SettingsError) as refused:
        Settings.checked(device_split_count="0", log_level="loud")
    assert all(option in str(refused.value) for option in ("--device-split-count", "--log-level", "--node-name"))


def test_xids() -> None:
    """Numbers as people write them; one that is said to be both is a mistake."""
    settings = Settings.checked(node_name="n", xids_informational="48, 63", xids_critical=" 94")
    assert settings.xids == (frozenset({48, 63}), frozenset({94}))
    assert Settings.checked(node_name="n").xids == (frozenset(), frozenset())
    with pytest.raises(SettingsError, match=r"^--xids-informational and --xids-critical both name Xid 48$"):
        Settings.checked(node_name="n", xids_informational="48", xids_critical="63,48")
