"""The demo's parts: who says what when, how its figures come about, and that it fails when it should."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from demo import held, report
from demo.held import Held, Missing, Script, TrueTimes, Turn, hold
from demo.server import Cores, Running, ServerFailed, serving
from demo.user import LEVEL_DB, Line, Microphone, Utterance, line, spoken
from duplex_client import HeardAnswer, ResponseHandle, SentChunk
from duplex_client.audio import SESSION_RATE_HZ
from duplex_client.latency import StopLatency, TurnLatency
from duplex_client.pacing import paced_chunks
from duplex_client.playback import Span
from duplex_core.commands import ConversationItemRetrieve, InputAudioBufferAppend, SessionClose, SessionUpdate
from duplex_core.config import SessionConfig, Transcription
from duplex_core.events import (
    InputCommitted,
    ItemRetrieved,
    OutputBufferCleared,
    ResponseCreated,
    ResponseStatus,
    SessionUpdated,
    TranscriptionCompleted,
    TranscriptUsage,
)
from duplex_core.items import MessageItem, OutputAudio, Role
from model_cascade.parts.voices import load_voice
from tests.clients.scripted import RATE_HZ, Peer, audio, begin, closed, created, done, response, scripted, tone, words
from tests.clients.virtual import SelfWindingClock

ROOT = Path(__file__).resolve().parents[2]


def a_line(text: str = "hello", ms: float = 100.0) -> Line:
    return Line(name="test", text=text, pcm=tone(ms, 9), voiced_ms=(0.0, ms))


def said(begins_ms: float, ms: float = 100.0) -> Utterance:
    utterance = Utterance(a_line(ms=ms), 0.0)
    utterance.place(begins_ms)
    return utterance


# -- the user ----------------------------------------------------------------------------------------------------------


def test_a_line_is_cut_to_its_sound_and_its_marks_favour_nobody() -> None:
    loud, soft, softer = tone(200, 16000), tone(60, 300), tone(30, 30)  # 0, -34.5 and -54.5 dB
    made = line("n", "t", softer + soft + loud + soft + softer, RATE_HZ)
    assert made.pcm == soft + loud + soft
    assert made.voiced_ms == (0.0, 260.0), "what is soft counts where speech begins, and does not where it ends"


def test_silence_is_no_line() -> None:
    with pytest.raises(ValueError, match="no sound in “t”"):
        line("n", "t", bytes(9600), RATE_HZ)


def test_the_second_voice_speaks_the_lines() -> None:
    (made,) = spoken([("question", "What is the capital of France?")])
    assert 1000.0 < made.voiced_ms[1] < 3000.0
    assert np.abs(np.frombuffer(made.pcm, "<i2")).max() > 3000


async def test_the_microphone_knows_when_each_line_is_spoken() -> None:
    microphone, clock, sent = Microphone(), SelfWindingClock(5000.0), list[SentChunk]()
    source = paced_chunks(microphone.pieces(), rate_hz=SESSION_RATE_HZ, chunk_ms=20, clock=clock, paced=True)

    async def go_on(chunks: int) -> None:
        for _ in range(chunks):
            sent.append(await anext(source))
            microphone.sent(sent[-1])

    await go_on(3)
    first = asyncio.ensure_future(microphone.say(a_line("one", 50.0)))
    second = asyncio.ensure_future(microphone.say(a_line("two", 20.0)))
    await asyncio.sleep(0)
    await go_on(8)
    one, two = await first, await second
    assert [chunk.pcm == bytes(960) for chunk in sent] == [True] * 3 + [False] * 4 + [True] * 4
    assert (one.begins_ms, one.ends_ms) == (sent[3].starts_at_ms, sent[3].starts_at_ms + 50.0) == (5060.0, 5110.0)
    assert (two.begins_ms, two.ends_ms) == (5120.0, 5140.0)
    await source.aclose()


# -- the figures -------------------------------------------------------------------------------------------------------


def test_shown_latencies_count_from_the_script() -> None:
    times = TrueTimes()
    times.began(said(1000.0), interrupts=False)
    assert times.silenced(heard("resp_0", 500.0, 550.0, cut=True)) is None
    assert times.follow(audio(tone(5)), 1090.0) is None, "audio of an answer to something else"
    assert times.follow(audio(tone(5)), 1700.0) == TurnLatency(response_id="resp_1", ms=600.0)
    assert times.follow(audio(tone(5)), 1720.0) is None
    times.began(said(2000.0), interrupts=True)
    assert times.silenced(heard("resp_1", 1700.0, 420.0, cut=True)) == StopLatency(response_id="resp_1", ms=120.0)
    assert times.silenced(heard("resp_1", 1700.0, 430.0, cut=True)) is None


def answer(response_id: str, first_audio_at_ms: float, said_text: str) -> ResponseHandle:
    handle = ResponseHandle(ResponseCreated(response=response(response_id)), first_audio_at_ms - 10.0)
    handle.absorb(audio(tone(5), response_id), first_audio_at_ms)
    handle.absorb(words(said_text, response_id), first_audio_at_ms)
    handle.absorb(done(response_id), first_audio_at_ms)
    return handle


def heard(response_id: str, starts_at_ms: float, ms: float, cut: bool) -> HeardAnswer:
    span = Span(response_id=response_id, starts_at_ms=starts_at_ms, offset_ms=0.0, pcm=tone(ms), rate_hz=RATE_HZ)
    cut_at_ms = starts_at_ms + ms if cut else None
    return HeardAnswer(
        response_id=response_id, item_id="i", spans=(span,), played_ms=ms, received_ms=900.0, cut_at_ms=cut_at_ms
    )


def conversation() -> Held:
    config = SessionConfig(model="scripted")
    first = Turn(utterance=said(0.0), answer=answer("a", 900.0, "One."), transcript="hello")
    first.heard = heard("a", 900.0, 500.0, cut=False)
    second = Turn(utterance=said(2000.0), answer=answer("b", 2700.0, "Two and much more."), kept="Two")
    second.heard = heard("b", 2700.0, 500.0, cut=True)
    third = Turn(utterance=said(3050.0), answer=answer("c", 4950.0, "Three."), interrupts=second)
    person = Turn(utterance=said(9000.0), answer=answer("d", 9500.0, "Four."), recorded=True)
    return Held(
        session=created(config).session, turns=[first, second, third, person], wavs={"a": Path("x/answer-1.wav")}
    )


RUNNING = Running(url="u", model="m", cores=Cores(server=frozenset({1}), client=frozenset({0})), start_s=1.0)


def test_figures_follow_from_the_facts() -> None:
    facts = report.summary(conversation(), RUNNING)
    assert [turn["end_of_speech_to_first_audio_s"] for turn in facts["turns"]] == [0.8, 0.6, 1.8, 0.4]
    assert [turn["interruption_to_silence_s"] for turn in facts["turns"]] == [None, 0.15, None, None]
    assert facts["latency"] == {
        "end_of_speech_to_first_audio_median": {"value_s": 0.8, "target_s": 1.0, "met": True},
        "interruption_to_silence": {"value_s": 0.15, "target_s": 0.35, "met": True},
        "end_of_recorded_speech_to_first_audio_median": {"value_s": 0.4, "target_s": 1.0, "met": True},
    }
    assert facts["hangover_s"] == 0.5
    assert facts["machine"]["server_on_one_core"] is True
    assert facts["turns"][0]["wav"] == "answer-1.wav"
    assert facts["turns"][1]["answer_cut"] is True
    assert json.loads(json.dumps(facts)) == facts


def test_a_missed_target_is_called_missed_and_an_absent_figure_absent() -> None:
    assert report.against(1.0004, 1.0)["met"] is False
    assert report.against(1.0, 1.0)["met"] is True
    assert report.against(None, 1.0) == {"value_s": None, "target_s": 1.0, "met": None}


def test_the_table_shows_it_all() -> None:
    facts = report.summary(conversation(), RUNNING)
    facts["latency"]["interruption_to_silence"] = report.against(0.5, 0.35)
    shown = io.StringIO()
    report.show(facts, Console(file=shown, width=160))
    text = shown.getvalue()
    for part in (
        "Two … (cut after 0.50 s)",
        "0.80 s",
        "≤ 1.00 s",
        "met",
        "MISSED",
        "the server has one core (number 1)",
    ):
        assert part in text
    assert "0.50 s of silence that end a turn are included" in text


# -- the conversation --------------------------------------------------------------------------------------------------


class Partner:
    """Plays the server's part: answers each line when it has been said, and stops when it is talked over."""

    def __init__(self, peer: Peer, *, answer_ms: float = 6000.0, yields: bool = True) -> None:
        self.peer, self.answer_ms, self.yields = peer, answer_ms, yields
        self.turns = 0
        self.speaking = False

    async def run(self) -> None:
        update = await self.peer.expect(SessionUpdate)
        assert msgspec.to_builtins(update.session)["audio"] == {"input": {"transcription": {}}}
        config = SessionConfig(model="scripted", transcription=Transcription())
        await self.peer.send(SessionUpdated(session=created(config).session))
        while True:
            command = await self.peer.receive()
            if isinstance(command, InputAudioBufferAppend):
                await self.hear(any(command.audio))
            elif isinstance(command, ConversationItemRetrieve):
                part = OutputAudio(transcript="what was heard")
                item = MessageItem(role=Role.ASSISTANT, content=(part,), id=command.item_id)
                await self.peer.send(ItemRetrieved(item=item))
            elif isinstance(command, SessionClose):
                await self.peer.send(closed())
                return

    async def hear(self, voice: bool) -> None:
        if voice and not self.speaking and self.turns == 2 and self.yields:
            await self.peer.send(
                OutputBufferCleared(response_id="resp_2", epoch=1, audio_end_ms=500),
                done("resp_2", ResponseStatus.CANCELLED),
            )
        if self.speaking and not voice:
            await self.respond()
        self.speaking = voice

    async def respond(self) -> None:
        self.turns += 1
        name, item = f"resp_{self.turns}", f"item_{self.turns}"
        usage = TranscriptUsage(seconds=1.0)
        whole = TranscriptionCompleted(item_id=item, content_index=0, transcript=f"line {self.turns}", usage=usage)
        long = self.turns == 2
        sound = audio(tone(self.answer_ms if long else 60.0, self.turns), name)
        await self.peer.send(InputCommitted(item_id=item), whole, *begin(name), words("So.", name), sound)
        if not long or not self.yields:
            await self.peer.send(done(name))


