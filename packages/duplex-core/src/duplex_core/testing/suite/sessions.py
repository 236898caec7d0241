"""Conformance: sessions. They open and close cleanly at any point, share nothing, refuse bad options, and load lightly."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

from duplex_core.commands import SessionClose, SessionUpdate
from duplex_core.errors import ErrorType
from duplex_core.events import CloseReason, ErrorEvent, ResponseDone, SessionClosed, SessionCreated, SessionUpdated
from duplex_core.machine.io import CloseRequested
from duplex_core.model import Closed, Configured
from duplex_core.patch import SessionPatch
from duplex_core.testing import invariants
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.stages import StageHost
from duplex_core.testing.suite.base import Subject

PROBE = textwrap.dedent(
    """
    import importlib, json, sys

    import pluggy

    from duplex_core import hookspecs

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(importlib.import_module(sys.argv[1]))
    specs = [spec for found in manager.hook.duplex_register_models() for spec in found]
    for spec in specs:
        spec.capabilities(spec.deploy_model())
        spec.session_config(spec.deploy_model())
    print(json.dumps({"ids": [spec.id for spec in specs], "loaded": sorted({name.split(".")[0] for name in sys.modules})}))
    """
)
"""Loads a plugin as the server does and tells which models it offers and what was imported on the way."""


class Sessions(Subject):
    """Sessions as a whole."""

    def test_a_session_opens_speaks_and_closes(self, host: StageHost) -> None:
        driver = self.open(host)
        assert isinstance(driver.events[0], SessionCreated)
        self.say(driver)
        self.answer(driver)
        assert isinstance(driver.told[0].event, Configured), "the configuration is the first thing that a session hears"
        self._close(driver)

    def test_it_can_be_closed_at_every_point(self, host: StageHost) -> None:
        for steps in self.points(host):
            driver = self.at_point(host, steps)
            self._close(driver)

    def test_it_can_be_ended_by_the_server_at_any_point(self, host: StageHost) -> None:
        for steps in self.points(host)[::3]:
            driver = self.at_point(host, steps)
            driver.give(CloseRequested(reason=CloseReason.SHUTDOWN))
            self._ended(driver, CloseReason.SHUTDOWN)

    def _close(self, driver: ConversationDriver) -> None:
        driver.send(SessionClose(), SessionClose())
        self._ended(driver, CloseReason.CLIENT)

    def _ended(self, driver: ConversationDriver, reason: CloseReason) -> None:
        """The session is over, with everything given back."""
        driver.settle()
        last = driver.events[-1]
        assert isinstance(last, SessionClosed)
        assert last.reason is reason
        assert driver.released
        assert isinstance(driver.told[-1].event, Closed)
        assert len(driver.heard_by_model(Closed)) == 1
        assert not driver.exchange.armed, f"timers were left behind: {driver.exchange.armed}"
        assert not driver.all_of(ErrorEvent)
        self.well(driver)

    def test_sessions_share_nothing(self, host: StageHost) -> None:
        first, second = self.speech(), self.other_speech()
        alone = [self._conversation(host, "sess_a", first), self._conversation(host, "sess_b", second)]
        together = [self.open(host, session_id="sess_a"), self.open(host, session_id="sess_b")]
        for driver, pcm in zip(together, (first, second), strict=True):
            self.say(driver, pcm)
        while not all(driver.all_of(ResponseDone) for driver in together):
            for driver in together:
                if not driver.all_of(ResponseDone):
                    driver.step()
        for before, driver in zip(alone, together, strict=True):
            driver.settle()
            assert self.comparable(driver.events) == self.comparable(before.events), (
                "a conversation went differently because another one was going on"
            )

    def _conversation(self, host: StageHost, session_id: str, pcm: bytes) -> ConversationDriver:
        driver = self.open(host, session_id=session_id)
        self.say(driver, pcm)
        self.answer(driver)
        driver.settle()
        return driver

    def test_bad_options_are_refused_by_name_and_change_nothing(self, host: StageHost) -> None:
        driver = self.open(host)
        self.update(driver, SessionPatch())
        before = driver.wait_for(SessionUpdated).session
        for name, value in self.bad_options.items():
            patch = SessionPatch(options={name: value}, max_output_tokens=7)
            driver.send(SessionUpdate(session=patch, event_id=f"bad-{name}"))
            refusals = driver.all_of(ErrorEvent)
            assert refusals, f"the option {name}={value!r} was not refused"
            refusal = refusals[-1].error
            assert refusal.event_id == f"bad-{name}"
            assert refusal.type is ErrorType.INVALID_REQUEST
            assert name in (refusal.param or ""), f"the refusal of {name} names {refusal.param}"
        assert len(driver.all_of(ErrorEvent)) == len(self.bad_options)
        assert len(driver.all_of(SessionUpdated)) == 1
        self.update(driver, SessionPatch())
        assert driver.wait_for(SessionUpdated, count=2).session == before
        self.still_works(driver)
        invariants.check(driver.events)

    def test_the_plugin_is_light(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", PROBE, self.plugin], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert self.spec.id in found["ids"], f"{self.plugin} registers {found['ids']}"
        heavy = self.heavy & set(found["loaded"])
        assert not heavy, f"loading {self.plugin} imports {sorted(heavy)}; import them in the stage's factory"
