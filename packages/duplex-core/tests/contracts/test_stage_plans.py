"""Plans that cannot run are refused where they are made, with the name of the stage."""

from __future__ import annotations

from typing import Any

import pytest

from duplex_core.stages import LinkKind, Resources, StageLink, StagePlan, StageSpec


def stage(name: str, *sources: str, **fields: Any) -> StageSpec:
    links = tuple(StageLink(source=source, kind=LinkKind.TOKENS) for source in sources)
    return StageSpec(name=name, factory="some:worker", inputs=links, **fields)


def on(devices: Any) -> StageSpec:
    return stage("a", resources=Resources(devices=devices))


@pytest.mark.parametrize(
    ("stages", "match"),
    [
        ([stage("a"), stage("a")], "two stages 'a'"),
        ([stage("a", "b")], "'a' has an input from 'b', but the plan has: a"),
        ([stage("a"), stage("b", "a", "c"), stage("c", "b")], "stages b, c go round in a circle"),
        ([stage("a", "a")], "stages a go round in a circle"),
        ([stage("a", replicas=0)], "replicas of stage 'a' must be at least 1, not 0"),
        ([stage("a", concurrency=0)], "concurrency of stage 'a' must be at least 1, not 0"),
        (
            [stage("a", resources=Resources(sessions=-1))],
            r"resources\.sessions of stage 'a' must be at least 0, not -1",
        ),
        ([stage("a", resources=Resources(chats=-1))], r"resources\.chats of stage 'a' must be at least 0, not -1"),
        ([on("cuda:0")], "devices of stage 'a' must be a list .* not 'cuda:0'"),
        ([on((0,))], r"devices of stage 'a' must be a list .* not \(0,\)"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(stages: list[StageSpec], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        StagePlan(stages=tuple(stages))


def test_a_plan_knows_what_is_linked_to_what() -> None:
    plan = StagePlan(stages=(stage("c", "b", "a"), stage("b", "a"), stage("a")))
    assert plan.after("a", LinkKind.TOKENS) == ("c", "b")
    assert plan.after("a", LinkKind.AUDIO) == ()
