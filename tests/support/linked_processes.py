"""Two linked stages in worker processes: one says a text word by word, the other makes a sound of each word. Needs no torch.

Owns no expectation. Used by tests of the server; the model is served like any other, and the workers run in processes of their
own. A word ``crash`` ends the talker's process, ``refuse`` is refused, and at ``hold`` the thinker says nothing more until it is
stopped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from duplex_core.capabilities import Capabilities
from duplex_core.config import SessionConfig
from duplex_core.items import item_text
from duplex_core.model import EndTurn, Failed, ModelInput, ModelOutput, Respond, Speak, Submit
from duplex_core.spec import ModelSpec
from duplex_core.stages import (
    Forward,
    Lane,
    LinkKind,
    Resources,
    StageFailed,
    StageLink,
    StageOutput,
    StagePlan,
    StageRequest,
    StageSpec,
)
from duplex_core.tensors import Tensor
from duplex_core.workers import SlotResult, SlotWork

MODULE = "tests.support.linked_processes"
RATE_HZ = 24_000
SAMPLES = 480
"""Of each word: 20 ms."""


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """What to say, and each word of it."""

    text: str


class Sound(msgspec.Struct, frozen=True, kw_only=True, tag="sound"):
    """A word's sound: int16[samples]."""

    samples: Tensor


Payload = Text | Sound


class Thinker:
    """Says one word a step, and passes it on."""

    frame_ms: float | None = None

    def start(self, slots: int, device: str) -> None:
        self._left: dict[int, list[str]] = {}

    def reset(self, slot: int) -> None:
        self._left.pop(slot, None)

    def step(self, work: Sequence[SlotWork]) -> Sequence[SlotResult]:
        return [self._one(each) for each in work]

    def _one(self, work: SlotWork) -> SlotResult:
        if work.payload is not None:
            self._left[work.slot] = work.payload.text.split()
        words = self._left[work.slot]
        if words[:1] == ["hold"]:
            return SlotResult(slot=work.slot, done=False)
        word = words.pop(0)
        said = Text(text=word)
        return SlotResult(slot=work.slot, outputs=(said, Forward(kind=LinkKind.TOKENS, payload=said)), done=not words)

    def interrupted(self, slot: int) -> None:
        self._left.pop(slot, None)

    def close(self) -> None:
        pass


class Talker:
    """Makes each word as many samples of the word's length."""

    frame_ms: float | None = None

    def start(self, slots: int, device: str) -> None:
        pass

    def reset(self, slot: int) -> None:
        pass

    def step(self, work: Sequence[SlotWork]) -> Sequence[SlotResult]:
        return [self._one(each) for each in work]

    def _one(self, work: SlotWork) -> SlotResult:
        word = work.payload.text
        if word == "crash":
            os._exit(3)
        if word == "refuse":
            return SlotResult(slot=work.slot, failed="the talker has no such word")
        samples = len(word).to_bytes(2, "little") * SAMPLES
        return SlotResult(
            slot=work.slot, outputs=(Sound(samples=Tensor(dtype="int16", shape=(SAMPLES,), data=samples)),)
        )

    def interrupted(self, slot: int) -> None:
        pass

    def close(self) -> None:
        pass


class Session:
    """The model's side: words from the thinker, sound from the talker."""

    def __init__(self) -> None:
        self._asked = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        match event:
            case Respond():
                self._asked += 1
                request = StageRequest(
                    stage="thinker",
                    request_id=f"r{self._asked}",
                    fence=event.fence,
                    lane=Lane.OUTPUT,
                    payload=Text(text=item_text(event.history[-1])),
                )
                return (Submit(request=request),)
            case StageOutput(payload=payload, final=final, fence=fence):
                said: list[ModelOutput] = []
                if isinstance(payload, Text):
                    said.append(Speak(fence=fence, text=payload.text + " "))
                elif isinstance(payload, Sound):
                    said.append(Speak(fence=fence, pcm=bytes(payload.samples.data)))
                return [*said, EndTurn(fence=fence)] if final else said
            case StageFailed():
                return (Failed(fence=event.fence, error=event.error),)
            case _:
                return ()


def talking_model(*, talkers: int = 1, sessions: int = 2) -> ModelSpec:
    """The model, its talker on so many replicas with so many sessions each."""

    def stage(name: str, factory: str, replicas: int, each: int, *inputs: StageLink) -> StageSpec:
        return StageSpec(
            name=name,
            factory=f"{MODULE}:{factory}",
            runtime="torch",
            replicas=replicas,
            inputs=inputs,
            payloads=f"{MODULE}:Payload",
            resources=Resources(devices=("cpu",), sessions=each, chats=1),
        )

    plan = StagePlan(
        stages=(
            stage("thinker", "Thinker", 1, sessions * talkers),
            stage("talker", "Talker", talkers, sessions, StageLink(source="thinker", kind=LinkKind.TOKENS)),
        )
    )
    return ModelSpec(
        id="talking",
        summary="thinks in one process and talks in another",
        claims=lambda checkpoint: False,
        claims_text="only the name talking",
        capabilities=lambda deploy: Capabilities(output_rate_hz=RATE_HZ, chat=True, chat_audio_output=True),
        session_config=lambda deploy: SessionConfig(model="talking", turn_detection=None),
        stage_plan=lambda checkpoint, deploy: plan,
        create_session=lambda context: Session(),
        max_sessions=16,
    )
