"""Claims that a pod has already from the very template that its amounts make. Pure.

`kubectl apply` of converted output over an object that came from Helm, `kubectl create` or server-side apply leaves the amounts
beside the claim: nobody is known to have taken them out. Another claim would be another GPU.
"""

from collections.abc import Iterable, Mapping
from re import escape, fullmatch
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.webhook.conversion.claims import Claim, Sharing, field_path, names_used
from hami_kubeletplugin.webhook.conversion.template import Template

_MADE: Final = rf"{escape(names.TEMPLATE_PREFIX)}[0-9a-f]{{20}}"
"""The name of a template that we made; people give other ones."""


class OtherAmounts(AdmissionError):
    """A container names a claim that was made of other amounts than those beside it."""


class ExistingClaims:
    """The claims of a pod that come from our templates.

    Args:
        spec: The pod's.
        containers: All of its containers.
        where: As for `convert`.

    Raises:
        AdmissionError: `resourceClaims` is no list.
    """

    def __init__(self, spec: Mapping[str, Any], containers: Iterable[Mapping[str, Any]], where: str) -> None:
        entries = fields.checked_sequence(spec.get("resourceClaims"), f"{where}spec.resourceClaims")
        self._where = where
        self.names = [str(entry.get("name")) for _, entry in fields.mappings(entries)]
        """Of all claims, ours or not."""
        self._templates = {
            str(entry.get("name")): template
            for _, entry in fields.mappings(entries)
            if isinstance(template := entry.get("resourceClaimTemplateName"), str) and fullmatch(_MADE, template)
        }
        named = {name for one in containers for name in names_used(one)} if self._templates else set()
        self._unused = {name: template for name, template in self._templates.items() if name not in named}

    def take(self, sharing: Sharing, templates: Iterable[Template]) -> Claim | None:
        """The claim that these containers have already, or that no container names; None if there is none.

        Templates of percentages have other names when kinds of GPUs come and go, which is no reason to refuse a pod: there any of
        ours counts.

        Args:
            sharing: Who needs it.
            templates: What their amounts make; looked at only if there is a claim.

        Raises:
            OtherAmounts: They have one of other amounts.
        """
        own = [name for name in names_used(sharing.owner.container) if name in self._templates]
        if not own and not self._unused:
            return None
        for template in templates:
            for name in (*own, *self._unused):
                if self._templates[name] == template.name:
                    self._unused.pop(name, None)
                    return Claim(name, template, was_there=True)
        if not own:
            return None
        if sharing.demand.is_of_size:
            return Claim(own[0], Template(self._templates[own[0]], {}), was_there=True)
        raise OtherAmounts(
            f"{field_path(sharing.owner.place, self._where)}.resources: names the claim {quoted(own[0])} from the "
            f"ResourceClaimTemplate {self._templates[own[0]]}, and beside it amounts that make another one, so the container "
            "would get the GPUs of both. Take the amounts out, or the claim; where converted output was applied over what Helm "
            "or kubectl create had made, use kubectl replace"
        )


def note(sharing: Sharing, claim: Claim, where: str) -> str:
    """What there is to say about a claim that may be another one than the amounts make now; empty: nothing."""
    if claim.template.spec:
        return ""
    return (
        f"{field_path(sharing.owner.place, where)}.resources: keeps the claim {quoted(claim.name)}, though its percentage makes "
        "another one now: it was another one, or other sizes of GPUs have been published since"
    )
