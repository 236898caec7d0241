"""The senses of MiniCPM-o as a stage: in a worker process of the torch runtime, as the model's own plan describes it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from duplex_core.fence import Fence
from duplex_core.spec import Checkpoint
from duplex_core.stages import Lane, LinkKind, Purpose, RunningStage, StageFailed, StageOutput, StageRequest
from duplex_core.tensors import Tensor
from duplex_core.torch_tensors import as_torch, of_torch
from duplex_core.workers import SlotWork
from duplex_server.builtins import duplex_register_stage_runtimes
from model_minicpmo.gpu.senses_worker import SensesWorker
from model_minicpmo.payloads import (
    SENSES,
    Chat,
    ChatMessage,
    ChatPart,
    ChatSensed,
    Open,
    Opened,
    Options,
    Orders,
    Sensed,
    Unit,
)
from model_minicpmo.plugin import claims, stage_plan
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.talking import VOICE, write_talking_checkpoint
from tests.support.pools import Held, News

pytestmark = pytest.mark.engines

EMBEDS = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_talking_checkpoint(tmp_path_factory.mktemp("talking"))


@contextlib.asynccontextmanager
async def senses(folder: Path) -> AsyncIterator[tuple[RunningStage, News]]:
    """The stage, as the plan of the model has it."""
    checkpoint = Checkpoint(
        name=str(folder), path=str(folder), config=json.loads((folder / "config.json").read_text(encoding="utf-8"))
    )
    assert claims(checkpoint)
    [spec] = [
        each for each in stage_plan(checkpoint, MiniCPMOSettings(sessions=2, chats=1)).stages if each.name == SENSES
    ]
    [runtime] = [each for each in duplex_register_stage_runtimes() if each.id == spec.runtime]
    news = News()
    stage = await runtime.start(spec, news)
    try:
        yield stage, news
    finally:
        await stage.aclose()


def submit(stage: RunningStage, who: str, request_id: str, payload: Any) -> None:
    purpose = Purpose.CHAT if isinstance(payload, Chat) else Purpose.SESSION
    fence = Fence(session_id=who)
    stage.submit(
        StageRequest(
            stage=SENSES, request_id=request_id, fence=fence, lane=Lane.INPUT, payload=payload, purpose=purpose
        )
    )


async def forwarded(news: News, request_id: str) -> Any:
    """What the thinker would be given for a request."""
    answer = await news.answer(request_id)
    assert isinstance(answer, StageOutput), answer
    assert answer.forward is not None
    assert answer.forward.kind is LinkKind.EMBEDDINGS
    assert answer.metrics
    return answer.forward.payload


def unit(number: int, seed: int) -> Unit:
    sound = 0.1 * np.random.default_rng((seed, number)).standard_normal(16_000).astype(np.float32)
    return Unit(orders=Orders(number=number), samples=of_torch(torch.from_numpy(sound)))


def alone(folder: Path, payloads: list[Any]) -> list[Any]:
    """The same in this process, one session and nobody else."""
    worker = SensesWorker(checkpoint=str(folder))
    worker.start(1, "cpu")
    made = [worker.step([SlotWork(slot=0, payload=payload)])[0].outputs[0].payload for payload in payloads]
    worker.close()
    return made


async def test_sessions_a_chat_and_what_is_broken_through_the_process(folder: Path) -> None:
    options = Options(seed=5)
    voice = (folder / "assets" / VOICE).read_bytes()
    lives = {
        "ann": [Open(prompt="Hello.", options=options), *(unit(number, 1) for number in range(3))],
        "bob": [Open(prompt="Hi.", options=options, reference=voice), *(unit(number, 2) for number in range(3))],
    }
    chat = Chat(messages=(ChatMessage(role="user", parts=(ChatPart(samples=unit(0, 3).samples),)),), options=options)
    orders = Orders(number=9, asked=True, waited_for=True)
    broken = Unit(orders=orders, samples=unit(9, 1).samples, pictures=(b"\xff\xd8\xff no picture",))
    expected = {who: alone(folder, life) for who, life in lives.items()}
    [answer] = alone(folder, [chat])
    before = Held.now()
    async with senses(folder) as (stage, news):
        for who in lives:
            stage.place(who)
        submit(stage, "ann", "broken", broken)
        for who, life in lives.items():
            for at, payload in enumerate(life):
                submit(stage, who, f"{who}-{at}", payload)
        submit(stage, "chat", "chat-0", chat)
        for who, life in lives.items():
            opened, *units = [await forwarded(news, f"{who}-{at}") for at in range(len(life))]
            assert isinstance(opened, Opened)
            assert opened == expected[who][0]
            for ours, theirs in zip(units, expected[who][1:], strict=True):
                assert isinstance(ours, Sensed)
                assert ours.orders == theirs.orders
                assert same(ours.audio, theirs.audio)
        heard = await forwarded(news, "chat-0")
        assert isinstance(heard, ChatSensed)
        assert heard == answer
        failure = await news.answer("broken")
        assert isinstance(failure, StageFailed)
        assert not failure.fatal
        assert failure.error.message == "these 14 bytes cannot be decoded as a picture: they are no PNG or JPEG"
        stage.release("ann")
        stage.place("cid")  # in a slot that somebody had before
        submit(stage, "cid", "cid-0", lives["ann"][1])
        again = await forwarded(news, "cid-0")
        assert same(again.audio, expected["ann"][1].audio)
        assert stage.healthy()
    assert not before.left()


def same(ours: Tensor, theirs: Tensor) -> bool:
    return bool(torch.allclose(as_torch(ours), as_torch(theirs), rtol=0, atol=EMBEDS))
