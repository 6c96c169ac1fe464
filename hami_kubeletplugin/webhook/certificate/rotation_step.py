"""Which certificate is served, which ones the API server trusts, and how one follows another. Pure.

The Secret has the `current` pair and sometimes the `next` one; both webhook configurations list the certificates that the API
server trusts. `next_step` says what to do about what is there; each replica asks it again and again, so nobody leads and any
of them may stop anywhere. The first line that fits counts:

    what is there                                          what to do
    current missing, damaged or expired                    store: our served pair, else next, else a new one becomes current
    next damaged                                           store: without it
    next expired, or lacks names that the settings have    store: a new next
    current nears its end, or lacks names; no next         store: a new next
    a configuration does not list what it should           store: nothing is known to be trusted; then publish
    both list it, since when isn't noted                   store: since now
    we serve nothing that is valid                         serve current
    we serve another one than current; settled             serve current
    there is a next; settled                               store: next becomes current
    else                                                   rest

Settled: both have listed it for `SETTLE`. API servers hear of changes through watches, each at its own time.

So that no request meets a certificate that isn't trusted, a bundle keeps every certificate in it, CAs aside, until that expires:
another replica may still serve it. A configuration that does not exist trusts whatever we serve, as nothing calls us by it.
"""

import base64
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from hami_kubeletplugin.webhook.certificate.key_pair import Certificate, KeyPair, make, read_certificates

RENEW_BEFORE: Final = timedelta(days=30)
SETTLE: Final = timedelta(minutes=5)
MAX_EARLIER: Final = 8
"""Earlier certificates in a bundle; more come about only by renewing by hand over and over."""
MAX_HOSTS: Final = 64
"""Names up to which a certificate made early has those of the one before too."""

Maker = Callable[[Collection[str], datetime], KeyPair]


