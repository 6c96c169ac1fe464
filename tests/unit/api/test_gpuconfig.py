"""GpuConfig: strict, since a typo that is ignored is a limit that is not kept."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import ClaimError, ConfigError
from hami_kubeletplugin.api.gpuconfig import GpuConfig, decode

HEAD = {"apiVersion": "gpu.hami.io/v1alpha1", "kind": "GpuConfig"}
WHERE = "spec.devices.config[2].opaque.parameters"

layers = st.builds(
    lambda fields: decode(HEAD | fields, WHERE),
    st.fixed_dictionaries(
        {},
        optional={
            "corePolicy": st.sampled_from(["default", "force", "disable"]),
            "priority": st.sampled_from(["high", "low"]),
            "allowSharedContainers": st.booleans(),
            "logLevel": st.integers(0, 4),
        },
    ),
)


def test_all_fields() -> None:
    """Every field under the name that users write."""
    config = decode(
        HEAD | {"corePolicy": "force", "priority": "high", "allowSharedContainers": True, "logLevel": 4}, WHERE
    )
    assert (config.core_policy, config.priority, config.allow_shared_containers, config.log_level) == (
        "force",
        "high",
        True,
        4,
    )


def test_no_fields() -> None:
    """Nothing said is nothing decided."""
    assert decode(HEAD, WHERE) == GpuConfig()


def test_more_fields_than_there_are_words_for() -> None:
    """A config of thousands of fields is refused in one line, not in one for each of them."""
    with pytest.raises(ConfigError) as refused:
        decode(HEAD | {f"x{number}": 1 for number in range(10_000)}, WHERE)
    assert str(refused.value).startswith(f"{WHERE}: has 10002 fields; known are apiVersion, kind, corePolicy, ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"corePolicy": "Force"}, "corePolicy: Input should be 'default', 'force' or 'disable', got 'Force'"),
        ({"corePolicy": ["force"]}, "corePolicy: Input should be"),
        ({"priority": 1}, "priority: Input should be 'high' or 'low', got 1"),
        ({"allowSharedContainers": "true"}, "allowSharedContainers: Input should be a valid boolean, got 'true'"),
        ({"allowSharedContainers": 1}, "allowSharedContainers: Input should be a valid boolean, got 1"),
        ({"logLevel": 5}, "logLevel: Input should be less than or equal to 4, got 5"),
        ({"logLevel": -1}, "logLevel: Input should be greater than or equal to 0, got -1"),
        ({"logLevel": "3"}, "logLevel: Input should be a valid integer, got '3'"),
        ({"logLevel": True}, "logLevel: Input should be a valid integer, got True"),
        ({"logLevel": 1.0}, "logLevel: Input should be a valid integer, got 1.0"),
        ({"corepolicy": "force"}, "corepolicy: unknown field; known are apiVersion, kind, corePolicy, priority, "),
        ({"core_policy": "force"}, "core_policy: unknown field"),
        ({"spec": {}}, "spec: unknown field"),
    ],
)
def test_wrong_fields(fields: dict[str, Any], message: str) -> None:
    """The message has the whole field path, what is allowed, and what was given."""
    with pytest.raises(ConfigError) as refused:
        decode(HEAD | fields, WHERE)
    assert str(refused.value).startswith(f"{WHERE}.{message}")


def test_every_mistake_is_named() -> None:
    """People mend all of them at once."""
    with pytest.raises(ConfigError, match=r"parameters\.logLevel: .*; .*parameters\.colour: unknown field"):
        decode(HEAD | {"logLevel": 9, "colour": "blue"}, WHERE)


def test_what_was_given_is_quoted_in_short() -> None:
    """10 KiB of garbage, as much as the API server takes, make a message that people can read."""
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    for garbage in ("x" * 10_000, {"a": ["x" * 10_000]}, deep, list(range(3000))):
        for fields in ({"corePolicy": garbage}, {"apiVersion": garbage}):
            with pytest.raises(ConfigError) as refused:
                decode(HEAD | fields, WHERE)
            assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, f"{WHERE}: must be an object of kind GpuConfig, not NoneType"),
        ([HEAD], f"{WHERE}: must be an object of kind GpuConfig, not list"),
        ({}, f"{WHERE}.apiVersion: must be 'gpu.hami.io/v1alpha1', got None"),
        (
            HEAD | {"apiVersion": "gpu.hami.io/v2"},
            f"{WHERE}.apiVersion: must be 'gpu.hami.io/v1alpha1', got 'gpu.hami.io/v2'",
        ),
        (HEAD | {"kind": "MigConfig"}, f"{WHERE}.kind: must be 'GpuConfig', got 'MigConfig'"),
        ({"apiVersion": "gpu.hami.io/v1alpha1"}, f"{WHERE}.kind: must be 'GpuConfig', got None"),
    ],
)
def test_another_object(parameters: object, message: str) -> None:
    """What is no GpuConfig of this version is not read as one."""
    with pytest.raises(ConfigError) as refused:
        decode(parameters, WHERE)
    assert str(refused.value) == message


def test_null_is_not_given() -> None:
    """As everywhere in the Kubernetes API."""
    assert decode(HEAD | {"corePolicy": None, "logLevel": None}, WHERE) == GpuConfig()


@given(layers, layers, layers)
def test_layers(low: GpuConfig, middle: GpuConfig, high: GpuConfig) -> None:
    """What a stronger config says wins, field by field, false and 0 too; what it leaves out stays."""
    made = high.over(middle.over(low))
    for field in ("core_policy", "priority", "allow_shared_containers", "log_level"):
        said = [value for layer in (high, middle, low) if (value := getattr(layer, field)) is not None]
        assert getattr(made, field) == (said[0] if said else None)
    assert made == high.over(middle).over(low)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_anything_else_is_a_config_error(parameters: object) -> None:
    """Whatever JSON a user writes, the answer is an error of the claim, never a crash."""
    for one in (parameters, HEAD | parameters if isinstance(parameters, dict) else parameters):
        error = _refused(one)
        assert error is None or str(error).startswith(WHERE)


def _refused(parameters: object) -> ClaimError | None:
    try:
        decode(parameters, WHERE)
    except ClaimError as error:
        return error
    return None
