"""Conformance: models that listen all the time and take their turns themselves (``TurnPolicy.MODEL``).

A commit is no question to them, a question may be answered by listening on, and it is the engine that interrupts. Skipped
for models that are given their turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from duplex_core.audio import pcm16_bytes
from duplex_core.capabilities import TurnPolicy
from duplex_core.commands import InputAudioBufferCommit, OutputAudioBufferClear, ResponseCreate
from duplex_core.config import ServerVad, TurnDetection
from duplex_core.events import (
    InputCommitted,
    OutputAudioDelta,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    ResponseStatus,
    SpeechStarted,
    SpeechStopped,
)
from duplex_core.model import BeginTurn, Interrupted, Respond, SpeechBegan, SpeechDropped, Submit
from duplex_core.patch import SessionPatch
from duplex_core.stages import Lane, StageOutput
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.stages import StageHost
from duplex_core.testing.suite.base import Subject

PATIENCE_MS = 10_000.0
"""So much silence after ``speech()`` is waited for a model to take its turn."""


class Native(Subject):
    """Turns that the model takes."""

    # -- what the tests are made of -----------------------------------------------------------------------------------

    def _open(
        self, host: StageHost, *, detection: TurnDetection | None = None, options: Mapping[str, Any] | None = None
    ) -> ConversationDriver:
        """A session, if the model is of this kind."""
        if self.spec.capabilities(self.deploy()).turn_policy is not TurnPolicy.MODEL:
            pytest.skip("the model is given its turns")
        driver = self.open(host, detection=detection)
        if options is not None:
            self.update(driver, SessionPatch(options=dict(options)))
        return driver

    def _unit_ms(self) -> float:
        if self.unit_ms is None:
            pytest.skip("the model does not tell of each unit that it listens")
        return self.unit_ms

    def _until_it_speaks(self, driver: ConversationDriver) -> None:
        """Speak, fall silent, and go on sending silence until the model has taken its turn and made sound."""
        if not self.takes_turns:
            pytest.skip("the model cannot be relied on to take a turn")
        begun = len(driver.all_of(ResponseCreated))
        driver.stream(self.speech())
        until_ms = driver.now_ms + PATIENCE_MS
        while len(driver.all_of(ResponseCreated)) == begun:
            assert driver.now_ms < until_ms, f"no turn was taken in {PATIENCE_MS:.0f} ms of silence after speech"
            driver.stream(self.quiet(100))
        item = len(driver.all_of(OutputAudioDelta))
        driver.run_until(lambda: len(driver.all_of(OutputAudioDelta)) > item)

    def _well(self, driver: ConversationDriver) -> None:
        """All is well, and each response was asked for or taken, and each unit of audio taken in to its end."""
        driver.settle()
        self.well(driver)
        outputs = [output for told in driver.told for output in told.outputs]
        turns = {asked.fence for asked in driver.heard_by_model(Respond)}
        turns |= {each.fence for each in outputs if isinstance(each, BeginTurn)}
        created = driver.all_of(ResponseCreated)
        assert len(created) == len(turns), f"{len(created)} responses were created in {len(turns)} turns"
        given = [each.request for each in outputs if isinstance(each, Submit)]
        heard = {(each.stage, each.request_id) for each in given if each.lane is Lane.INPUT}
        ended = {(each.stage, each.request_id) for each in driver.heard_by_model(StageOutput) if each.final}
        assert heard <= ended, f"work that understands the user came to no end: {sorted(heard - ended)}"

    # -- listening ----------------------------------------------------------------------------------------------------

    def test_each_unit_is_told_of_once(self, host: StageHost) -> None:
        driver = self._open(host)
        driver.stream(self.quiet(4.5 * self._unit_ms()))
        told = driver.all_of(ResponseListen)
        assert len(told) == 4, f"{len(told)} units of silence were listened to in the time of four and a half"
        assert {event.response_id for event in told} == {None}
        self._well(driver)
        assert not driver.all_of(ResponseCreated), "silence was answered"

    def test_it_takes_a_turn_without_any_commit(self, host: StageHost) -> None:
        driver = self._open(host)
        self._until_it_speaks(driver)
        done = self.answer(driver)
        assert done.response.status is ResponseStatus.COMPLETED
        self._well(driver)
        assert not driver.all_of(InputCommitted)
        assert not driver.heard_by_model(Respond), "nobody asked"

    def test_it_goes_on_when_the_microphone_stops(self, host: StageHost) -> None:
        if not self.takes_turns:
            pytest.skip("the model cannot be relied on to take a turn")
        driver = self._open(host)
        driver.stream(self.speech())
        done = driver.wait_for(ResponseDone)
        assert done.response.status is ResponseStatus.COMPLETED
        assert driver.audio(), "no sound"
        self._well(driver)
        assert not driver.exchange.armed, f"nobody is there, and it still waits: {driver.exchange.armed}"

    # -- commits and questions ----------------------------------------------------------------------------------------

    def test_a_commit_is_no_question(self, host: StageHost) -> None:
        driver = self._open(host)
        driver.stream(self.speech())
        told = len(driver.all_of(ResponseListen))
        driver.send(InputAudioBufferCommit())
        assert len(driver.all_of(InputCommitted)) == 1
        self._well(driver)
        assert not driver.heard_by_model(Respond), "a commit was taken for a question"
        assert len(driver.all_of(ResponseCreated)) <= 1, "one utterance was answered more than once"
        if self.unit_ms is not None:
            answers = len(driver.all_of(ResponseListen)) - told + len(driver.all_of(ResponseCreated))
            assert answers, "the commit was followed by neither listening nor a turn"

    def test_a_commit_of_silence_ends_in_listening(self, host: StageHost) -> None:
        driver = self._open(host)
        unit_ms = self._unit_ms()
        driver.stream(self.quiet(1.5 * unit_ms))
        told, committed_ms = len(driver.all_of(ResponseListen)), driver.now_ms
        driver.send(InputAudioBufferCommit())
        driver.wait_for(ResponseListen, count=told + 1)
        assert driver.now_ms < committed_ms + unit_ms / 2, "the unit was left to fill up; a commit is to use it now"
        self._well(driver)
        assert {event.response_id for event in driver.all_of(ResponseListen)} == {None}
        assert not driver.all_of(ResponseCreated)

    def test_a_question_about_nothing_ends_once(self, host: StageHost) -> None:
        driver = self._open(host)
        driver.send(ResponseCreate())
        done = self.answer(driver)
        assert done.response.status is ResponseStatus.COMPLETED
        self._well(driver)
        assert len(driver.all_of(ResponseDone)) == len(driver.all_of(ResponseCreated)) == 1
        if not done.response.output:
            ends = [event for event in driver.all_of(ResponseListen) if event.response_id == done.response.id]
            assert len(ends) == 1, "an answer without output is told of by listening, once"
        self.still_works(driver)

    def test_a_question_is_answered_once(self, host: StageHost) -> None:
        driver = self._open(host)
        self.say(driver)
        done = self.answer(driver)
        assert done.response.output, "the response that was opened for the model was not the one that it filled"
        self._well(driver)
        assert len(driver.heard_by_model(Respond)) == len(driver.all_of(ResponseCreated)) == 1

    def test_what_it_is_made_to_listen_to_is_not_answered(self, host: StageHost) -> None:
        if self.listens_first is None:
            pytest.skip("the model cannot be made to listen first")
        driver = self._open(host, options=self.listens_first)
        half = pcm16_bytes(self._unit_ms() / 2, self.input_rate_hz())
        driver.stream(self.speech()[:half])
        driver.send(InputAudioBufferCommit(response_create=True))
        done = self.answer(driver)
        assert done.response.status is ResponseStatus.COMPLETED
        assert not done.response.output, "a unit that was to be listened to was answered"
        assert driver.all_of(ResponseListen)[-1].response_id == done.response.id
        self._well(driver)
        self.still_works(driver)

    # -- interruption -------------------------------------------------------------------------------------------------

    def test_the_detector_interrupts_and_never_commits(self, host: StageHost) -> None:
        driver = self._open(host, detection=ServerVad())
        driver.stream(self.quiet(400))
        self._until_it_speaks(driver)
        driver.stream(self.other_speech() + self.quiet(1200))
        first = driver.wait_for(ResponseDone)
        assert first.response.status is ResponseStatus.CANCELLED
        assert len(driver.heard_by_model(Interrupted)) == 1
        self._well(driver)
        assert not driver.all_of(InputCommitted), "the detector committed for the model"
        assert not driver.heard_by_model(Respond), "the detector asked for an answer"
        began = [each.item_id for each in driver.heard_by_model(SpeechBegan)]
        assert len(began) == 2
        assert began == [each.item_id for each in driver.heard_by_model(SpeechDropped)]
        assert len(driver.all_of(SpeechStarted)) == len(driver.all_of(SpeechStopped)) == 2

    def test_after_an_interruption_it_listens_on(self, host: StageHost) -> None:
        driver = self._open(host)
        self._until_it_speaks(driver)
        driver.run_until(lambda: any(each.lane is Lane.INPUT for each in driver.exchange.open_requests))
        under_way = [each for each in driver.exchange.open_requests if each.lane is Lane.INPUT]
        driver.send(OutputAudioBufferClear())
        assert [each for each in driver.exchange.open_requests if each.lane is Lane.INPUT] == under_way, (
            "an interruption stops what makes the answer, not what understands the user"
        )
        fence = len(driver.events)
        self._until_it_speaks(driver)
        between = driver.events[fence:]
        if self.unit_ms is not None:
            first = next(event for event in between if isinstance(event, ResponseListen | ResponseCreated))
            assert isinstance(first, ResponseListen), "the unit after an interruption is to be listened to"
        done = self.answer(driver)
        assert (done.response.status, done.epoch) == (ResponseStatus.COMPLETED, 1)
        self._well(driver)
        assert driver.all_of(ResponseDone)[0].response.status is ResponseStatus.CANCELLED