@dataclass(frozen=True, slots=True)
class Content:
    """What is in the Secret.

    Attributes:
        current: The pair to serve.
        next: The one to serve when it is trusted.
        trusted_since: Both configurations have had all that they should have since then.
        damage: What can't be used in it.
    """

    current: KeyPair | None = None
    next: KeyPair | None = None
    trusted_since: datetime | None = None
    damage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Configuration:
    """A webhook configuration that exists.

    Attributes:
        resource: Its kind, as in API paths.
        version: Its resource version.
        bundles: Name of each webhook of ours in it -> its caBundle, PEM.
    """

    resource: str
    version: str
    bundles: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class View:
    """What a replica sees."""

    configurations: tuple[Configuration, ...]
    content: Content
    serving: KeyPair | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Store:
    """Write the Secret, if nobody else did."""

    content: Content
    why: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Write the bundle into these configurations, if nobody else wrote them."""

    configurations: tuple[Configuration, ...]
    bundle: bytes


@dataclass(frozen=True, slots=True)
class Serve:
    """Use the pair for new connections."""

    pair: KeyPair


Step = Store | Publish | Serve


def next_step(
    view: View, hosts: Collection[str], *, serves: bool = True, renew: bool = False, maker: Maker = make
) -> Step | None:
    """What to do now, or None: all is right.

    Steps have to be conditional on the resource versions that were seen. A bundle is made from the ones that it replaces, so what
    another replica put there is never lost, however old the Secret is that we saw.

    Args:
        view: What is there.
        hosts: The names and addresses that the certificate must have.
        serves: We are a webhook, not somebody at a terminal.
        renew: Make a next pair although none is due.
        maker: Makes pairs.
    """
    return (
        _mended(view, hosts, maker)
        or _rotated(view, hosts, renew, maker)
        or _published(view)
        or (_served(view) if serves else None)
        or _promoted(view)
    )


def bundle(view: View) -> bytes:
    """What every caBundle should have, PEM; independent of which certificate has which role."""
    listed = {pair.certificate for pair in (view.content.current, view.content.next, view.serving) if pair is not None}
    earlier = {
        certificate
        for configuration in view.configurations
        for text in configuration.bundles.values()
        for certificate in read_certificates(text)
        if not certificate.authority
    } - listed
    kept = sorted(_valid(listed | earlier, view.now), key=lambda each: (each in listed, *_order(each)))
    kept = kept[-(len(listed) + MAX_EARLIER) :]
    return "".join(certificate.pem for certificate in sorted(kept, key=_order)).encode()


def usable(pair: KeyPair | None, now: datetime) -> bool:
    """Whether there is a pair, and clients take it."""
    return pair is not None and pair.certificate.valid(now)


def settled(content: Content, now: datetime) -> bool:
    """Whether every API server has heard of all that the configurations list."""
    return content.trusted_since is not None and now - content.trusted_since >= SETTLE


def encoded(text: bytes) -> str:
    """A caBundle as JSON has it."""
    return base64.b64encode(text).decode()


def _mended(view: View, hosts: Collection[str], maker: Maker) -> Store | None:
    content, now = view.content, view.now
    kept_next = content.next if usable(content.next, now) else None
    if usable(content.current, now):
        return Store(replace(content, damage=()), "the next one is damaged") if content.damage else None
    why = "; ".join(content.damage) or ("it has expired" if content.current else "there is none")
    if usable(view.serving, now):
        return Store(Content(view.serving, kept_next), f"{why}; the one that is served is put back")
    return Store(Content(kept_next or maker(hosts, now)), why)


def _rotated(view: View, hosts: Collection[str], renew: bool, maker: Maker) -> Store | None:
    content, now, wanted = view.content, view.now, frozenset(hosts)
    current = content.current
    if current is None:
        return None
    if content.next is not None:
        named = content.next.certificate.hosts
        if not usable(content.next, now):
            names, why = wanted, "the next one has expired"
        elif not wanted <= named:
            # Replicas of two versions with other names each: a certificate with all of them suits both.
            names, why = _joined(wanted, named), "the next one lacks names"
        else:
            return None
    elif now >= current.certificate.not_after - RENEW_BEFORE:
        names, why = wanted, "the current one nears its end"
    elif not wanted <= current.certificate.hosts:
        names, why = _joined(wanted, current.certificate.hosts), "the current one lacks names"
    elif renew:
        names, why = wanted, "somebody asked for it"
    else:
        return None
    return Store(replace(content, next=maker(names, now), trusted_since=None), why)


def _published(view: View) -> Step | None:
    wanted, content = bundle(view), view.content
    differing = tuple(
        configuration
        for configuration in view.configurations
        if any(text != wanted for text in configuration.bundles.values())
    )
    if differing and content.trusted_since is not None:
        # First: if we stop after publishing, the time of the bundle before must not count for this one.
        return Store(replace(content, trusted_since=None), "the configurations list something else")
    if differing:
        return Publish(differing, wanted)
    if content.trusted_since is None or content.trusted_since > view.now + SETTLE:
        return Store(replace(content, trusted_since=view.now), "both configurations trust it")
    return None


def _served(view: View) -> Serve | None:
    current, serving = view.content.current, view.serving
    if current is None or current == serving:
        return None
    return Serve(current) if settled(view.content, view.now) or not usable(serving, view.now) else None


def _promoted(view: View) -> Store | None:
    content = view.content
    if content.next is None or not settled(content, view.now):
        return None
    return Store(replace(content, current=content.next, next=None), "the next one is trusted by now")


def _joined(wanted: frozenset[str], before: frozenset[str]) -> frozenset[str]:
    return wanted | before if len(wanted | before) <= MAX_HOSTS else wanted


def _valid(certificates: Iterable[Certificate], now: datetime) -> list[Certificate]:
    return [certificate for certificate in certificates if certificate.valid(now)]


def _order(certificate: Certificate) -> tuple[datetime, str]:
    return certificate.not_after, certificate.fingerprint