def lines() -> Script:
    return Script(
        question=a_line("question"), provocations=[a_line("provocation")], interruption=a_line("interruption")
    )


async def converse(tmp_path: Path, **partner: float | bool) -> Held:
    async def script(peer: Peer) -> None:
        await Partner(peer, **partner).run()  # type: ignore[arg-type]

    async with scripted(script) as server:
        return await hold(server.url, lines(), out=tmp_path, console=Console(file=io.StringIO()))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "INTERRUPT_AFTER_MS", 300.0)
    monkeypatch.setattr(held, "PAUSE_MS", 20.0)
    monkeypatch.setattr(held, "ANSWER_S", 2.0)


@pytest.mark.usefixtures("quick")
async def test_the_script_asks_listens_interrupts_and_is_answered(tmp_path: Path) -> None:
    facts = await converse(tmp_path)
    assert [turn.transcript for turn in facts.turns] == ["line 1", "line 2", "line 3"]
    first, second, third = facts.turns
    assert third.interrupts is second
    assert [turn.kept for turn in facts.turns] == ["what was heard"] * 3, "each answer is looked up, not only a cut one"
    assert first.heard is not None
    assert first.heard.cut_at_ms is None
    assert second.heard is not None
    assert second.heard.cut_at_ms is not None
    assert 300.0 <= second.heard.played_ms < 1500.0
    assert names(tmp_path) == ["answer-1.wav", "answer-2.wav", "answer-3.wav", "conversation.wav"]
    latencies = [report.answer_latency_s(turn) for turn in facts.turns]
    assert all(value is not None and 0.0 < value < 1.0 for value in latencies), latencies


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("partner", [{"yields": False, "answer_ms": 900.0}, {"answer_ms": 100.0, "yields": False}])
async def test_an_answer_that_is_not_given_up_is_no_interruption(tmp_path: Path, partner: dict[str, float]) -> None:
    with pytest.raises(Missing, match="no answer was interrupted"):
        await converse(tmp_path, **partner)


