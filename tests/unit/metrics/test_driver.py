"""What Prometheus sees of what the daemon has done."""

from hami_kubeletplugin.metrics.driver import Driver, Records
from tests.unit.metrics.test_node import page


def test_xids_and_calls_that_did_not_return() -> None:
    """By GPU and number, and by call; also those that never came up."""
    xids = {"GPU-2": {"79": 0, "other": 1}, "GPU-1": {"79": 2, "other": 0}}
    text = page(Driver(lambda: xids, lambda: {"GPU-1": "hami-gpu-0"}, lambda: {"nvmlInitWithFlags": 3, "dlopen": 0}))
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'hami_gpu_xids_total{device="hami-gpu-0",device_uuid="GPU-1",xid="79"} 2.0',
        'hami_gpu_xids_total{device="hami-gpu-0",device_uuid="GPU-1",xid="other"} 0.0',
        'hami_gpu_xids_total{device="",device_uuid="GPU-2",xid="79"} 0.0',
        'hami_gpu_xids_total{device="",device_uuid="GPU-2",xid="other"} 1.0',
        'hami_nvml_timeouts_total{call="dlopen"} 0.0',
        'hami_nvml_timeouts_total{call="nvmlInitWithFlags"} 3.0',
    ]


def test_records() -> None:
    """Those that can be used, and those that can't."""
    text = page(Records(lambda: (3, 1)))
    assert 'hami_claim_records{state="prepared"} 3.0' in text
    assert 'hami_claim_records{state="damaged"} 1.0' in text
