"""webhook.trust: what is done about each state, as its table says."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, make
from hami_kubeletplugin.webhook.certificate.rotation_step import (
    MAX_EARLIER,
    Configuration,
    Content,
    Publish,
    Serve,
    Store,
    View,
    bundle,
    next_step,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
HOSTS = frozenset({"hami-webhook.hami-system.svc"})
FRESH, OTHER, FOLLOWING = (make(HOSTS, NOW) for _ in range(3))
OLD = make(HOSTS, NOW - 61 * DAY)
EXPIRED = make(HOSTS, NOW - 91 * DAY)
NAMED = make({"a.example.com"}, NOW)
MADE = make(HOSTS, NOW)


def listing(*pairs: KeyPair) -> tuple[Configuration, ...]:
    """Both configurations, which list these certificates."""
    order = sorted(pairs, key=lambda pair: (pair.certificate.not_after, pair.certificate.fingerprint))
    text = "".join(pair.chain for pair in order).encode()
    return tuple(Configuration(kind, "1", {"a": text, "b": text}) for kind in ("mutating", "validating"))


def step(configurations: tuple[Configuration, ...], content: Content, serving: KeyPair | None, **options: Any) -> Any:
    """The next step; new pairs are `MADE`."""
    return next_step(View(configurations, content, serving, NOW), HOSTS, maker=lambda *_: MADE, **options)


@pytest.mark.parametrize(
    ("content", "serving", "stored"),
    [
        (Content(), None, Content(MADE)),
        (Content(), OTHER, Content(OTHER)),
        (Content(EXPIRED), EXPIRED, Content(MADE)),
        (Content(EXPIRED, FOLLOWING), None, Content(FOLLOWING)),
        (Content(None, FOLLOWING, NOW, ("x",)), OTHER, Content(OTHER, FOLLOWING)),
        (Content(FRESH, None, NOW, ("x",)), FRESH, Content(FRESH, None, NOW)),
        (Content(OLD, EXPIRED, NOW), OLD, Content(OLD, MADE)),
        (Content(OLD, NAMED, NOW), OLD, Content(OLD, MADE)),
        (Content(OLD, None, NOW), OLD, Content(OLD, MADE)),
        (Content(NAMED, None, NOW), NAMED, Content(NAMED, MADE)),
    ],
    ids=["none", "lost", "expired", "late", "damaged", "damaged next", "old next", "unfit next", "due", "unfit"],
)
def test_the_secret_comes_first(content: Content, serving: KeyPair | None, stored: Content) -> None:
    """Missing, damaged, expiring or unfit pairs are replaced, through a next one where there is a current one."""
    done = step(listing(FRESH), content, serving)
    assert isinstance(done, Store)
    assert done.content == stored


def test_trust_comes_before_serving() -> None:
    """Note, publish, note, serve, rest: in this order."""
    told = listing(OLD)
    assert step(told, Content(FRESH, None, NOW), None) == Store(
        Content(FRESH), "the configurations list something else"
    )
    published = step(told, Content(FRESH), None)
    assert isinstance(published, Publish)
    assert published.configurations == told
    assert published.bundle == next(iter(listing(OLD, FRESH)[0].bundles.values()))
    noted = step(listing(FRESH, OLD), Content(FRESH), None)
    assert noted == Store(Content(FRESH, None, NOW), "both configurations trust it")
    assert step(listing(FRESH, OLD), Content(FRESH, None, NOW), None) == Serve(FRESH)
    assert step(listing(FRESH, OLD), Content(FRESH, None, NOW), FRESH) is None


def test_one_webhook_that_differs_is_enough() -> None:
    """Only the configuration that is wrong is written."""
    right, wrong = listing(FRESH)
    wrong = Configuration(wrong.resource, "1", {**wrong.bundles, "b": b""})
    assert step((right, wrong), Content(FRESH), FRESH) == Publish((wrong,), right.bundles["a"])


@pytest.mark.parametrize(("minutes", "due"), [(4, False), (5, True)])
def test_a_next_one_waits_until_all_have_heard_of_it(minutes: int, due: bool) -> None:
    """It becomes current when it has been trusted for 5 minutes, and the bundles stay as they are then."""
    since = NOW - minutes * MINUTE
    done = step(listing(FRESH, FOLLOWING), Content(FRESH, FOLLOWING, since), FRESH)
    assert (isinstance(done, Store) and done.content == Content(FOLLOWING, None, since)) is due
    follower = View(listing(FRESH, FOLLOWING), Content(FOLLOWING, None, since), FRESH, NOW)
    assert bundle(follower) == follower.configurations[0].bundles["a"]
    assert next_step(follower, HOSTS) == (Serve(FOLLOWING) if due else None)


def test_renewal_on_request() -> None:
    """A next pair is made although none is due."""
    told = listing(FRESH)
    assert step(told, Content(FRESH, None, NOW), None, serves=False) is None
    done = step(told, Content(FRESH, None, NOW), None, serves=False, renew=True)
    assert done.content == Content(FRESH, MADE)


def test_configurations_that_are_not_there_hold_up_nothing() -> None:
    """Before they are applied a certificate is made and served."""
    assert step((), Content(FRESH), None) == Store(Content(FRESH, None, NOW), "both configurations trust it")
    assert step((), Content(FRESH, None, NOW), None) == Serve(FRESH)


def test_a_bundle_keeps_what_others_may_serve_and_no_more() -> None:
    """Earlier certificates stay until they expire, at most so many; noise and CAs go."""
    earlier = [make(HOSTS, NOW - n * MINUTE) for n in range(MAX_EARLIER + 3)]
    view = View(listing(*earlier, EXPIRED), Content(OLD), OTHER, NOW)
    text = bundle(view).decode()
    assert [pair.chain in text for pair in earlier] == [True] * MAX_EARLIER + [False] * 3
    assert EXPIRED.chain not in text
    assert OLD.chain in text
    assert OTHER.chain in text


def test_two_versions_with_other_names_agree() -> None:
    """While replicas of two settings run, one certificate gets the names of both; neither replaces it again."""
    mine, theirs = frozenset({"mine"}), frozenset({"theirs"})
    view = View((), Content(make(theirs, NOW), None, NOW), None, NOW)
    done = next_step(view, mine)
    assert isinstance(done, Store)
    assert done.content.next is not None
    assert done.content.next.certificate.hosts == mine | theirs
    for hosts in (mine, theirs):
        after = next_step(View((), done.content, None, NOW), hosts)
        assert isinstance(after, Store)
        assert after.content.next == done.content.next