@pytest.mark.usefixtures("quick")
async def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(SessionUpdate)
        await peer.send(SessionUpdated(session=created().session))
        await peer.hang_up()

    async with scripted(script) as server:
        with pytest.raises(Missing, match="no answer to “question” came within 2 s"):
            await hold(server.url, lines(), out=tmp_path, console=Console(file=io.StringIO()))


# -- the server --------------------------------------------------------------------------------------------------------


async def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"ended with status 1 at its start[\s\S]*no-such-model"):
        async with serving(tmp_path / "server.log", ["no-such-model"]):
            pass


def test_the_demo_that_cannot_show_everything_ends_with_one_and_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo", "--out", str(tmp_path)]
    (tmp_path / "summary.json").write_text("of an earlier run")
    ended = subprocess.run(
        [*command, "--serve", "no-such-model"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "The demo failed: the server ended with status 1" in ended.stdout
    assert not (tmp_path / "summary.json").exists()


def test_ctrl_c_ends_the_demo_with_one_line_and_leaves_no_server_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo", "--out", str(tmp_path)]
    demo = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with demo:
        assert demo.stdout is not None
        assert "Starting duplex-server serve" in demo.stdout.readline()
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does it: to the demo and to its server
        out, err = demo.communicate(timeout=60)
    assert (demo.returncode, out, err.strip()) == (130, "", "The demo was interrupted.")
    with pytest.raises(ProcessLookupError):
        os.killpg(demo.pid, 0)


def test_the_users_lines_are_as_loud_as_the_models_voice() -> None:
    """As far as 3 dB: louder by more than that and the recording of the conversation is unpleasant."""
    (made,) = spoken([("question", "What is the capital of France?")])
    answer = load_voice("joe").synthesize("The capital of France is Paris.").tobytes()
    assert abs(level_db(made.pcm) - LEVEL_DB) < 0.5
    assert abs(level_db(answer) - LEVEL_DB) < 3.0


def level_db(pcm: bytes) -> float:
    """How loud the voiced frames are, in dB below full scale."""
    samples = np.frombuffer(pcm, "<i2").astype(float) / 32768.0
    powers = np.mean(samples[: len(samples) // 480 * 480].reshape(-1, 480) ** 2, axis=1)
    return float(10.0 * np.log10(np.mean(powers[powers >= powers.max() * 1e-3])))
