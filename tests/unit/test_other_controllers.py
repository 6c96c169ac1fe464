"""What docs/with-other-controllers.md tells people to write into other programs' objects names what we publish and read."""

import re
from typing import Any, Final

import yaml

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.publish.devices import device
from tests import REPOSITORY
from tests.unit.publish.fakes import gpu

PAGE: Final = REPOSITORY / "docs/with-other-controllers.md"
SHOWN: Final = {
    shown["kind"]: shown
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for shown in yaml.safe_load_all(block)
}
CAPACITY: Final = set(device(gpu(), Sharing())["capacity"])


def device_classes() -> set[str]:
    """The DeviceClasses of daemonset.yaml."""
    objects = yaml.safe_load_all((REPOSITORY / "daemonset.yaml").read_text())
    return {made["metadata"]["name"] for made in objects if made["kind"] == "DeviceClass"}


def test_kueue_counts_what_is_published() -> None:
    """The source of Kueue's quota is a capacity of our devices, written as there: with the driver's domain it finds none."""
    resources: dict[str, Any] = SHOWN["Configuration"]["resources"]
    (mapping,) = resources["deviceClassMappings"]
    (source,) = mapping["sources"]
    assert source["capacity"]["name"] == names.MEMORY
    assert names.MEMORY in CAPACITY
    assert source["capacity"]["driver"] == names.DRIVER
    assert set(mapping["deviceClassNames"]) == device_classes()


def test_kueue_counts_pods_and_jobs_in_one_quota() -> None:
    """Limits of a Job and claims of a pod are the same resource of the ClusterQueue, in the same unit."""
    resources = SHOWN["Configuration"]["resources"]
    counted = resources["deviceClassMappings"][0]["name"]
    transformed = {entry["input"]: entry for entry in resources["transformations"]}
    assert set(transformed) == {names.GPU_MEMORY, names.GPU_CORES}
    assert {entry["strategy"] for entry in transformed.values()} == {"Replace"}
    memory = transformed[names.GPU_MEMORY]
    assert (memory["multiplyBy"], memory["outputs"]) == (names.GPU_COUNT, {counted: "1Mi"})
    (group,) = SHOWN["ClusterQueue"]["spec"]["resourceGroups"]
    assert group["coveredResources"] == [counted, names.GPU_COUNT]


def test_volcano_queues_name_every_capacity() -> None:
    """A queue that leaves one out refuses every claim of the webhook, which names some always."""
    capability = SHOWN["Queue"]["spec"]["capability"]
    (name,) = device_classes()
    assert set(capability) == {f"deviceclass/{name}", *(f"{each}.deviceclass/{name}" for each in CAPACITY)}


def headings(page: str) -> set[str]:
    """The anchors of a page of docs/."""
    found = re.findall(r"^#+ (.+)$", (PAGE.parent / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_links_of_the_page_lead_somewhere() -> None:
    """Each link within the page, to another page and from one to it leads to a heading that is there."""
    links = [(PAGE.name, target) for target in re.findall(r"\]\(((?!https:)[^)]+)\)", PAGE.read_text())]
    for page in sorted(PAGE.parent.glob("*.md")):
        links += [(page.name, target) for target in re.findall(rf"\]\(({PAGE.name}[^)]*)\)", page.read_text())]
    assert len(links) > 10
    for page_name, target in links:
        to, _, anchor = target.partition("#")
        assert not anchor or anchor in headings(to or page_name), f"{page_name} links to {target}"
        assert not to or (PAGE.parent / to).exists(), f"{page_name} links to {target}"
