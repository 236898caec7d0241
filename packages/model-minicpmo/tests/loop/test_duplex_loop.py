"""The whole loop against the recorded runs: a session is told each second, and says through all four stages what was recorded.

The session is the model's own; its work is done at once, by the stages' own workers. The language model under the thinker is
transformers' own here; on vLLM the same is shown in the tree's `tests/minicpmo`. Into a unit's orders are put the recorded draws
and, since a session has one for all, the recorded number of slices; everything else is the session's.
"""

from __future__ import annotations

import base64
import itertools
import wave
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from duplex_core import model as m
from duplex_core.fence import Fence
from duplex_core.spec import SessionContext
from duplex_core.stages import StageRequest
from duplex_core.torch_tensors import as_torch
from model_minicpmo.gpu.checkpoint import open_checkpoint
from model_minicpmo.gpu.talker import Talker, Utterance, unit_limits
from model_minicpmo.gpu.talker_model import load_talker_model
from model_minicpmo.payloads import Codes, Orders, Said, Sensed, Unit
from model_minicpmo.testing.played import SPEC, RecordedHost, largest
from model_minicpmo.testing.recorded import PROMPT, WINDOWS, Recording, is_forced, is_interruption, prefix

pytestmark = pytest.mark.engines

RUNS = ("duplex_greedy", "duplex_sampled", "duplex_greedy_release", *WINDOWS, "duplex_vision")
EMBEDDINGS, HIDDEN, SAMPLES = 1e-5, 5e-5, 1e-3
UNIT_BYTES = 32_000
CHOSEN = (
    "greedy",
    "window",
    "high_tokens",
    "low_tokens",
    "context_units",
    "previous_tokens",
    "char_limit",
    "interruption",
)
"""What of a recording's options a session is told."""
SERIAL = itertools.count()

Play = Callable[..., "Played"]


class Played(Recording):
    """A session that is told a recorded run, second by second."""

    def __init__(self, goldens: Path, name: str, host: RecordedHost, **options: Any) -> None:
        super().__init__(goldens, name)
        self.host = host
        self.session_id = f"{name}-{next(SERIAL)}"
        self.ordered: Orders | None = None
        self._inputs = goldens / "inputs"
        self._fence = Fence(session_id=self.session_id)
        self._playing: dict[str, Any] = {}
        with wave.open(str(self._inputs / ("long.wav" if name in WINDOWS else "user.wav"))) as file:
            self._pcm = file.readframes(file.getnframes())
        config = msgspec.structs.replace(SPEC.session_config(host.settings), options=self._options() | options)
        self._session = SPEC.create_session(
            SessionContext(session_id=self.session_id, config=config, deploy=host.settings, checkpoint=host.checkpoint)
        )
        self._tell(m.Configured(config=config, fence=self._fence))
        # The prompt goes to the stages with the first sound.
        self._tell(m.AudioArrived(pcm=b"", start_ms=0.0, fence=self._fence))
        self.language = host.languages[-1]
        host.passed.clear()

    def second(self, unit: dict[str, Any], *, interrupted: bool = False) -> list[Any]:
        """Tell the session a second of the recording, after an interruption where there was one; what it decided."""
        self._playing, self.ordered = unit, None
        number = unit["unit"]
        told = []
        if interrupted or is_interruption(unit):
            self._fence = self._fence.next_epoch()
            told += self._tell(m.Interrupted(fence=self._fence, response_id=None, heard_ms=0.0))
        for picture in unit.get("frames", ()):
            data = (self._inputs / picture).read_bytes()
            told += self._tell(m.ImageArrived(data=data, at_ms=1000.0 * number, fence=self._fence))
        pcm = self._pcm[number * UNIT_BYTES : (number + 1) * UNIT_BYTES]
        return told + self._tell(m.AudioArrived(pcm=pcm, start_ms=1000.0 * number, fence=self._fence))

    def _options(self) -> dict[str, Any]:
        reference = (self._inputs / "reference_voice.wav").read_bytes()
        return {
            "system_prompt": PROMPT,
            "reference_audio": base64.b64encode(reference).decode(),
            "forced_listen": self.run["capability"].get("force_listen_count", 0),
            "pictures_per_unit": 2,
            **{name: getattr(self.options, name) for name in CHOSEN},
        }

    def _tell(self, event: m.ModelInput) -> list[Any]:
        """Tell the session something, and all that comes of it from the stages."""
        decided: list[Any] = []
        inputs = [event]
        while inputs:
            for output in self._session.handle(inputs.pop(0), 0.0):
                if isinstance(output, m.Submit):
                    inputs += self.host.work(self._as_recorded(output.request))
                elif not isinstance(output, m.WakeAt):
                    decided.append(output)
                if isinstance(output, m.BeginTurn):
                    self._fence = output.fence
        return decided

    def _as_recorded(self, request: StageRequest) -> StageRequest:
        unit = request.payload
        if not isinstance(unit, Unit):
            return request
        self.ordered = unit.orders
        orders = msgspec.structs.replace(unit.orders, draws=self.orders(self._playing).draws)
        slices = self._playing["max_slice_nums"]
        return msgspec.structs.replace(request, payload=msgspec.structs.replace(unit, orders=orders, max_slices=slices))


