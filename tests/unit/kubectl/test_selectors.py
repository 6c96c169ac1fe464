"""Selectors are judged right, or not at all."""

import pytest

from hami_kubeletplugin.kubectl.selectors import judge
from hami_kubeletplugin.webhook.conversion import cel
from tests.unit.kubectl.objects import CLASS, DRIVER, a100s

GPU = a100s(1)[0]
UUID = GPU["attributes"]["uuid"]["string"]
OF = f'device.attributes["{DRIVER}"]'


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (CLASS["spec"]["selectors"][0]["cel"]["expression"], True),
        (cel.one_of(DRIVER, "uuid", ["GPU-1", UUID]), True),
        (cel.one_of(DRIVER, "uuid", ["GPU-1"]), False),
        (cel.one_of(DRIVER, "uuid", [UUID], wanted=False), False),
        (cel.model_contains(DRIVER, ["v100", "A100"]), True),
        (cel.model_contains(DRIVER, ["v100"]), False),
        (cel.model_contains(DRIVER, ["A100"], wanted=False), False),
        (cel.model_contains("other.driver", ["A100"]), False),
        (cel.memory_is(DRIVER, 40960), True),
        (cel.memory_is(DRIVER, 40961), False),
        (cel.memory_at_least(DRIVER, 40961), False),
        (f"{OF}.minor == 0", True),
        (f"{OF}.minor >= 1", False),
        ('device.attributes["resource.kubernetes.io"].numaNode == 7', False),
        ('"numaNode" in device.attributes["resource.kubernetes.io"]', True),
        ('"nothing" in device.attributes["gpu.hami.io"]', False),
        ('device.driver == "gpu.nvidia.com"', False),
        # What isn't known isn't judged, unless another part says no.
        (f"{OF}.minor in [0, 1]", None),
        (f'{OF}.productName.startsWith("NVIDIA")', None),
        (f"{OF}.minor == 1 || true", None),
        (f"{OF}.nothing == 1", None),
        (f'{OF}.minor == "0"', None),
        (f'device.driver == "other" && {OF}.productName.matches("x")', False),
        (f'{OF}.uuid == "a && b"', False),
        (f"!({OF}.minor == 1)", True),
        (f"!({OF}.minor == 1) || !({OF}.minor == 0)", None),
        # `||` and `? :` bind weaker than `&&`: a part of such a whole says nothing.
        (f"{OF}.minor == 0 || {OF}.minor == 1 && {OF}.minor == 1", None),
        (f"{OF}.minor == 1 && true || {OF}.minor == 0", None),
        (f"{OF}.minor == 1 && true ? false : true", None),
        (f"({OF}.minor == 0 || true) && {OF}.minor == 1", False),
        # Nor does what is in a text of another form, or in a comment.
        ("device.driver != 'x && device.driver == \"nope\" && y'", None),
        (f'{OF}.minor == 0 // && device.driver == "nope" && x', None),
        ("!(" * 2000 + "true" + ")" * 2000, None),
        ("((((", None),
        ("", None),
        ('"', None),
        ("true " * 5000, None),
    ],
)
def test_judged(expression: str, expected: bool | None) -> None:
    """The forms of the DeviceClass and the webhook, and simple ones, are judged; all else is not."""
    assert judge(expression, DRIVER, GPU) is expected
