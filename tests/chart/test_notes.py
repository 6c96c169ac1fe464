"""What helm says of the chart, and the chart to people."""

from tests.chart.rendering import Chart


def test_helm_finds_nothing_wrong(chart: Chart) -> None:
    """By `helm lint --strict`."""
    assert "0 chart(s) failed" in chart.lint()


def test_the_notes_name_what_is_there(chart: Chart) -> None:
    """Commands with the names of this installation, for each DaemonSet; what is ignored or dangerous has a word."""
    profiles = {"a": {"nodeSelector": {"kind": "a"}}, "off": {"nodeSelector": {"kind": "off"}, "enabled": False}}
    scheduler = {"service": {"monitorPort": 31993}}
    notes = chart.notes(
        {
            "fullnameOverride": "acme",
            "nodeProfiles": profiles,
            "scheduler": scheduler,
            "resourceName": "example.com/gpu",
            "webhook": {"failurePolicy": "Ignore"},
        }
    )
    for name in ("ds/acme-kubeletplugin\n", "ds/acme-kubeletplugin-a\n", "deploy/acme-webhook\n"):
        assert f"kubectl -n hami-system rollout status {name}" in notes
    assert "acme-kubeletplugin-off" not in notes
    assert "scheduler.service.monitorPort is ignored" in notes
    assert "WARNING: webhook.failurePolicy is Ignore" in notes
    assert "example.com/gpu" in notes
    assert "WARNING" not in chart.notes()