class Compared:
    """What passed between the stages, against what was recorded; `counts` has how much of each kind was compared."""

    def __init__(self, played: Played, talker: Any) -> None:
        self.counts: Counter[str] = Counter()
        self._played = played
        self._talker = talker

    def unit(self, unit: dict[str, Any]) -> None:
        """Compare one unit, and forget what passed."""
        assert self._played.ordered is not None
        forced = is_forced(unit)
        assert (self._played.ordered.forced, self._played.ordered.ends_turn) == (forced, is_interruption(unit))
        if not forced:
            logits = torch.stack(self._played.language.logits)
            self._close(unit, "llm_logits_raw", logits, HIDDEN, rows=True)
        for payload in self._played.host.passed:
            match payload:
                case Sensed(audio=audio):
                    self._close(unit, "audio_embeds", as_torch(audio), EMBEDDINGS)
                case Said(abandoned=False):
                    self._said(unit, payload)
                case Codes(abandoned=False):
                    assert list(payload.codes) == unit["tts"]["returned"], f"unit {unit['unit']}"
                    self.counts["codes"] += 1
                case _:
                    pass
        self._played.host.passed.clear()

    def wave(self, unit: dict[str, Any], pcm: bytes) -> None:
        """Compare a unit's sound."""
        ours = torch.from_numpy(np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768.0)
        self._close(unit, "wav", ours, SAMPLES)

    def all(self) -> None:
        """Check that nothing of what was recorded was left out."""
        kinds = ("audio_embeds", "llm_logits_raw", "llm_hidden", "tts_ids_in", "tts_condition", "wav")
        recorded = {kind: sum(name.endswith("." + kind) for name in self._played.tensors) for kind in kinds}
        assert {kind: self.counts[kind] for kind in kinds} == recorded
        assert self.counts["codes"] == sum(bool(unit.get("tts")) for unit in self._played.units)

    def _said(self, unit: dict[str, Any], said: Said) -> None:
        assert said.hidden is not None
        ids, hidden = torch.tensor(said.ids), as_torch(said.hidden)
        self._close(unit, "tts_ids_in", ids, 0.0)
        self._close(unit, "llm_hidden", hidden, HIDDEN)
        with torch.inference_mode():
            condition = self._talker.condition(ids, hidden, text_ends=False)
        self._close(unit, "tts_condition", condition, HIDDEN)

    def _close(
        self, unit: dict[str, Any], kind: str, ours: torch.Tensor, tolerance: float, *, rows: bool = False
    ) -> None:
        recorded = self._played.tensors.get(prefix(unit) + kind)
        if recorded is None:
            return
        if kind == "wav":
            recorded = recorded.float() / 32768.0
        if rows:  # a unit's last step, whose token is given, was not recorded
            ours = ours[: len(recorded)]
        assert largest(ours, recorded) <= tolerance, f"unit {unit['unit']}: {kind}"
        self.counts[kind] += 1


@pytest.fixture(scope="module")
def host(goldens: Path) -> Iterator[RecordedHost]:
    torch.set_num_threads(1)
    running = RecordedHost(goldens)
    yield running
    running.close()


@pytest.fixture(scope="module")
def talker(goldens: Path) -> Any:
    return load_talker_model(open_checkpoint(goldens / "checkpoint"))


