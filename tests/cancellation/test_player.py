"""The client's player and the command `talk`, cancelled at each suspension: client, server and engine are whole after it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from duplex_client import BaseDuplexClient, HeardAnswer, Player, ResponseHandle
from duplex_client.audio import load_pcm, write_wav
from duplex_client.talk import TalkOptions, talk
from duplex_core.events import OutputAudioDelta
from duplex_core.testing.speech import burst
from duplex_server.engine.lease import Lifetime
from tests.cancellation.test_clients import GRACE_S, World, turn
from tests.support.cancellation import Cut, everywhere
from tests.support.serving import serving


class Ears:
    """A sink that keeps what it was handed."""

    def __init__(self) -> None:
        self.heard_answers: list[HeardAnswer] = []

    def heard(self, answer: HeardAnswer) -> None:
        self.heard_answers.append(answer)


@pytest.fixture(params=["inline", "socket"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with serving(max_sessions=1, lifetime=Lifetime(disconnect_grace_s=GRACE_S)) as served:
        world = World(served, request.param)
        await world.whole()
        yield world


async def asked(client: BaseDuplexClient) -> ResponseHandle:
    """An answer of 240 ms of sound, which begins."""
    await client.say_text("hmhmhm")
    answer = await client.create_response()
    await client.wait_for(OutputAudioDelta)
    return answer


async def test_waiting_for_the_player(world: World, subtests: pytest.Subtests) -> None:
    """Who is cancelled while it waits stops nothing: the answer is heard to its end, once, and others that wait are told."""

    async def scene(cut: Cut[Any], what: str) -> None:
        client = await world.connected()
        ears = Ears()
        async with Player(client, ack_every_ms=40.0, sinks=[ears]) as player:
            answer = await asked(client)
            waits = player.idle() if what == "idle" else player.reached(answer.response_id, 60.0)
            await cut(waits)
            await player.reached(answer.response_id, 120.0)  # it waits for as much of it as still comes
            await player.idle()
            assert player.playing() is None
        (heard,) = ears.heard_answers
        assert (heard.response_id, heard.cut_at_ms) == (answer.response_id, None)
        assert heard.played_ms == heard.received_ms > 200.0
        await turn(client)
        await client.close()
        await world.whole()

    for what in ("idle", "reached"):
        with subtests.test(what):
            assert await everywhere(lambda cut, what=what: scene(cut, what)) >= 1  # type: ignore[misc]


async def test_leaving_the_player_in_the_middle_of_an_answer(world: World) -> None:
    """However it is left, it lets go of the client, and the answer is handed on as far as it was heard."""

    async def scene(cut: Cut[Any]) -> None:
        client = await world.connected()
        ears = Ears()
        player = await Player(client, ack_every_ms=40.0, sinks=[ears]).__aenter__()
        answer = await asked(client)
        await player.reached(answer.response_id, 60.0)
        await cut(player.__aexit__(None, None, None))
        (heard,) = ears.heard_answers
        assert heard.response_id == answer.response_id
        assert heard.cut_at_ms is not None
        assert 60.0 <= heard.played_ms < heard.received_ms
        await turn(client)
        assert len(ears.heard_answers) == 1, "it does not listen any more"
        await client.close()
        await world.whole()

    assert await everywhere(scene) >= 1


async def test_a_conversation_with_a_player(world: World) -> None:
    """The whole of it, from the connecting to the last sample."""

    async def converse(ears: Ears) -> None:
        async with world.client() as client, Player(client, ack_every_ms=40.0, sinks=[ears]) as player:
            await client.update_session({"audio": {"input": {"turn_detection": None}}, "options": {"pace": 0.0}})
            answer = await asked(client)
            assert await player.reached(answer.response_id, 60.0)
            await player.idle()

    async def scene(cut: Cut[Any]) -> None:
        ears = Ears()
        await cut(converse(ears))
        assert len(ears.heard_answers) <= 1
        assert cut.reached or ears.heard_answers[0].cut_at_ms is None
        await world.whole()

    assert await everywhere(scene) >= 5


async def test_talking_from_the_command_line(tmp_path: Path) -> None:
    """Ctrl-C at any moment: nothing is left, and what was heard by then stands in the file."""
    said, told = tmp_path / "said.wav", tmp_path / "told.wav"
    write_wav(said, np.frombuffer(burst(120, 24_000), "<i2"), 24_000)
    async with serving(max_sessions=1, lifetime=Lifetime(disconnect_grace_s=GRACE_S)) as served:
        world = World(served, "socket")
        options = TalkOptions(url=served.http, wav=said, out=told)
        await talk(options, Console(file=io.StringIO()))  # the server's detector has its thread from the first audio on
        await world.whole()

        async def scene(cut: Cut[Any]) -> None:
            told.unlink(missing_ok=True)
            await cut(talk(options, Console(file=io.StringIO())))
            if not cut.reached:
                assert load_pcm(told)
            await world.whole()

        assert await everywhere(scene) >= 6
