"""MiniCPM-o in its full size on real hardware: it starts, converses and answers chats, and what it takes is written down.

Runs where an accelerator is at hand (`nox -s e2e-gpu`). With `DUPLEX_MINICPMO_CHECKPOINT` naming a folder, its weights are
served; without, random ones of the published sizes are made, about 20 GB, which say nothing sensible but cost as much. Further
settings:

- `DUPLEX_MINICPMO_PROFILE`: the deploy profile; by the number of accelerators when left out.
- `DUPLEX_MINICPMO_SESSIONS`: up to how many sessions are tried; 8 when left out.
- `DUPLEX_MINICPMO_REPORT`: where the report is written; `minicpmo-hardware.json` in the working directory when left out.

What is measured stands in `tests/minicpmo/measuring.py`, which another test runs on a tiny checkpoint and a CPU.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
import pytest_asyncio

from model_minicpmo.testing.sizes import PUBLISHED
from tests.minicpmo.measuring import devices, report
from tests.minicpmo.served import call, serving, write_random
from tests.support.serving import Served

pytestmark = [
    pytest.mark.engines,
    pytest.mark.gpu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(3600),
]
RANDOM = "random"
PROFILES = {1: "one-gpu", 2: "two-gpus"}


class Hardware(NamedTuple):
    """The server, and what was known before it was up."""

    served: Served
    weights: str
    profile: str
    start_s: float
    before: list[dict[str, Any]]
    sessions: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hardware(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hardware]:
    before = await devices()
    named = os.environ.get("DUPLEX_MINICPMO_CHECKPOINT")
    folder = Path(named) if named else write_random(tmp_path_factory.mktemp("minicpmo") / "checkpoint", PUBLISHED)
    profile = os.environ.get("DUPLEX_MINICPMO_PROFILE") or PROFILES.get(len(before), "three-gpus")
    sessions = int(os.environ.get("DUPLEX_MINICPMO_SESSIONS") or 8)
    began = time.monotonic()
    async with serving(folder, profile=profile, sessions=sessions) as served:
        took_s = time.monotonic() - began
        yield Hardware(served, named or RANDOM, profile, took_s, before, sessions)


async def test_a_written_question_is_answered_aloud(hardware: Hardware) -> None:
    async with call(hardware.served, microphone=False, input={"turn_detection": None}) as caller:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}
        await caller.send("conversation.item.create", item=item)
        await caller.send("response.create")
        answer = await caller.first_audio(1)
        await caller.send("response.cancel")
        await caller.answered(1)
        await caller.close()
    assert any(answer.pcm)
    assert not [error for error in caller.of("error") if error["error"]["type"] == "server_error"]


async def test_a_chat_is_answered_in_writing_and_aloud(hardware: Hardware) -> None:
    question = {"model": "minicpmo", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 24}
    aloud = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    async with httpx.AsyncClient(base_url=hardware.served.http, timeout=120.0) as client:
        answers = await asyncio.gather(
            *(client.post("/v1/chat/completions", json=question | extra) for extra in ({}, aloud))
        )
    for each in answers:
        assert each.status_code == 200, each.text
        assert each.json()["usage"]["completion_tokens"] > 0


async def test_what_it_takes_is_written_down(hardware: Hardware, capsys: pytest.CaptureFixture[str]) -> None:
    measured = await report(
        hardware.served,
        weights=hardware.weights,
        profile=hardware.profile,
        start_s=hardware.start_s,
        before=hardware.before,
        most=hardware.sessions,
    )
    written = msgspec.json.format(msgspec.json.encode(measured), indent=2)
    path = Path(os.environ.get("DUPLEX_MINICPMO_REPORT") or "minicpmo-hardware.json")
    await asyncio.to_thread(path.write_bytes, written + b"\n")
    with capsys.disabled():
        print(f"\n{written.decode()}\nWritten to {path}.")  # noqa: T201 - the figures are what this is run for
        if hardware.weights == RANDOM:
            print("Random weights were served: they cost as much as the published ones, and show nothing else.")  # noqa: T201
    assert measured.devices, "nvidia-smi tells of no accelerator"
    assert measured.sessions_held >= 1, "not even one session was served in time"
