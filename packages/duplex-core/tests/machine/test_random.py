"""Random conversations: commands, verdicts, decisions fresh and stale, timers and closes, in any order.

What must hold after each step and at the end stands in :meth:`Conversation._after` and :meth:`Conversation.teardown`. The
same conversations are drawn everywhere (:mod:`tests.support.drawing`); for a longer run raise
``DUPLEX_RANDOM_CONVERSATIONS``, the number of conversations.
"""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import UNSET, UnsetType

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.capabilities import TurnPolicy
from duplex_core.config import (
    Eagerness,
    FunctionTool,
    Modality,
    OverlapMode,
    OverlapSettings,
    SemanticVad,
    ServerVad,
    ToolFunction,
    TurnDetection,
)
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    CloseReason,
    ErrorEvent,
    ItemTruncated,
    OutputAudioDelta,
    OutputItemAdded,
    OutputTextDelta,
    OutputTranscriptDelta,
    PlaybackAcknowledged,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
)
from duplex_core.fence import Fence
from duplex_core.items import FunctionCallItem, FunctionCallOutputItem, MessageItem, Role, item_text
from duplex_core.ledger import CommitPolicy, PlaybackLedger
from duplex_core.machine.io import (
    CloseRequested,
    EndOfTurnVerdict,
    JudgeEndOfTurn,
    MachineInput,
    SlotReleased,
    SpeechFrames,
    Step,
    TimerFired,
)
from duplex_core.machine.table import Answer, Hearing, Life, Sound
from duplex_core.patch import (
    AudioPatch,
    InputPatch,
    ItemReference,
    PlaybackPatch,
    ResponseParams,
    SessionPatch,
)
from duplex_core.testing import invariants
from tests.support.machines import FRAME_MS, Bench, kinds, said, same_audio, snapshot, told

CONVERSATIONS = int(os.environ.get("DUPLEX_RANDOM_CONVERSATIONS", "350"))
BROKEN = error(ErrorCode.ENGINE_ERROR, "a stage broke")
WORDS = ("One two ", "three.", "Four\nfive ", "", "六七八。")
detections: st.SearchStrategy[TurnDetection | None] = st.one_of(
    st.none(),
    st.builds(
        ServerVad,
        silence_duration_ms=st.sampled_from([64, 200, 500]),
        prefix_padding_ms=st.sampled_from([0, 300, 2000]),
        create_response=st.booleans(),
        interrupt_response=st.booleans(),
        idle_timeout_ms=st.sampled_from([None, 1000, 4000]),
    ),
    st.builds(
        SemanticVad,
        eagerness=st.sampled_from(Eagerness),
        create_response=st.booleans(),
        interrupt_response=st.booleans(),
    ),
)
times = st.floats(0.0, 3000.0)
indices = st.integers(0, 7)


class Recorded(Bench):
    """A bench that writes down what went in, to play it to another machine."""

    def __init__(self, **fields: Any) -> None:
        self.given: list[tuple[MachineInput, float, Step]] = []
        self.fields = fields
        super().__init__(**fields)

    def do(self, *inputs: MachineInput) -> Step:
        (given,) = inputs
        step = super().do(given)
        self.given.append((given, self.now_ms, step))
        return step


