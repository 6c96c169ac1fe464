"""What the doctor says of records, CDI specs, claims, what they left, and running containers."""

from pathlib import Path

from hami_kubeletplugin.api.cdi import Device
from hami_kubeletplugin.api.errors import ApiUnavailable
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.doctor import claims, containers
from hami_kubeletplugin.doctor.cluster import Answers
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.hamicore.processes import Process, UseKey
from hami_kubeletplugin.inforce.differing import Differing
from hami_kubeletplugin.inforce.unlimited import Seen, Unlimited
from tests.unit.claims.objects import claim, container, pod, result, uid_of
from tests.unit.doctor.objects import levels, place, worst
from tests.unit.usage.world import World

C = claim("c", [result(0)], pods=["p"])
P = pod("p", container("x", "c"))
UID = C["metadata"]["uid"]


class Known:
    """A `Cluster` that knows of claims."""

    def __init__(self, **claims: str | ApiUnavailable | None) -> None:
        self._claims = claims

    def answers(self) -> Answers:
        """What it said."""
        return Answers("https://api", (1, 37), 0.0, {}, [], {UID: self._claims.get("uid", UID)}, [])


def prepared(root: Path) -> tuple[Place, Path, Path]:
    """A node on which `C` is prepared: it, the claim's record and its spec."""
    world = World(root / "w")
    world.prepare(C, P)
    here = place(root, plugin_dir=root / "w", hami_dir=world.hami)
    specs = SpecFiles(here.settings.cdi_dir, DRIVER)
    (record,) = here.prepared()
    devices: list[Device] = [{"name": record.cdi_device(share), "containerEdits": {}} for share in record.shares]
    specs.save(UID, {"cdiVersion": "0.5.0", "kind": "k", "devices": devices})
    return here, here.records.path(UID), specs.path(UID)


def judge(here: Place, known: Known | None = None) -> list[Finding]:
    """What is found."""
    return list(claims.claims(here, known or Known()))  # type: ignore[arg-type] # all that is asked of it


def test_a_claim_that_is_whole(tmp_path: Path) -> None:
    """Record, spec and claim agree, and nothing is left over."""
    here, _, _ = prepared(tmp_path)
    assert levels(judge(here)) == [Level.ok]
    assert levels(claims.leftovers(here)) == [Level.ok]


def test_a_spec_that_is_missing_or_another(tmp_path: Path) -> None:
    """No container of the claim could start again."""
    here, _, spec = prepared(tmp_path)
    content = spec.read_text()
    spec.write_text(content.replace(".gpu.hami-gpu-0", ".other.hami-gpu-0"))
    assert "lacks devices of its record" in worst(judge(here)).what
    spec.write_text("{}")
    assert "it is no CDI spec" in worst(judge(here)).what
    spec.unlink()
    assert f"default/c is prepared, and its CDI spec {spec} is not there" in worst(judge(here)).what


def test_records_that_are_damaged_or_gone(tmp_path: Path) -> None:
    """A damaged one is an error with its reason; a spec without one is a warning, a folder without either a hint."""
    here, record, spec = prepared(tmp_path)
    record.write_text("{}")
    assert "record is damaged" in worst(judge(here)).what
    record.unlink()
    assert "has no record" in worst(judge(here)).what
    assert levels(claims.leftovers(here)) == [Level.ok]
    spec.unlink()
    (found,) = claims.leftovers(here)
    assert (found.level, UID in found.what) == (Level.hint, True)


def test_claims_that_are_gone(tmp_path: Path) -> None:
    """Or were made anew under their name, or can't be asked for."""
    here, _, _ = prepared(tmp_path)
    assert "is not there any more" in worst(judge(here, Known(uid=None))).what
    assert "with UID other" in worst(judge(here, Known(uid="other"))).what
    assert worst(judge(here, Known(uid=ApiUnavailable("gone")))).level is Level.unknown


def of(root: Path) -> tuple[Prepared, UseKey]:
    """The prepared claim, and the key of its use."""
    here, _, _ = prepared(root)
    (found,) = here.prepared()
    return found, UseKey(UID, "use-0")


def test_running_containers(tmp_path: Path) -> None:
    """One without the library, and one with another limit, are errors that name pod and container."""
    record, key = of(tmp_path)
    assert levels(containers.judged([record], Seen(loaded={key: 1}), {})) == [Level.ok]
    once = Unlimited(1, 1, (Process(1, 7, "static"),))
    assert levels(containers.judged([record], Seen(unlimited={key: once}), {})) == [Level.ok]
    twice = Unlimited(1, 2, (Process(1, 7, "static"),))
    found = worst(containers.judged([record], Seen(unlimited={key: twice}), {}))
    assert found.what == "no process of container p/x of claim default/c has HAMi-core loaded: static (PID 7)"
    differs = Differing(1, record, record.uses[0], ("the memory limit is none",))
    found = worst(containers.judged([record], Seen(loaded={key: 1}), {key: differs}))
    assert "p/x of claim default/c has other limits" in found.what
    assert found.mend == "kubectl -n default delete pod p"
    assert uid_of("pod", "p")


def test_containers_that_can_not_be_seen(tmp_path: Path) -> None:
    """Without hostPID nobody knows."""
    record, _ = of(tmp_path)
    assert levels(containers.judged([record], Seen(others=False), {})) == [Level.unknown]