@pytest.fixture
def play(goldens: Path, host: RecordedHost) -> Iterator[Play]:
    playing: list[Played] = []

    def begin(name: str, **options: Any) -> Played:
        playing.append(Played(goldens, name, host, **options))
        return playing[-1]

    yield begin
    for each in playing:
        host.release(each.session_id)


def text_of(decided: list[Any]) -> str:
    return "".join(each.text for each in decided if isinstance(each, m.Speak))


def sound_of(decided: list[Any]) -> bytes:
    return b"".join(each.pcm for each in decided if isinstance(each, m.Speak))


def has(decided: list[Any], kind: type[Any]) -> bool:
    return any(isinstance(each, kind) for each in decided)


@pytest.mark.parametrize("name", RUNS)
def test_a_session_decides_and_sounds_as_recorded(name: str, play: Play, talker: Any) -> None:
    played = play(name)
    compared = Compared(played, talker)
    for unit in played.units:
        decided = played.second(unit)
        if unit.get("break_event"):
            assert [type(each) for each in decided] == [m.Listen]
            assert not played.host.passed, "a unit that is dropped is given to no stage"
            continue
        compared.unit(unit)
        if unit["is_listen"]:
            assert [type(each) for each in decided] == [m.Listen], unit["unit"]
            continue
        assert {type(each) for each in decided} <= {m.BeginTurn, m.Speak, m.EndTurn}, decided
        assert text_of(decided) == unit["text"]
        assert has(decided, m.BeginTurn) == (not unit["turn_open_before"])
        assert has(decided, m.EndTurn) == unit["end_of_turn"]
        compared.wave(unit, sound_of(decided))
    compared.all()


def test_by_default_an_answer_after_an_interruption_is_spoken_anew(play: Play, talker: Any) -> None:
    """The recorded words, and for them the codes of a talker that has said nothing before."""
    played = play("duplex_sampled", interruption="close")
    before, interrupted, after = played.units[:5], played.units[5], played.units[6]
    assert interrupted["force_listen_override"]
    assert after["tts"]["position_start"] > 0
    for unit in (*before, interrupted):
        played.second(unit)
    played.host.passed.clear()
    assert text_of(played.second(after)) == after["text"]
    (said,) = (each for each in played.host.passed if isinstance(each, Said))
    assert said.hidden is not None
    (codes,) = (each.codes for each in played.host.passed if isinstance(each, Codes))
    anew = Utterance(
        slot=0,
        ids=torch.tensor(said.ids),
        hidden=as_torch(said.hidden),
        limits=unit_limits(opens_turn=True, closes_turn=False),
        uniform=iter(after["tts"]["u"]).__next__,
    )
    assert codes == Talker(talker, slots=1).say([anew])[0].codes
    assert list(codes) != after["tts"]["returned"]


def test_a_dropped_unit_leaves_the_model_s_turn_as_it_was(play: Play) -> None:
    """Interrupted in an open turn: what follows is what follows without that second, and for the engine it is another answer."""
    dropping, without = (play("duplex_greedy", interruption="drop_unit") for _ in range(2))
    *before, dropped = dropping.units[:6]
    assert dropped["turn_open_before"]
    for unit in before:
        for each in (dropping, without):
            each.second(unit)
    dropping.host.passed.clear()
    assert [type(each) for each in dropping.second(dropped, interrupted=True)] == [m.Listen]
    assert not dropping.host.passed
    ended = False
    for number, unit in enumerate(dropping.units[6:9]):
        ours, theirs = dropping.second(unit), without.second(unit)
        assert (text_of(ours), sound_of(ours)) == (text_of(theirs), sound_of(theirs))
        assert has(ours, m.EndTurn) == has(theirs, m.EndTurn)
        assert has(ours, m.BeginTurn) == (has(theirs, m.BeginTurn) or number == 0)
        if number == 0:
            assert not has(theirs, m.BeginTurn), "the model's turn is open"
            assert text_of(ours)
        ended = ended or has(ours, m.EndTurn)
    assert ended, "the turn that was gone on with ends, once"


def test_two_conversations_side_by_side_are_each_as_alone(play: Play) -> None:
    greedy, seeing = play("duplex_greedy"), play("duplex_vision")
    for one, other in zip(greedy.units, seeing.units, strict=False):
        for played, unit in ((greedy, one), (seeing, other)):
            decided = played.second(unit)
            assert has(decided, m.Listen) == unit["is_listen"]
            assert text_of(decided) == unit["text"]