class Conversation(RuleBasedStateMachine):
    """One random conversation."""

    bench: Recorded

    @initialize(
        vad=detections,
        policy=st.sampled_from(TurnPolicy),
        commit_policy=st.sampled_from(CommitPolicy),
        modality=st.sampled_from(Modality),
        overlap=st.sampled_from(OverlapMode),
    )
    def begin(
        self,
        vad: TurnDetection | None,
        policy: TurnPolicy,
        commit_policy: CommitPolicy,
        modality: Modality,
        overlap: OverlapMode,
    ) -> None:
        self.bench = Recorded(
            vad=vad,
            overlap=OverlapSettings(mode=overlap),
            commit_policy=commit_policy,
            modality=modality,
            capabilities={"turn_policy": policy, "tools": True, "input_transcription": True, "semantic_vad": True},
        )
        self.fences: list[Fence] = [self.bench.fence]
        self.model_fence: Fence | None = None
        self.made: dict[str, str] = {}
        self.cut: dict[str, str] = {}
        self.ledgers: dict[str, PlaybackLedger] = {}
        self.committed_ms = 0.0
        self.calls = 0

    # -- what goes in -------------------------------------------------------------------------------------------------

    def give(self, given: MachineInput) -> Step:
        """Give one input and look at everything."""
        bench = self.bench
        playback = bench.machine._core.playback
        due_ms = playback.due_ms
        still = isinstance(given, c.Command) and (due_ms is None or due_ms > bench.now_ms)
        before = snapshot(bench.machine) if still and bench.machine._input._deferred is None else None
        step = bench.do(given)
        if before is not None and any(isinstance(event, ErrorEvent) for event in step.events):
            assert kinds(step.events) == ["ErrorEvent"]
            assert not step.effects
            assert snapshot(bench.machine) == before, f"{given!r:.200} was refused and left something behind"
        self._after(step)
        return step

    def item(self, index: int) -> str:
        """The id of an item: one of the history's, or one that is not there."""
        entries = list(self.bench.machine._core.history)
        return entries[index % len(entries)].id if entries and index < 7 else "item_x"

    def fence(self, age: int) -> Fence:
        """The fence in force, mostly, or one that was."""
        return self.fences[-1 - age % len(self.fences)] if age else self.bench.fence

    @property
    def answering(self) -> bool:
        return self.bench.machine.lanes.answer is not Answer.NONE

    @property
    def alive(self) -> bool:
        return self.bench.machine.lanes.life is Life.OPEN

    @rule(ms=st.integers(1, 600))
    def append(self, ms: int) -> None:
        if self.alive:
            pcm_step = self.bench.append(ms)
            self._after(pcm_step)

    @rule(verdicts=st.text(alphabet="s.", min_size=1, max_size=30), frames=st.integers(1, 60))
    def judge(self, verdicts: str, frames: int) -> None:
        """The detector judges what it was given, no more."""
        bench = self.bench
        ready = int((bench.unjudged_from_ms - bench.judged_ms) / FRAME_MS)
        text = (verdicts * frames)[: min(ready, frames)]
        if text and bench.machine._core.server_vad is not None:
            self._after(bench.judge(text))

    @rule(verdicts=st.sampled_from(["s" * 12, "s" * 8 + "." * 17, "." * 12]))
    def hear(self, verdicts: str) -> None:
        """Audio that comes and is judged at its own pace."""
        for verdict in verdicts:
            if not self.alive:
                return
            self.let_pass(FRAME_MS)
            self._after(self.bench.append(FRAME_MS))
            ready = self.bench.unjudged_from_ms - self.bench.judged_ms >= FRAME_MS
            if ready and self.bench.machine._core.server_vad is not None:
                self._after(self.bench.judge(verdict))

    @rule(probability=st.floats(0.0, 1.0), age=st.sampled_from([0, 0, 0, 1]))
    def judge_end(self, probability: float, age: int) -> None:
        """The end-of-turn detector answers, at once or too late."""
        asked = [effect for effect in self.bench.effects if isinstance(effect, JudgeEndOfTurn)]
        if len(asked) > age:
            about = asked[-1 - age]
            verdict = EndOfTurnVerdict(item_id=about.item_id, serial=about.serial, probability=probability)
            self.give(verdict)

    @precondition(lambda self: self.bench.generation > 0)
    @rule()
    def old_verdicts(self) -> None:
        step = self.give(SpeechFrames(frames=(), generation=self.bench.generation - 1))
        assert not step.events

    @rule(ms=st.sampled_from([0.0, 20.0, 150.0, 700.0, 2500.0, 6000.0]))
    def let_pass(self, ms: float) -> None:
        bench = self.bench
        until = bench.now_ms + ms
        while due := sorted((at, key) for key, at in bench.timers.items() if at <= until):
            at, key = due[0]
            bench.now_ms = max(bench.now_ms, at)
            del bench.timers[key]
            self.give(TimerFired(key=key))
        bench.now_ms = until

    @rule(ms=st.sampled_from([500.0, 5000.0]))
    def timers_are_late(self, ms: float) -> None:
        """Time passes, and the runner has not come to the timers yet."""
        self.bench.now_ms += ms

    @rule(response_create=st.sampled_from([None, True]), is_speech=st.sampled_from([None, None, None, False]))
    def commit(self, response_create: bool | None, is_speech: bool | None) -> None:
        self.give(c.InputAudioBufferCommit(response_create=response_create, is_speech=is_speech))

    @rule(
        command=st.sampled_from(
            [
                c.InputAudioBufferClear(),
                c.InputCancel(),
                c.SessionHeartbeat(),
                *(c.TurnSignal(signal=kind) for kind in c.TurnSignalKind),
            ]
        )
    )
    def plain(self, command: c.Command) -> None:
        self.give(command)

    @rule(text=st.sampled_from(["", "Well?"]), index=indices, named=st.booleans())
    def create_item(self, text: str, index: int, named: bool) -> None:
        previous = self.item(index) if named else None
        self.give(c.ConversationItemCreate(item=said(text or "Go on."), previous_item_id=previous))

    @rule(index=indices)
    def answer_a_call(self, index: int) -> None:
        calls = [
            entry.item.call_id or ""
            for entry in self.bench.machine._core.history
            if isinstance(entry.item, FunctionCallItem)
        ]
        call_id = calls[index % len(calls)] if calls else "call_x"
        self.give(c.ConversationItemCreate(item=FunctionCallOutputItem(call_id=call_id, output="42")))

    @rule(index=indices)
    def delete_item(self, index: int) -> None:
        self.give(c.ConversationItemDelete(item_id=self.item(index)))

    @rule(index=indices, at=times)
    def truncate_item(self, index: int, at: float) -> None:
        self.give(c.ConversationItemTruncate(item_id=self.item(index), content_index=0, audio_end_ms=int(at)))

    @rule(
        modality=st.sampled_from([None, Modality.TEXT, Modality.AUDIO]),
        conversation=st.sampled_from(["auto", "auto", "none"]),
        reference=st.booleans(),
        forced=st.booleans(),
        index=indices,
    )
    def create_response(
        self, modality: Modality | None, conversation: Any, reference: bool, forced: bool, index: int
    ) -> None:
        params = ResponseParams(
            tool_choice=ToolFunction(name="f") if forced and self.bench.machine.config.tools else UNSET,
            output_modalities=[modality] if modality else UNSET,
            conversation=conversation,
            input=(said("Given."), ItemReference(id=self.item(index))) if reference else None,
        )
        self.give(c.ResponseCreate(response=params))

    @rule(named=st.booleans())
    def cancel(self, named: bool) -> None:
        created = self.bench.of(ResponseCreated)
        response_id = created[0].response.id if named and created else None
        self.give(c.ResponseCancel(response_id=response_id))

    @rule(played_ms=st.none() | times)
    def interrupt(self, played_ms: float | None) -> None:
        self.give(c.BargeIn(played_ms=played_ms) if played_ms is not None else c.OutputAudioBufferClear())

    @rule(played_ms=times, committed_ms=st.none() | times, truncate=st.booleans() | st.just(value=False), index=indices)
    def acknowledge(self, played_ms: float, committed_ms: float | None, truncate: bool, index: int) -> None:
        item_id = self.item(index) if index % 3 == 0 else None
        self.give(c.PlaybackAck(played_ms=played_ms, committed_ms=committed_ms, item_id=item_id, truncate=truncate))

    @rule(
        vad=detections,
        policy=st.sampled_from([UNSET, *CommitPolicy]),
        tools=st.sampled_from([UNSET, [], [FunctionTool(name="f")]]),
        bad=st.booleans(),
    )
    def update(
        self,
        vad: TurnDetection | None,
        policy: CommitPolicy | UnsetType,
        tools: list[FunctionTool] | UnsetType,
        bad: bool,
    ) -> None:
        patch = SessionPatch(
            tools=tools,
            audio=AudioPatch(input=InputPatch(turn_detection=vad)),
            playback=PlaybackPatch(commit_policy=policy),
            voice="nobody" if bad else UNSET,
        )
        self.give(c.SessionUpdate(session=patch))

    # -- the model ----------------------------------------------------------------------------------------------------

    @rule(
        text=st.sampled_from(WORDS),
        ms=st.sampled_from([0.0, 80.0, 500.0, 2000.0]),
        marked=st.booleans(),
        age=st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2]),
    )
    def speak(self, text: str, ms: float, marked: bool, age: int) -> None:
        marks: tuple[tuple[int, float], ...] = ()
        response = self.bench.machine._output.response
        if marked and response is not None and response.message is not None:
            marks = ((len(response.message.text + text), response.message.entry.speech.audio_ms + ms),)
        self._after(self.bench.speak(text, ms, marks, fence=self.fence(age)))

    @rule(final=st.booleans(), again=st.booleans(), age=st.sampled_from([0, 0, 0, 1]))
    def call(self, final: bool, again: bool, age: int) -> None:
        response = self.bench.machine._output.response
        opened = response.call(f"call_{self.calls}") if response is not None else None
        if not (again and opened is not None):
            self.calls += 1
            opened = None
        pieces = "{" if opened is None else "", "}" if final else ""
        decision = m.ToolCall(
            fence=self.fence(age), call_id=f"call_{self.calls}", name="f", arguments="".join(pieces), final=final
        )
        self.give(decision)

    @rule(age=st.sampled_from([0, 0, 0, 1]), kind=st.sampled_from(["end", "end", "cut", "fail", "listen"]))
    def finish(self, age: int, kind: str) -> None:
        fence = self.fence(age)
        decisions: dict[str, m.Decision] = {
            "end": m.EndTurn(fence=fence),
            "cut": m.EndTurn(fence=fence, reason=m.StopReason.MAX_TOKENS),
            "fail": m.Failed(fence=fence, error=BROKEN),
            "listen": m.Listen(fence=fence),
        }
        self.give(decisions[kind])

    @precondition(lambda self: not self.answering)
    @rule(stale=st.booleans())
    def begin_turn(self, stale: bool) -> None:
        fence = self.fences[0] if stale else self.bench.fence.next_turn()
        self.give(m.BeginTurn(fence=fence))

    @rule(
        index=indices,
        text=st.sampled_from(["", "turn", "turn on", "turn on the", "Turn off.", "Yeah"]),
        final=st.booleans(),
    )
    def understand(self, index: int, text: str, final: bool) -> None:
        pending = self.bench.machine._input.pending_id
        item_id = pending if pending is not None and index % 2 else self.item(index)
        if index == 5:
            self.give(m.TranscriptFailed(item_id=item_id, error=BROKEN))
        else:
            self.give(m.UserTranscript(item_id=item_id, text=text, final=final))

    # -- the end ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.bench.given) > 40)
    @rule(how=st.integers(0, 3))
    def close(self, how: int) -> None:
        endings: tuple[MachineInput, ...] = (
            c.SessionClose(),
            CloseRequested(reason=CloseReason.SHUTDOWN),
            CloseRequested(reason=CloseReason.ERROR, error=BROKEN),
            m.Fatal(error=BROKEN),
        )
        self.give(endings[how])
        assert not self.bench.timers

    @precondition(lambda self: self.bench.machine.lanes.life is Life.CLOSING)
    @rule()
    def release(self) -> None:
        self.give(SlotReleased())

    def teardown(self) -> None:
        """The session ends; nothing is left, and a machine that is given the same gives the same."""
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        self.give(CloseRequested(reason=CloseReason.SHUTDOWN))
        assert not bench.timers
        self.give(SlotReleased())
        assert len(bench.of(SessionClosed)) == 1
        assert len(bench.of(ResponseCreated)) == len(bench.of(ResponseDone))
        invariants.check(bench.events)
        again = Bench(**bench.fields)
        for given, now_ms, step in bench.given:
            again.now_ms = now_ms
            assert bool(again.do(given) == step), f"{type(given).__name__} had another outcome the second time"

    # -- what always holds --------------------------------------------------------------------------------------------

    def _after(self, step: Step) -> None:
        self._lanes_agree()
        self._fences_are_told(step)
        self._commits_are_what_was_said(step)
        self._history_is_what_was_made(step)
        self._ledgers_rise(step)

    def _lanes_agree(self) -> None:
        machine = self.bench.machine
        lanes = machine.lanes
        assert (lanes.answer is Answer.NONE) == (machine._output.response is None)
        assert (lanes.hearing is Hearing.QUIET) == (machine._input.pending_id is None)
        if lanes.life is Life.OPEN:
            assert (lanes.sound is Sound.SOUNDING) == bool(machine._core.playback)
        else:
            assert not machine._core.playback
            assert lanes.answer is Answer.NONE

    def _fences_are_told(self, step: Step) -> None:
        """The model knows the fence in force: it was told each change of it, or made it."""
        if self.bench.fence != self.fences[-1]:
            self.fences.append(self.bench.fence)
        for event in told(step.effects, object):
            if isinstance(event, m.Configured | m.Respond | m.Interrupted):
                assert self.model_fence is None or event.fence.epoch - self.model_fence.epoch in (0, 1)
                self.model_fence = event.fence
        if any(isinstance(event, ResponseCreated) for event in step.events) and not told(step.effects, m.Respond):
            assert self.model_fence is None or self.bench.fence.turn == self.model_fence.turn + 1, (
                "it began the turn itself"
            )
            self.model_fence = self.bench.fence
        assert self.model_fence in (None, self.bench.fence)

    def _commits_are_what_was_said(self, step: Step) -> None:
        for event in told(step.effects, m.InputCommitted):
            start_ms, end_ms = event.start_ms, event.end_ms
            assert bool(same_audio(event.pcm, start_ms, end_ms)), "not what was said there"
            if start_ms < end_ms:  # the item of an idle timeout is empty
                assert start_ms >= self.committed_ms, "committed twice"
                self.committed_ms = end_ms

    def _history_is_what_was_made(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, OutputItemAdded):
                self.made[event.item.id or ""] = ""
            elif isinstance(event, OutputTranscriptDelta | OutputTextDelta):
                self.made[event.item_id] += event.delta
        heard = {item.id or "": item for item in self.bench.history}
        for item_id, item in heard.items():
            if isinstance(item, MessageItem) and item.role is Role.ASSISTANT:
                assert self.made[item_id].startswith(item_text(item)), "words that nobody said"
                assert self.cut.get(item_id, self.made[item_id]).startswith(item_text(item)), "words that were cut"
        for event in step.events:
            if isinstance(event, ItemTruncated):
                kept = heard.get(event.item_id)
                self.cut[event.item_id] = item_text(kept) if kept is not None else ""

    def _ledgers_rise(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, OutputAudioDelta):
                item_id, now = event.item_id, event.metadata.playback
                assert event.metadata.epoch == self.bench.fence.epoch or len(step.events) > 3
            elif isinstance(event, PlaybackAcknowledged):
                item_id, now = event.item_id, event.playback
            else:
                continue
            was = self.ledgers.get(item_id, PlaybackLedger())
            assert now.generated_ms >= was.generated_ms
            assert now.sent_ms >= was.sent_ms
            assert now.played_ms >= was.played_ms
            assert now.committed_ms >= was.committed_ms
            self.ledgers[item_id] = now


Conversation.TestCase.settings = hypothesis.settings(
    max_examples=CONVERSATIONS,
    stateful_step_count=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    report_multiple_bugs=False,
    phases=(
        hypothesis.Phase.generate,
    ),  # a failing conversation is printed as it was; Phase.shrink takes minutes to shorten it
)
# Fifteen seconds of one core, of which a machine that is busy with other tests may give little.
TestConversations = pytest.mark.timeout(600)(Conversation.TestCase)
