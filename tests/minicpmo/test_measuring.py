"""That the hardware suite's figures come about: its measurements, taken of the tiny checkpoint on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duplex_core.workers import BatchedWorker
from model_minicpmo.gpu.senses_worker import SensesWorker
from model_minicpmo.gpu.talker_worker import TalkerWorker
from model_minicpmo.gpu.thinker import Thinker
from model_minicpmo.gpu.voice_worker import VoiceWorker
from model_minicpmo.testing.sizes import TINY
from tests.minicpmo import measuring
from tests.minicpmo.measuring import Spread, latencies_of, report, spread
from tests.minicpmo.served import Conversation, write_random
from tests.support.serving import Served

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.asyncio(loop_scope="session")
async def test_everything_is_measured(served: Served) -> None:
    before = await measuring.devices()
    measured = await report(served, weights="random", profile="cpu", start_s=1.0, before=before, most=2, seconds=6)
    told = json.loads(msgspec.json.encode(measured))
    assert [each["sessions"] for each in told["loads"]] in ([1], [1, 2])  # a busy machine may not hold two
    alone = told["loads"][0]
    assert alone["units"] == 6
    assert alone["unit_latency_s"]["count"] + alone["missed_units"] == 6
    assert 0.0 < alone["unit_latency_s"]["p50"] <= alone["unit_latency_s"]["most"] < 1.0
    assert alone["unit_to_first_audio_s"]["p50"] > 0.0
    assert 0.0 < told["real_time_factor"] < 5.0
    assert told["sessions_held"] == max((each["sessions"] for each in told["loads"] if each["held"]), default=0)
    assert any("real weights" in reason for reason in told["not_run"])
    assert bool(told["devices"]) == bool(before)


def test_random_weights_are_read_by_every_stage(tmp_path: Path) -> None:
    """What the hardware suite makes at the published sizes, at tiny ones; the thinker's stage is shown to read it elsewhere."""
    folder = str(write_random(tmp_path, TINY))
    workers: list[BatchedWorker] = [SensesWorker(checkpoint=folder), TalkerWorker(checkpoint=folder)]
    for worker in (*workers, VoiceWorker(checkpoint=folder, flow_steps=1)):
        worker.start(1, "cpu")
        worker.reset(0)
        worker.close()
    thinker = Thinker(checkpoint=folder, engine={"max_model_len": 512})
    assert thinker.settings().model == folder
    thinker.close()


def seen(*events: tuple[float, str]) -> Conversation:
    caller: Any = Conversation.__new__(Conversation)
    caller.seen = [(at_s, {"type": type_}) for at_s, type_ in events]
    return caller  # type: ignore[no-any-return]


def test_a_unit_s_latency_is_the_time_to_its_decision() -> None:
    text, audio = measuring.TEXT, measuring.AUDIO
    caller = seen(
        (1.2, "response.listen"), (2.3, text), (3.2, text), (3.6, audio), (4.1, audio), (5.3, audio), (6.5, text)
    )
    listened, worded, again, undecided, without_words = latencies_of(caller, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert listened == pytest.approx(0.2)
    assert worded == pytest.approx(0.3)
    assert again == pytest.approx(0.2)
    assert undecided == pytest.approx(1.3)  # the sound at 4.1 is that of the words before, and decides nothing
    assert without_words == pytest.approx(0.3)


def test_a_spread_has_the_median_and_the_worst() -> None:
    assert spread([]) is None
    assert spread([0.1 * number for number in range(1, 21)]) == Spread(p50=1.0, p95=1.9, most=2.0, count=20)
