"""What `duplex-server plan` says: stages, links, devices, memory, sessions, without anything being loaded."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from duplex_core.plugins import load_plugins
from duplex_core.stages import LinkKind, Resources, StageLink, StagePlan, StageSpec
from duplex_server.builtins import duplex_register_stage_runtimes
from duplex_server.engine.served import ModelUnavailable, ServedModel, prepare, session_limit
from duplex_server.engine.stages.host import StageStartError, check
from duplex_server.planning import describe, show

GIB = 1024**3
PLAN = StagePlan(
    stages=(
        StageSpec(
            name="thinker",
            factory="nowhere.to.be_found:Thinker",
            runtime="vllm",
            resources=Resources(devices=("cuda:0",), memory_bytes=20 * GIB, sessions=8, chats=2),
        ),
        StageSpec(
            name="talker",
            factory="nowhere.to.be_found:Talker",
            runtime="torch",
            replicas=2,
            inputs=(StageLink(source="thinker", kind=LinkKind.HIDDEN_STATES),),
            resources=Resources(devices=("cuda:0", "cuda:1"), memory_bytes=3 * GIB, sessions=3),
        ),
        StageSpec(name="ears", factory="nowhere.to.be_found:Ears"),
    )
)


@pytest.fixture
def served() -> ServedModel:
    """Echo with a pipeline whose parts do not exist: planning must not miss them."""
    model = prepare(load_plugins(), "echo", lambda spec: spec.deploy_model())
    return dataclasses.replace(model, plan=PLAN)


def test_the_plan_places_replicas_and_sums_up_the_memory_of_each_device(served: ServedModel) -> None:
    plan = describe(served, package="echo 1", profile=None, max_sessions=6)
    thinker, talker, ears = plan.stages
    assert [replica.device for replica in talker.replicas] == ["cuda:0", "cuda:1"]
    assert plan.memory_bytes == {"cuda:0": 23 * GIB, "cuda:1": 3 * GIB}
    assert (thinker.sessions, thinker.chats, talker.sessions, ears.sessions) == (8, 2, 6, None)
    assert talker.inputs == ("thinker (hidden_states)",)


def test_the_plan_reads_well(served: ServedModel) -> None:
    screen = io.StringIO()
    show(describe(served, package="echo 1", profile="two", max_sessions=6), Console(file=screen, width=160))
    text = screen.getvalue()
    assert "echo (echo 1, profile two): at most 6 sessions" in text
    for told in ("thinker (hidden_states)", "20.0 GiB", "cuda:0: 23.0 GiB in all", "this process", "not stated"):
        assert told in text


def test_a_narrow_screen_hides_no_device(served: ServedModel) -> None:
    spans = StageSpec(
        name="thinker",
        factory="nowhere.to.be_found:Thinker",
        runtime="vllm",
        resources=Resources(devices=("cuda:0,cuda:1,cuda:2,cuda:3",), sessions=2),
    )
    wide = dataclasses.replace(served, plan=StagePlan(stages=(spans,)))
    screen = io.StringIO()
    show(describe(wide, package="echo 1", profile=None, max_sessions=2), Console(file=screen, width=80))
    rows = [line.split("│") for line in screen.getvalue().splitlines() if line.startswith("│")]
    assert "".join(row[5].strip() for row in rows) == "cuda:0,cuda:1,cuda:2,cuda:3"


def test_a_screen_of_80_columns_has_whole_headings_and_all_of_them(served: ServedModel) -> None:
    screen = io.StringIO()
    show(describe(served, package="echo 1", profile="two", max_sessions=6), Console(file=screen, width=80))
    lines = screen.getvalue().splitlines()
    titles = ["Stage", "Runtime", "Takes from", "Replica", "Device", "Memory", "Sessions", "Chats"]
    assert titles in [[cell.strip() for cell in line.strip("┃").split("┃")] for line in lines if "┃" in line]
    assert max(map(len, lines)) <= 80
    assert all(line.endswith("│") for line in lines if line.startswith("│"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({}, "^stage thinker cannot start: its work goes to another process, .*set payloads"),
        ({"runtime": "vlm"}, "^stage thinker wants the runtime 'vlm'; installed are: thread, torch, vllm$"),
        ({"runtime": "thread", "replicas": 2}, "^stage thinker cannot start: the thread runtime has one replica"),
    ],
)
def test_what_a_runtime_lacks_in_a_stage_is_told_before_anything_is_loaded(changes: dict[str, Any], match: str) -> None:
    wrong = msgspec.structs.replace(PLAN.stages[0], **changes)
    with pytest.raises(StageStartError, match=match):
        check(StagePlan(stages=(wrong,)), {each.id: each for each in duplex_register_stage_runtimes()})


def test_sessions_are_never_more_than_the_stages_hold(served: ServedModel) -> None:
    roomy = dataclasses.replace(served, spec=dataclasses.replace(served.spec, max_sessions=50))
    assert session_limit(roomy, None) == 6
    assert session_limit(roomy, 5) == 5
    with pytest.raises(ModelUnavailable, match=r"stage talker holds 6 sessions \(2 x 3\), fewer than the 7"):
        session_limit(roomy, 7)
