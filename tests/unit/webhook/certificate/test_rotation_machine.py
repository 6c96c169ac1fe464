"""Certificates of several replicas, interleaved request by request: none ever serves what isn't trusted."""

import asyncio
from datetime import datetime, timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair
from hami_kubeletplugin.webhook.certificate.rotation_step import SETTLE, Content, usable
from tests.unit.webhook.certificate.world import THEIRS, Replica, World

MINUTE = timedelta(minutes=1)
HOSTS = ("", "hami.example.com", "10.0.0.1,hami.example.com", "other.example.com")


class Certificates(RuleBasedStateMachine):
    """Replicas start, stop anywhere and lose requests, the time passes, people break the Secret or overwrite caBundle."""

    replicas = Bundle("replicas")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World()
        self.running: list[Replica] = []
        self.backups: list[dict[str, str]] = []
        self.listed: dict[str, datetime] = {}
        self.served: dict[Replica, KeyPair | None] = {}
        self.stored = Content()
        self.seen: object = None

    @initialize(target=replicas)
    def webhook_runs(self) -> object:
        """Two replicas run."""
        self.running = [Replica(self.world, self.loop) for _ in range(2)]
        self._round()
        return multiple(*self.running)

    @rule(target=replicas, hosts=st.sampled_from(HOSTS))
    def start(self, hosts: str) -> Replica:
        """A replica starts; after a change of the settings with other names than the others."""
        replica = Replica(self.world, self.loop, hosts)
        self.running.append(replica)
        replica.step()
        return replica

    @rule(replica=consumes(replicas))
    def kill(self, replica: Replica) -> None:
        """A replica dies, perhaps between two requests."""
        replica.kill()
        self.running.remove(replica)

    @rule(replica=replicas, steps=st.sampled_from([1, 2, 5, 8, 20, 60, 200]), lost=st.booleans())
    def go_on(self, replica: Replica, steps: int, lost: bool) -> None:
        """A replica gets through some requests; the last, or only its answer, may get lost."""
        for step in range(steps):
            replica.step(lost=lost and step == steps - 1)
            self._look()

    @rule(
        time=st.sampled_from(
            [MINUTE, 3 * MINUTE, 6 * MINUTE, timedelta(days=1), timedelta(days=29), timedelta(days=61)]
        )
    )
    def wait(self, time: timedelta) -> None:
        """Time passes, and whoever is in the middle of something stays there."""
        self.world.now += time

    @rule()
    def all_go_on(self) -> None:
        """A minute in which every replica looks."""
        self._round()

    @rule(kind=st.sampled_from(["gone", "empty", "no key", "other key", "next", "noise", "backup"]))
    def break_secret(self, kind: str) -> None:
        """Somebody does something to the Secret."""
        self._look()
        self.stored = Content()
        data = dict((self.world.secret or {}).get("data") or {})
        noise = "bm9pc2U="
        match kind:
            case "gone":
                self.world.put_data(None)
                return
            case "empty":
                data = {}
            case "no key":
                data.pop("tls.key", None)
            case "other key":
                data["tls.key"] = data.get("next.key", noise)
            case "next":
                data["next.crt"] = noise
            case "noise":
                data["tls.crt"] = noise
            case _:
                self.backups.append(data)
                data = self.backups[len(self.backups) // 2]
        self.world.put_data(data)

    @rule()
    def overwrite_bundles(self) -> None:
        """Somebody puts the manifest over both configurations; a minute after the looks that go on all is right again."""
        self.world.wipe()
        for _ in range(2):  # who is in the middle of a look may notice in the next one only
            self._round(overwritten=True)
        self.seen = None
        self._look()

    @invariant()
    def others_are_left_alone(self) -> None:
        """Whatever happens: an entry of the same objects that isn't ours is as its owner left it."""
        assert all(THEIRS in found["webhooks"] for found in self.world.configurations())

    @invariant()
    def what_is_served_is_trusted(self) -> None:
        """At every moment both configurations trust every replica's certificate, unless that has expired."""
        self._look()

    def teardown(self) -> None:
        """In the end all is in order, with a certificate that lasts, and nobody writes any more."""
        try:
            self._in_order()
        finally:
            for replica in self.running:
                replica.kill()
            self.loop.close()

    def _in_order(self) -> None:
        for replica in self.running[3:]:
            replica.kill()
        self.running = self.running[:3] or [Replica(self.world, self.loop)]
        for _ in range(15):
            self._round()
        before = self.world.writes
        self._round()
        content = self.world.content
        assert self.world.writes == before
        assert content.current is not None
        assert content.next is None
        assert not content.damage
        assert content.current.certificate.not_after - self.world.now > timedelta(days=29)
        for replica in self.running:
            assert replica.rotation.serving == content.current
            assert replica.rotation._hosts <= content.current.certificate.hosts
        assert len(set(self.world.bundles())) == 1

    def _round(self, *, overwritten: bool = False) -> None:
        self.world.now += MINUTE
        woken = False
        for _ in range(400):
            for replica in self.running:
                if not replica.asleep or not woken:
                    replica.step()
                    self._look(overwritten=overwritten)
            woken = True
            if all(replica.asleep for replica in self.running):
                break
        else:
            raise AssertionError("the replicas don't come to rest")

    def _look(self, *, overwritten: bool = False) -> None:
        now = self.world.now
        state = (now, self.world.store.version, [replica.rotation.serving for replica in self.running])
        if state == self.seen:
            return
        self.seen = state
        texts = self.world.bundles()
        for replica in self.running:
            serving, before = replica.rotation.serving, self.served.get(replica)
            assert serving is None or not usable(serving, now) or overwritten or self.world.trusted(serving)
            if serving is not None and serving != before and usable(before, now) and not overwritten:
                self._all_have_heard_of(serving)
            self.served[replica] = serving
        stored = self.world.content
        if stored.current is not None and stored.current == self.stored.next and usable(self.stored.current, now):
            self._all_have_heard_of(stored.current)
        self.stored = stored
        blocks = [set(text.split("-----BEGIN CERTIFICATE-----\n")[1:]) for text in texts]
        in_all = {f"-----BEGIN CERTIFICATE-----\n{block}" for block in set.intersection(*blocks)}
        self.listed = {pem: self.listed.get(pem, now) for pem in in_all}

    def _all_have_heard_of(self, pair: KeyPair) -> None:
        since = self.listed.get(pair.certificate.pem, self.world.now)
        assert self.world.now - since >= SETTLE - timedelta(seconds=1), "some API server may not have heard of it"


TestCertificates = Certificates.TestCase
TestCertificates.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
