"""Conformance: interruption. At every point of an answer it can be stopped, and what was not heard was not said."""

from __future__ import annotations

import pytest

from duplex_core.commands import BargeIn, Command, ConversationItemTruncate, OutputAudioBufferClear, ResponseCancel
from duplex_core.config import ServerVad
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    ErrorEvent,
    ItemTruncated,
    OutputAudioDelta,
    OutputBufferCleared,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
)
from duplex_core.items import Item, MessageItem, Role, item_text
from duplex_core.model import Interrupted, Respond
from duplex_core.stages import Lane, StageRequest
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.invariants import MADE
from duplex_core.testing.stages import StageHost
from duplex_core.testing.suite.base import Subject

MAX_SPEECH_POINTS = 8
"""Interruptions by speech take time themselves, so they are tried at fewer points."""


class Interruption(Subject):
    """Interruption at every point."""

    @pytest.mark.parametrize("kind", [OutputAudioBufferClear, BargeIn, ResponseCancel])
    def test_it_can_be_stopped_at_every_point(
        self, host: StageHost, kind: type[OutputAudioBufferClear | BargeIn | ResponseCancel]
    ) -> None:
        for steps in self.points(host):
            driver = self.at_point(host, steps)
            if kind is ResponseCancel and driver.all_of(ResponseDone):
                continue  # nothing is being made any more: there is nothing to cancel
            self._stop(driver, kind())
            self.still_works(driver)

    def _stop(self, driver: ConversationDriver, command: Command) -> None:
        """Stop the answer: it ends once, nothing of it comes after, and the model is told."""
        was_made = bool(driver.all_of(ResponseDone))
        driver.send(command)
        fence = len(driver.events)
        assert not driver.all_of(ErrorEvent), driver.all_of(ErrorEvent)
        assert driver.all_of(OutputBufferCleared), "the client was not told to stop playing"
        driver.settle()
        late = [event for event in driver.events[fence:] if isinstance(event, MADE)]
        assert not late, f"{len(late)} pieces of the old answer came after it was stopped"
        assert len(driver.heard_by_model(Interrupted)) == 1
        assert not [each for each in driver.exchange.open_requests if each.lane is Lane.OUTPUT]
        done = driver.all_of(ResponseDone)
        assert len(done) == 1
        if not was_made:
            assert done[0].response.status is ResponseStatus.CANCELLED

    def test_speech_stops_it(self, host: StageHost) -> None:
        points = self.points(host)
        for steps in points[:: -(-len(points) // MAX_SPEECH_POINTS)]:
            driver = self._talking(host, steps)
            driver.stream(self.other_speech() + self.quiet(1200))
            done = driver.wait_for(ResponseDone, count=2)
            assert driver.heard_by_model(Interrupted), "the model was not told"
            first, second = driver.all_of(ResponseDone)[:2]
            assert second.epoch > first.epoch
            assert done.response.status is ResponseStatus.COMPLETED
            driver.settle()
            self.well(driver)

    def _talking(self, host: StageHost, steps: int) -> ConversationDriver:
        driver = self.open(host, detection=ServerVad())
        driver.stream(self.quiet(400) + self.speech())
        while not driver.all_of(ResponseCreated):
            driver.stream(self.quiet(100))
        for _ in range(steps):
            if driver.all_of(ResponseDone):
                break
            driver.step()
        return driver

    def test_what_was_not_heard_is_not_history(self, host: StageHost) -> None:
        driver = self.open(host)
        self.say(driver)
        done = self.answer(driver)
        whole = item_text(done.response.output[0])
        item_id = done.response.output[0].id or ""
        made_ms = sum(event.metadata.audio_duration_ms for event in driver.all_of(OutputAudioDelta))
        driver.send(ConversationItemTruncate(item_id=item_id, content_index=0, audio_end_ms=int(made_ms / 2)))
        assert driver.wait_for(ItemTruncated).item_id == item_id
        self.still_works(driver)
        kept = self._said(driver.heard_by_model(Respond)[-1].history, item_id)
        assert whole.startswith(kept), f"{kept!r} is no beginning of {whole!r}"
        assert len(kept) < len(whole), "half of the answer was not heard, and the model is told all of it"

    def test_an_answer_that_was_not_heard_at_all_was_not_said(self, host: StageHost) -> None:
        driver = self.open(host)
        self.say(driver)
        driver.run_until(lambda: bool(driver.all_of(OutputAudioDelta)))
        item_id = driver.all_of(OutputAudioDelta)[0].item_id
        driver.send(ConversationItemTruncate(item_id=item_id, content_index=0, audio_end_ms=0))
        self.still_works(driver)
        assert self._said(driver.heard_by_model(Respond)[-1].history, item_id) == ""

    @staticmethod
    def _said(history: tuple[Item, ...], item_id: str) -> str:
        """What the model is told that it said in an item."""
        mine = [item for item in history if isinstance(item, MessageItem) and item.role is Role.ASSISTANT]
        return "".join(item_text(item) for item in mine if item.id == item_id)

    def test_a_failing_stage_fails_the_answer_alone(self, host: StageHost) -> None:
        if not self.spec.stage_plan(self.checkpoint(), self.deploy()).stages:
            pytest.skip("the model has no stages")
        driver = self.open(host)
        self.say(driver)
        driver.run_until(lambda: self._work_for_the_answer(driver) is not None)
        request = self._work_for_the_answer(driver)
        assert request is not None
        cause = error(ErrorCode.ENGINE_ERROR, "the test broke this request")
        driver.reply(request.failed(cause))
        done = self.answer(driver)
        assert done.response.status is ResponseStatus.FAILED
        self.still_works(driver)

    @staticmethod
    def _work_for_the_answer(driver: ConversationDriver) -> StageRequest | None:
        """A request whose failure is the answer's: one of its lane, or the one that decides on the question."""
        asked = driver.heard_by_model(Respond)
        for request in driver.exchange.open_requests:
            if request.lane is Lane.OUTPUT or (asked and request.fence == asked[-1].fence):
                return request
        return None

    def test_a_worker_stops_soon_after_it_is_told_to(self, host: StageHost) -> None:
        driver = self.open(host)
        self.say(driver)
        self.answer(driver)
        longest = {each.request.stage: each for each in sorted(host.worked, key=lambda each: each.pieces)}
        for stage, worked in longest.items():
            worker = host.worker(stage)
            if worker is None:
                continue  # a step of a batch cannot be stopped: it is the runtime that stops between two
            emitted: list[object] = []
            worker.run(worked.request.payload, emitted.append, lambda seen=emitted: len(seen) > 0)  # type: ignore[misc]
            assert len(emitted) <= 2, f"{stage} went on for {len(emitted) - 1} pieces after it was told to stop"
