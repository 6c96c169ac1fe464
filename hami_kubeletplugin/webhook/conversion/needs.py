"""The templates that the containers of a pod need. Pure."""

from collections.abc import Iterator, Sequence

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.annotations import Selection
from hami_kubeletplugin.webhook.conversion.bounds import check_needs, check_size
from hami_kubeletplugin.webhook.conversion.claims import Sharing, field_path
from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.template import SizeLookup, Template, template


class Needs:
    """One template for each different need.

    Args:
        sharings: Who needs something.
        chosen: What the pod's annotations say.
        rules: Names and defaults.
        sizes: As for `convert`.
        where: As for `convert`.

    Raises:
        AdmissionError: There are too many, or they are too long, or one can't be made; names the container.
    """

    def __init__(
        self, sharings: Sequence[Sharing], chosen: Selection, rules: Conversion, sizes: SizeLookup, where: str
    ) -> None:
        self._chosen, self._rules, self._sizes = chosen, rules, sizes
        first: dict[Demand, Sharing] = {}
        for sharing in sharings:
            first.setdefault(sharing.demand, sharing)
        check_needs(first, rules, where)
        self._made: dict[Demand, Template] = {}
        self._elsewhere: dict[Demand, tuple[Template, ...]] = {}
        self._bytes_left = rules.max_pod_template_bytes
        total = 0
        for demand, sharing in first.items():
            try:
                self._made[demand] = self._template(demand, rules)
            except AdmissionError as error:
                asking = next((user for user in sharing.users if user.demand.is_of_size), sharing.owner)
                raise AdmissionError(f"{field_path(asking.place, where)}: {error}") from None
            total += self._made[demand].size
            check_size(total, rules, where)

    def template(self, demand: Demand) -> Template:
        """The one for this need."""
        return self._made[demand]

    def alike(self, demand: Demand) -> Iterator[Template]:
        """That one, and as it is on other versions of Kubernetes: claims live through an upgrade, or back, or are of 0.1.0."""
        yield self._made[demand]
        if demand not in self._elsewhere:
            self._elsewhere[demand] = tuple(self._other_versions(demand))
        yield from self._elsewhere[demand]

    def _other_versions(self, demand: Demand) -> Iterator[Template]:
        """Of as many bytes as a pod's templates may have; with more the pod was refused there."""
        for version in ("", "1.35"):
            rules = self._rules.model_copy(update={"kubernetes": version})
            if rules.separate_requests != self._rules.separate_requests and self._bytes_left > 0:
                made = self._template(demand, rules)
                self._bytes_left -= made.size
                yield made

    def _template(self, demand: Demand, rules: Conversion) -> Template:
        return template(demand, self._chosen, rules, self._sizes() if demand.is_of_size else ())
