"""Requests on their way through linked stages: one end each, nothing after it, nothing left behind, all times added up."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from duplex_core.errors import ErrorCode, error
from duplex_core.fence import Fence
from duplex_core.stages import (
    Forward,
    Lane,
    LinkKind,
    Purpose,
    StageFailed,
    StageLink,
    StageMetrics,
    StageOutput,
    StagePlan,
    StageReply,
    StageRequest,
    StageSpec,
)
from duplex_server.engine.stages.flows import Deliver, FlowAction, Flows, Give, Withdraw


def stage(name: str, *inputs: tuple[str, LinkKind]) -> StageSpec:
    links = tuple(StageLink(source=source, kind=kind) for source, kind in inputs)
    return StageSpec(name=name, factory="none:none", inputs=links)


PLAN = StagePlan(
    stages=(
        stage("vocoder", ("talker", LinkKind.CODEC_FRAMES), ("thinker", LinkKind.TOKENS)),
        stage("talker", ("thinker", LinkKind.TOKENS), ("thinker", LinkKind.HIDDEN_STATES)),
        stage("thinker"),
    )
)
FENCE = Fence(session_id="sess_1", epoch=2, turn=3)


def asked(stage: str = "thinker", request_id: str = "r1", fence: Fence = FENCE, **fields: Any) -> StageRequest:
    return StageRequest(
        stage=stage, request_id=request_id, fence=fence, lane=Lane.OUTPUT, payload="what is new?", **fields
    )


def gave(request: StageRequest, payload: Any = None, **fields: Any) -> StageOutput:
    return request.output(payload, **fields)


def failed(request: StageRequest, **fields: Any) -> StageFailed:
    return request.failed(error(ErrorCode.ENGINE_ERROR, "no words"), **fields)


def given(actions: list[FlowAction]) -> list[StageRequest]:
    return [each.request for each in actions if isinstance(each, Give)]


def told(actions: list[FlowAction]) -> list[StageReply]:
    return [each.reply for each in actions if isinstance(each, Deliver)]


def test_what_no_stage_forwards_goes_through_as_it_is() -> None:
    flows = Flows(PLAN)
    request = asked(stage="vocoder")
    flows.begin(request, 0.0)
    (piece,) = told(flows.take(gave(request, "sound"), 10.0))
    assert piece == gave(request, "sound")
    (last,) = told(flows.take(gave(request, final=True), 30.0))
    assert last == gave(request, final=True, metrics=(StageMetrics(stage="vocoder", first_ms=10.0, total_ms=30.0),))
    assert not flows


def test_a_forward_is_work_for_every_stage_that_is_linked_under_the_roots_fence() -> None:
    flows = Flows(PLAN)
    root = asked(purpose=Purpose.CHAT)
    flows.begin(root, 0.0)
    actions = flows.take(gave(root, forward=Forward(kind=LinkKind.TOKENS, payload=[1, 2])), 1.0)
    parts = given(actions)
    assert told(actions) == [], "no session sees what goes along a link"
    assert [part.stage for part in parts] == ["vocoder", "talker"]
    assert len({part.request_id for part in parts} | {root.request_id}) == 3
    for part in parts:
        assert (part.fence, part.lane, part.purpose, part.payload) == (FENCE, Lane.OUTPUT, Purpose.CHAT, [1, 2])


def test_what_a_part_makes_comes_under_the_roots_name_and_only_the_last_is_final() -> None:
    flows = Flows(PLAN)
    root = asked()
    flows.begin(root, 0.0)
    hidden = Forward(kind=LinkKind.HIDDEN_STATES, payload="h1")
    (talk,) = given(flows.take(gave(root, "Hello", forward=hidden), 1.0))
    assert told(flows.take(gave(root, " there.", final=True), 2.0)) == [gave(root, " there.")]
    (sound,) = given(flows.take(gave(talk, forward=Forward(kind=LinkKind.CODEC_FRAMES, payload="f")), 3.0))
    assert told(flows.take(gave(talk, final=True), 4.0)) == [], "an end that is not the last says nothing"
    (last,) = told(flows.take(gave(sound, "pcm", final=True), 5.0))
    assert isinstance(last, StageOutput)
    assert (last.stage, last.request_id, last.made_by, last.payload) == ("thinker", "r1", "vocoder", "pcm")
    assert last.final
    assert [each.stage for each in last.metrics] == ["thinker", "talker", "vocoder"]
    assert not flows


@pytest.mark.parametrize("payload", [None, "tokens that nobody wants"])
def test_a_forward_with_nothing_to_do_goes_nowhere(payload: Any) -> None:
    flows = Flows(StagePlan(stages=PLAN.stages[1:]))
    kind = LinkKind.TOKENS if payload is None else LinkKind.CODEC_FRAMES
    root = asked()
    flows.begin(root, 0.0)
    actions = flows.take(gave(root, forward=Forward(kind=kind, payload=payload), final=True), 1.0)
    (last,) = told(actions)
    assert isinstance(last, StageOutput)
    assert (len(actions), last.final, last.payload, last.forward) == (1, True, None, None)


def test_a_failed_part_fails_the_whole_and_withdraws_the_rest_before_that_is_told() -> None:
    flows = Flows(PLAN)
    root = asked()
    flows.begin(root, 0.0)
    tokens = Forward(kind=LinkKind.TOKENS, payload=[1])
    sound, talk = given(flows.take(gave(root, forward=tokens), 1.0))
    actions = flows.take(failed(talk, fatal=True), 7.0)
    assert actions[:2] == [Withdraw(request=root), Withdraw(request=sound)]
    (failure,) = told(actions)
    assert isinstance(failure, StageFailed)
    assert (failure.stage, failure.request_id, failure.fatal) == ("thinker", "r1", True)
    assert failure.metrics[0].stage == "thinker"
    assert {each.stage: (each.total_ms, each.whole) for each in failure.metrics} == {
        "thinker": (7.0, False),
        "vocoder": (6.0, False),
        "talker": (6.0, False),
    }
    assert flows.take(gave(root, "late"), 8.0) == []
    for each in (root, sound):
        flows.withdrawn(each)
    assert not flows


def test_an_abort_is_kept_until_every_stage_has_let_go() -> None:
    flows = Flows(PLAN)
    root = asked()
    flows.begin(root, 0.0)
    (talk,) = given(flows.take(gave(root, forward=Forward(kind=LinkKind.HIDDEN_STATES, payload="h")), 1.0))
    assert flows.abort("sess_1", "thinker", "r1") == [Withdraw(request=root), Withdraw(request=talk)]
    flows.withdrawn(root)
    assert flows.take(gave(talk, "late"), 2.0) == []
    assert not flows.holds(talk)
    assert flows.known("sess_1", "thinker", "r1", 2.0) == ()
    assert flows.abort("sess_1", "thinker", "r1") == [Withdraw(request=talk)], "what was not let go of can be retried"
    flows.withdrawn(talk)
    assert flows.abort("sess_1", "thinker", "r1") == []
    assert not flows


def test_two_open_requests_of_one_id_are_a_fault_and_one_that_was_not_taken_never_was() -> None:
    flows = Flows(PLAN)
    flows.begin(asked(), 0.0)
    with pytest.raises(ValueError, match="r1 of sess_1 is open already"):
        flows.begin(asked(), 0.0)
    flows.refused(asked())
    flows.begin(asked(), 0.0)
    assert len(flows) == 1


def test_metrics_are_as_the_stages_tell_them_from_the_moment_that_each_was_given_its_work() -> None:
    flows = Flows(PLAN)
    root = asked()
    flows.begin(root, 100.0)
    chunks = []
    for at_ms in (150.0, 180.0):
        forward = Forward(kind=LinkKind.HIDDEN_STATES, payload=at_ms)
        chunks += given(flows.take(gave(root, forward=forward), at_ms))
    thought = StageMetrics(
        stage="thinker", queue_ms=3.0, first_ms=50.0, total_ms=90.0, input_tokens=7, output_tokens=5, ms_per_token=10.0
    )
    flows.take(gave(root, final=True, metrics=(thought,)), 190.0)
    spoken = [
        StageMetrics(
            stage="talker", queue_ms=2.0, first_ms=20.0, total_ms=40.0, output_tokens=3, ms_per_token=6.0, steps=3
        ),
        StageMetrics(
            stage="talker", queue_ms=9.0, first_ms=15.0, total_ms=35.0, output_tokens=2, ms_per_token=9.0, steps=2
        ),
    ]
    flows.take(gave(chunks[0], final=True, metrics=(spoken[0],)), 191.0)
    known = flows.known("sess_1", "thinker", "r1", 200.0)
    assert [(each.stage, each.begun_ms, each.total_ms, each.whole) for each in known] == [
        ("thinker", 0.0, 90.0, True),
        ("talker", 50.0, 50.0, False),
    ]
    (last,) = told(flows.take(gave(chunks[1], final=True, metrics=(spoken[1],)), 216.0))
    assert last.metrics == (
        thought,
        StageMetrics(
            stage="talker",
            begun_ms=50.0,
            queue_ms=2.0,
            first_ms=20.0,
            total_ms=65.0,
            output_tokens=5,
            ms_per_token=7.0,
            steps=5,
        ),
    )


class Interleaving(RuleBasedStateMachine):
    """Any number of requests of two sessions, in any order of anything that stages and sessions may do."""

    def __init__(self) -> None:
        super().__init__()
        self.flows = Flows(PLAN)
        self.now_ms = 0.0
        self.serial = 0
        self.at_stages: dict[tuple[str, str, str], StageRequest] = {}
        """What the stages have."""
        self.stale: list[StageRequest] = []
        """What they had: a reply may be on its way still."""
        self.open: set[tuple[str, str, str]] = set()
        """Requests that their sessions wait for."""
        self.stages: dict[tuple[str, str, str], set[str]] = {}

    @staticmethod
    def key(work: StageRequest | StageReply) -> tuple[str, str, str]:
        return (work.fence.session_id, work.stage, work.request_id)

    def root_of(self, request: StageRequest) -> tuple[str, str, str]:
        """The root that a part's id leads back to."""
        path = request.request_id.split("/")
        first = path[1].split(".")[0] if len(path) > 1 else request.stage
        return (request.fence.session_id, first, path[0])

    def carry_out(self, actions: list[FlowAction]) -> None:
        for action in actions:
            if isinstance(action, Give):
                assert self.key(action.request) not in self.at_stages
                assert self.flows.holds(action.request)
                self.at_stages[self.key(action.request)] = action.request
                self.stages[self.root_of(action.request)].add(action.request.stage)
            elif isinstance(action, Withdraw):
                self.let_go(action)
            else:
                self.deliver(action.reply)

    def let_go(self, action: Withdraw) -> None:
        self.stale.append(self.at_stages.pop(self.key(action.request)))
        self.flows.withdrawn(action.request)

    def deliver(self, reply: StageReply) -> None:
        root = self.key(reply)
        assert root in self.open, "something came after the end"
        if isinstance(reply, StageFailed) or reply.final:
            self.open.remove(root)
            assert not [each for each in self.at_stages.values() if self.root_of(each) == root], (
                "a part was left behind"
            )
            assert {each.stage for each in reply.metrics} == self.stages[root]
            assert reply.metrics[0].stage == root[1]
            assert min(each.begun_ms for each in reply.metrics) == 0.0
        else:
            assert reply.payload is not None
            assert reply.metrics == ()

    @rule(stage=st.sampled_from(["thinker", "talker", "vocoder"]), session=st.sampled_from(["sess_1", "sess_2"]))
    def submit(self, stage: str, session: str) -> None:
        self.serial += 1
        request = asked(stage, f"r{self.serial}", Fence(session_id=session))
        self.flows.begin(request, self.now_ms)
        self.at_stages[self.key(request)] = request
        self.open.add(self.key(request))
        self.stages[self.key(request)] = {stage}

    @precondition(lambda self: self.at_stages)
    @rule(
        pick=st.randoms(use_true_random=False),
        payload=st.sampled_from([None, "piece"]),
        forward=st.sampled_from([None, *LinkKind]),
        empty=st.booleans(),
        final=st.booleans(),
    )
    def reply(self, pick: Any, payload: Any, forward: LinkKind | None, empty: bool, final: bool) -> None:
        request = pick.choice(list(self.at_stages.values()))
        along = None if forward is None else Forward(kind=forward, payload=None if empty else "chunk")
        if final:
            del self.at_stages[self.key(request)]
            self.stale.append(request)
        self.now_ms += 1.0
        self.carry_out(self.flows.take(gave(request, payload, forward=along, final=final), self.now_ms))

    @precondition(lambda self: self.at_stages)
    @rule(pick=st.randoms(use_true_random=False), fatal=st.booleans())
    def fail(self, pick: Any, fatal: bool) -> None:
        request = pick.choice(list(self.at_stages.values()))
        del self.at_stages[self.key(request)]
        root = self.root_of(request)
        wanted = root in self.open
        self.now_ms += 1.0
        self.carry_out(self.flows.take(failed(request, fatal=fatal), self.now_ms))
        assert not wanted or root not in self.open, "a failure was not told"

    @precondition(lambda self: self.stale)
    @rule(pick=st.randoms(use_true_random=False), final=st.booleans())
    def late(self, pick: Any, final: bool) -> None:
        request = pick.choice(self.stale)
        if self.key(request) not in self.at_stages:
            assert self.flows.take(gave(request, "late", final=final), self.now_ms) == []

    @precondition(lambda self: self.open)
    @rule(pick=st.randoms(use_true_random=False), clumsy=st.booleans())
    def abort(self, pick: Any, clumsy: bool) -> None:
        """Of an abort that goes wrong a stage keeps some of the work, until another try or until it has done it."""
        root = pick.choice(sorted(self.open))
        self.open.remove(root)
        for action in self.flows.abort(*root):
            if not clumsy or pick.random() < 0.5:
                self.let_go(action)
        if not clumsy:
            assert not [each for each in self.at_stages.values() if self.root_of(each) == root]
            assert self.flows.abort(*root) == []

    @rule(session=st.sampled_from(["sess_1", "sess_2"]))
    def drop(self, session: str) -> None:
        self.flows.drop(session)
        for key in [key for key in self.at_stages if key[0] == session]:
            self.stale.append(self.at_stages.pop(key))
        self.open = {key for key in self.open if key[0] != session}

    def teardown(self) -> None:
        """Every stage ends what it has: then every request has had its end, and nothing is kept."""
        while self.at_stages:
            _, request = self.at_stages.popitem()
            self.carry_out(self.flows.take(gave(request, final=True), self.now_ms))
        assert not self.open
        assert len(self.flows) == 0
        assert not self.flows.holds(asked())


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = hypothesis.settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)
