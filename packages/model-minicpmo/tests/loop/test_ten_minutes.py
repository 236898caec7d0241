"""Ten minutes of a session, in virtual time, while its window moves: nothing grows, nothing drifts, every question is answered.

All stages are real but for vLLM, in whose place transformers runs the language model; the checkpoint is tiny and behaves. The
client speaks for two seconds every fifteen.
"""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from duplex_core.events import ErrorEvent, OutputAudioDelta, ResponseDone, ResponseListen, ResponseStatus
from duplex_core.items import item_text
from duplex_core.spec import Checkpoint
from duplex_core.stages import StageOutput
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.pipelines import Batched, Programmed
from duplex_core.testing.speech import burst, silence
from duplex_core.testing.stages import StageHost
from model_minicpmo.gpu.audio import AudioStream
from model_minicpmo.gpu.thinker import ThinkerSession
from model_minicpmo.payloads import SENSES, THINKER, Decided
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.behaviour import Behaviour
from model_minicpmo.testing.over_transformers import OverTransformers, language_model
from model_minicpmo.testing.talking import write_talking_checkpoint

pytestmark = [pytest.mark.engines, pytest.mark.slow]

(SPEC,) = duplex_register_models()
RATE_HZ = 16_000
MINUTES = 10
EVERY_S = 15
QUESTION = burst(2000.0, RATE_HZ) + silence(1000.0 * (EVERY_S - 2), RATE_HZ)
ENCODER_POSITIONS = 1500
MEL_S = 30
GROWTH_BYTES = 24 * 2**20
"""What the process may grow by from the second minute on: the allocator's own moods."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_talking_checkpoint(tmp_path_factory.mktemp("talking"))


class Watched:
    """One long session, and what of its stages may not grow."""

    def __init__(self, folder: Path, **options: Any) -> None:
        settings = MiniCPMOSettings(flow_steps=2, dtype="float32")
        checkpoint = Checkpoint(name="tiny", path=str(folder))
        model = language_model(folder)
        self.host = StageHost(
            SPEC.stage_plan(checkpoint, settings), lambda program, session: OverTransformers(model, session)
        )
        config = SPEC.session_config(settings)
        self.driver = ConversationDriver(
            SPEC,
            deploy=settings,
            config=msgspec.structs.replace(config, options={"greedy": True, "seed": 1, **options}),
            checkpoint=checkpoint,
            host=self.host,
        )
        self.decided: list[Decided] = []
        self.answers: list[tuple[float, str, int]] = []
        """Of each question: seconds from its beginning to the answer's first sound, the answer, and its samples."""
        self.listened = 0
        self.encoded: list[int] = []

    def ask(self) -> None:
        """Speak, be silent until the answer has sounded, and forget what was told meanwhile."""
        began_ms = self.driver.now_ms
        first_ms: list[float] = []

        def watch(event: Any) -> None:
            if isinstance(event, OutputAudioDelta) and not first_ms:
                first_ms.append(self.driver.now_ms)

        self.driver.watch = watch
        self.driver.stream(QUESTION, chunk_ms=500.0)
        self.driver.advance(100.0)  # for the decision on the last second
        self.driver.watch = None
        assert not self.driver.all_of(ErrorEvent)
        (done,) = self.driver.all_of(ResponseDone)
        assert done.response.status is ResponseStatus.COMPLETED
        text = "".join(item_text(item) for item in done.response.output)
        self.answers.append(((first_ms[0] - began_ms) / 1000, text, len(self.driver.audio()) // 2))
        self.listened += len(self.driver.all_of(ResponseListen))
        outputs = [told.event for told in self.driver.told if isinstance(told.event, StageOutput)]
        self.decided += [each.payload for each in outputs if isinstance(each.payload, Decided)]
        self.encoded.append(self.stream.encoded)
        self.driver.events.clear()
        self.driver.told.clear()
        self.host.worked.clear()

    @property
    def stream(self) -> AudioStream:
        """What the senses keep of the session's sound."""
        stage = self.host.stage(SENSES)
        assert isinstance(stage, Batched)
        worker: Any = stage._worker
        found: AudioStream = worker._streams[stage._slots["sess_1"]]
        return found

    @property
    def thinking(self) -> tuple[ThinkerSession, OverTransformers]:
        """What the thinker keeps of the session, and the language model under it."""
        stage = self.host.stage(THINKER)
        assert isinstance(stage, Programmed)
        engine = stage._sessions["sess_1"]
        assert isinstance(engine, OverTransformers)
        return engine.program, engine


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"window": "context"}, 930),
        ({"window": "basic", "high_tokens": 500, "low_tokens": 350}, 520),
    ],
    ids=["context", "basic"],
)
def test_nothing_grows_and_nothing_drifts(
    request: pytest.FixtureRequest, folder: Path, options: dict[str, Any], most: int
) -> None:
    watched = Watched(folder, **options)
    request.addfinalizer(watched.host.close)
    before = 0
    for number in range(MINUTES * 60 // EVERY_S):
        watched.ask()
        if number == 2 * 60 // EVERY_S:
            before = resident()
    grown = resident() - before

    assert watched.driver.now_ms >= MINUTES * 60_000.0
    first, *rest = watched.answers
    assert first[1] == "".join(Behaviour().units)
    assert all(each == first for each in rest), "answers came later, or became other ones"
    assert [each.number for each in watched.decided] == list(range(MINUTES * 60))
    assert watched.listened == MINUTES * 60 - len(Behaviour().units) * len(watched.answers)

    assert max(each.context for each in watched.decided) <= most
    moves = {each.dropped_units for each in watched.decided}
    assert len(moves) > 20, "the window was to move often"
    thinker, engine = watched.thinking
    assert engine.cache.get_seq_length() <= most
    assert len(thinker._units) <= (25 if options["window"] == "context" else 40)
    assert len(thinker._history) <= 512
    assert len(thinker._previous) <= 500

    assert max(watched.encoded) < ENCODER_POSITIONS
    assert sum(after < one for one, after in zip(watched.encoded, watched.encoded[1:], strict=False)) >= 20  # cleared
    assert held(watched.stream.mel) <= MEL_S * RATE_HZ
    assert len(watched.stream.waiting) < RATE_HZ
    assert grown < GROWTH_BYTES, f"the process grew by {grown / 2**20:.0f} MiB in {MINUTES - 2} minutes"


def held(kept: Any) -> int:
    """Numbers in all tensors of a value, kept alive by views or not."""
    tensors = [
        value for field in dataclasses.fields(kept) if isinstance(value := getattr(kept, field.name), torch.Tensor)
    ]
    return sum(each.untyped_storage().nbytes() // each.element_size() for each in tensors)
