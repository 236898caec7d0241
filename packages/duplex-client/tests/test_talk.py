"""The command line: what it says, writes and returns."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import re
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import soundfile
from rich.console import Console
from typer.testing import CliRunner

from duplex_client.audio import UnwritableAudio, write_wav
from duplex_client.changes import ConnectionChange, Resumed, ResyncRequired
from duplex_client.cli import app
from duplex_client.devices import Cursor
from duplex_client.errors import ConnectionClosed
from duplex_client.latency import InputLine, Latencies
from duplex_client.pacing import SentChunk
from duplex_client.playback import Span
from duplex_client.player import HeardAnswer
from duplex_client.talk import NoAnswer, TalkOptions, TalkState, talk
from duplex_client.view import ConversationView
from duplex_core.capabilities import TurnPolicy
from duplex_core.commands import InputAudioBufferAppend, SessionUpdate
from duplex_core.config import ServerVad, SessionConfig, Transcription
from duplex_core.errors import ErrorCode
from duplex_core.events import (
    CloseReason,
    Event,
    InputCommitted,
    OutputBufferCleared,
    OutputTranscriptDone,
    OverlapDecision,
    OverlapVerdict,
    ResponseDone,
    ResponseError,
    ResponseListen,
    ResponseStatus,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    StatusDetails,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptUsage,
)
from duplex_core.spec import ModelSpec
from duplex_core.testing.native import NATIVE
from duplex_core.testing.speech import burst
from tests.clients.scripted import RATE_HZ, Peer, audio, begin, closed, created, done, scripted, tone, words
from tests.support.serving import serving

STARTED = SpeechStarted(audio_start_ms=0, item_id="item_1")
STOPPED = SpeechStopped(audio_end_ms=100, item_id="item_1")
COMMITTED = InputCommitted(item_id="item_1")


async def configure(peer: Peer) -> None:
    update = await peer.expect(SessionUpdate)
    assert msgspec.to_builtins(update.session) == {"audio": {"input": {"transcription": {}}}}
    config = SessionConfig(model="scripted", transcription=Transcription())
    await peer.send(SessionUpdated(session=created(config).session))


async def answers(peer: Peer) -> None:
    """Take 200 ms of audio, of which 100 ms are the file and the rest is the silence after it; answer."""
    await configure(peer)
    heard = b""
    while len(heard) < len(tone(200)):
        heard += (await peer.expect(InputAudioBufferAppend)).audio
    assert heard == tone(100, 1000) + tone(100, 0)
    text = TranscriptionDelta(item_id="item_1", content_index=0, delta="what is")
    usage = TranscriptUsage(seconds=0.1)
    whole = TranscriptionCompleted(item_id="item_1", content_index=0, transcript="what is it", usage=usage)
    said = OutputTranscriptDone(
        response_id="resp_1", item_id="i", output_index=0, content_index=0, transcript="It is this."
    )
    await peer.send(STARTED, text, STOPPED, COMMITTED, whole)
    await peer.send(*begin(), words("It is"), audio(tone(60, 7)), said, done())
    await peer.hang_up()


async def mute(peer: Peer) -> None:
    await configure(peer)
    await peer.hang_up()


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "question.wav"
    write_wav(path, np.frombuffer(tone(100), dtype="<i2"), RATE_HZ)
    return path


@pytest.mark.parametrize("terminal", [False, True])
async def test_a_file_is_said_and_its_answer_written_and_shown(wav: Path, tmp_path: Path, terminal: bool) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=100)
    async with scripted(answers) as server:
        await talk(TalkOptions(url=server.url, wav=wav, out=tmp_path / "out" / "answer.wav"), console)
    samples, rate = soundfile.read(tmp_path / "out" / "answer.wav", dtype="int16")
    assert (rate, samples.tobytes()) == (RATE_HZ, tone(60, 7))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue())
    for line in ("you        speaking", "heard      what is it", "assistant  It is this.", "assistant  finished"):
        assert line in text, text
    assert f"Written to {tmp_path / 'out' / 'answer.wav'}: 0.06 s of sound." in text
    assert re.search(r"latency    first audio \d+\.\d\d s after the end of your speech", text)
    if not terminal:
        assert "heard      … what is …" in text


async def test_a_lost_connection_is_shown_and_what_was_said_around_it_is_answered(wav: Path, tmp_path: Path) -> None:
    async def breaks(peer: Peer) -> None:
        await configure(peer)
        await peer.until(InputAudioBufferAppend)
        await peer.drop()

    async def resumes(peer: Peer) -> None:
        await peer.give("t1", new_token="t2")
        await peer.until(InputAudioBufferAppend)
        await peer.send(STARTED, STOPPED, COMMITTED, *begin(), words("It is"), audio(tone(60, 7)), done())
        await peer.hang_up()

    shown = io.StringIO()
    async with scripted(breaks, resumes, token="t1") as server:
        await talk(TalkOptions(url=server.url, wav=wav, out=tmp_path / "answer.wav"), Console(file=shown, width=100))
    assert re.search(r"line       lost, connecting again \(.*\)\n.*line       back after \d+\.\d\d s", shown.getvalue())
    assert soundfile.read(tmp_path / "answer.wav", dtype="int16")[0].tobytes() == tone(60, 7)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            Resumed(at_ms=0.0, outage_ms=1500.0, attempts=2, replayed_events=3, dropped_audio_ms=640.0),
            "back after 1.50 s; 0.64 s of your sound were not sent",
        ),
        (ResyncRequired(at_ms=0.0, first_lost_seq=4, last_lost_seq=8), "5 events of the conversation are lost"),
    ],
)
def test_what_an_outage_cost_is_shown(change: ConnectionChange, line: str) -> None:
    shown = io.StringIO()
    ConversationView(Console(file=shown, width=100), Latencies(InputLine()), 0.0).show_change(change)
    assert line in shown.getvalue()


async def test_the_command_itself_ends_with_zero(wav: Path, tmp_path: Path) -> None:
    async with scripted(answers) as server:
        command = ("from duplex_client.cli import main; main()", "talk", "--wav", str(wav), "--url", server.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", *command, "--out", str(tmp_path / "a.wav"), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert b"It is this." in out
    assert (tmp_path / "a.wav").exists()


async def test_a_server_that_hears_nothing_is_no_answer(wav: Path, tmp_path: Path) -> None:
    async with scripted(mute) as server:
        options = TalkOptions(url=server.url, wav=wav, out=tmp_path / "a.wav", patience_s=0.2)
        with pytest.raises(NoAnswer, match="heard no speech"):
            await talk(options, Console(file=io.StringIO()))
    assert not (tmp_path / "a.wav").exists()


async def test_what_is_waited_for_is_said(wav: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duplex_client.talk.NOTICE_S", 0.1)
    shown = io.StringIO()

    async def late(peer: Peer) -> None:
        await configure(peer)
        while "so far the server heard no speech (waiting up to 20 s)" not in shown.getvalue():
            await peer.expect(InputAudioBufferAppend)
        await peer.send(STARTED, STOPPED, COMMITTED, *begin(), audio(tone(60, 7)), done())
        await peer.hang_up()

    async with scripted(late) as server:
        options = TalkOptions(url=server.url, wav=wav, out=tmp_path / "a.wav", patience_s=20)
        await talk(options, Console(file=shown, width=200))
    assert (tmp_path / "a.wav").exists()


FAILED = msgspec.structs.replace(
    done(status=ResponseStatus.FAILED).response,
    status_details=StatusDetails(
        type=ResponseStatus.FAILED,
        error=ResponseError(type="server_error", code="engine_error", message="the model is ill"),
    ),
)


async def test_an_answer_that_failed_is_told_once(wav: Path, tmp_path: Path) -> None:
    async def fails(peer: Peer) -> None:
        await configure(peer)
        await peer.until(InputAudioBufferAppend)
        await peer.send(STARTED, STOPPED, COMMITTED, *begin(), ResponseDone(response=FAILED))
        await peer.hang_up()

    async with scripted(fails) as server:
        code, text = await asyncio.to_thread(
            run, "--wav", str(wav), "--url", server.url, "--out", str(tmp_path / "a.wav")
        )
    assert code == 1
    assert text.count("the model is ill") == 1
    assert "error      the answer failed: the model is ill" in text


def test_what_is_shown_of_an_interruption_is_what_the_player_played() -> None:
    """And not the last that the server had been told by then, nor when it said so."""
    shown = io.StringIO()
    line = InputLine()
    line.sent(SentChunk(pcm=tone(6000), rate_hz=RATE_HZ, offset_ms=0.0, starts_at_ms=0.0))
    view = ConversationView(Console(file=shown, width=100), Latencies(line), 0.0)
    span = Span(response_id="resp_1", starts_at_ms=3000.0, offset_ms=0.0, pcm=tone(1804), rate_hz=RATE_HZ)
    answer = HeardAnswer(
        response_id="resp_1", item_id="i", spans=(span,), played_ms=1804.0, received_ms=6000.0, cut_at_ms=5000.0
    )
    over = OverlapDecision(decision=OverlapVerdict.INTERRUPTION, audio_ms=4700, epoch=1, response_id="resp_1")
    with view:
        view.show(over, 4990.0)
        view.show(OutputBufferCleared(response_id="resp_1", epoch=1, audio_end_ms=1730), 5000.0)
        view.heard(answer)
        view.heard(msgspec.structs.replace(answer, response_id="resp_2", cut_at_ms=None))
    view.heard(answer)  # at the hanging up: nobody interrupts
    assert [each.partition(" s  ")[2] for each in shown.getvalue().splitlines()] == [
        "assistant  interrupted, 1.80 s of it were heard",
        "latency    silent 0.10 s after you began to interrupt",
    ]


async def test_a_session_that_dies_while_speaking_is_told(wav: Path, tmp_path: Path) -> None:
    async def dies(peer: Peer) -> None:
        await configure(peer)
        await peer.expect(InputAudioBufferAppend)
        await peer.send(closed(CloseReason.ERROR, ErrorCode.INTERNAL_ERROR))

    async with scripted(dies) as server:
        options = TalkOptions(url=server.url, wav=wav, out=tmp_path / "a.wav")
        with pytest.raises(ConnectionClosed, match="internal_error"):
            await talk(options, Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("events", "answered"),
    [
        ((), False),
        ((STARTED, STOPPED, COMMITTED), False),
        ((STARTED, STOPPED, COMMITTED, *begin()), False),
        ((STARTED, STOPPED, COMMITTED, *begin(), done()), True),
        ((STARTED, STOPPED, COMMITTED, *begin(), done(), STARTED), False),
        ((STARTED, STOPPED, COMMITTED, *begin(), STARTED, done(), STOPPED, COMMITTED), False),
        ((STARTED, STOPPED, COMMITTED, *begin(), STARTED, done(), STOPPED, COMMITTED, *begin("r"), done("r")), True),
    ],
)
def test_a_conversation_is_over_when_nothing_waits_for_its_answer(events: tuple[Event, ...], answered: bool) -> None:
    state = TalkState()
    for event in events:
        state.absorb(event)
    assert state.answered is answered


LISTEN = ResponseListen(epoch=0, turn_id=1)
SPOKEN = (STARTED, STOPPED, *begin())
OVER = "the file is over"


@pytest.mark.parametrize(
    ("told", "answered"),
    [
        ((STARTED, STOPPED), False),
        ((STARTED, STOPPED, OVER, LISTEN, LISTEN, LISTEN, LISTEN), False),
        ((*SPOKEN, OVER), False),
        ((*SPOKEN, OVER, done()), True),
        ((*SPOKEN, done(), OVER), True),
        ((*SPOKEN, done(), STARTED, OVER, LISTEN, LISTEN, LISTEN), False),
        ((*SPOKEN, done(), STARTED, OVER, STOPPED, LISTEN, LISTEN), False),
        ((*SPOKEN, done(), STARTED, OVER, STOPPED, LISTEN, LISTEN, LISTEN), True),
        ((*SPOKEN, STARTED, STOPPED, LISTEN, LISTEN, LISTEN, OVER, done()), False),
        ((*SPOKEN, STARTED, STOPPED, OVER, done(), LISTEN, LISTEN, *begin("r")), False),
        ((*SPOKEN, STARTED, STOPPED, OVER, done(), LISTEN, LISTEN, *begin("r"), done("r")), True),
        ((STARTED, *begin(), STOPPED, OVER, done(), LISTEN, LISTEN, LISTEN), True),
        ((*begin(), OVER, done()), False),
        ((*begin(), OVER, done(), LISTEN, LISTEN, LISTEN), True),
        ((OVER, *begin(), done()), True),
    ],
)
def test_with_a_model_that_takes_its_turns_itself_nothing_is_committed(
    told: tuple[Event | str, ...], answered: bool
) -> None:
    """What was said has its answer when one began after it and ended, or when the model goes on listening after it."""
    state = TalkState(TurnPolicy.MODEL)
    for each in told:
        if isinstance(each, str):
            state.file_over()
        else:
            state.absorb(each)
    assert state.answered is answered


def native(detector: ServerVad | None = None) -> ModelSpec:
    """The conformance kit's native model, with or without a detector to tell when the user speaks."""
    config = SessionConfig(model="taker", turn_detection=detector)
    return dataclasses.replace(NATIVE, id="taker", session_config=lambda deploy: config)


@pytest.mark.parametrize("detector", [None, ServerVad()])
async def test_a_talk_with_a_native_model_over_the_socket_ends_with_its_answer(
    tmp_path: Path, detector: ServerVad | None
) -> None:
    write_wav(tmp_path / "question.wav", np.frombuffer(burst(1200.0, RATE_HZ), dtype="<i2"), RATE_HZ)
    shown = io.StringIO()
    async with serving(native(detector)) as served:
        options = TalkOptions(
            url=f"ws://127.0.0.1:{served.port}", wav=tmp_path / "question.wav", out=tmp_path / "answer.wav"
        )
        async with asyncio.timeout(20):
            await talk(options, Console(file=shown, width=100))
    assert "assistant  … 3 of 3. …" in shown.getvalue()
    assert "assistant  finished" in shown.getvalue()
    assert soundfile.info(tmp_path / "answer.wav").duration == pytest.approx(3.0, abs=0.3)


async def test_a_native_model_that_only_listens_is_told_so(tmp_path: Path) -> None:
    write_wav(tmp_path / "silence.wav", np.zeros(RATE_HZ // 2, dtype="<i2"), RATE_HZ)
    async with serving(native()) as served:
        options = TalkOptions(
            url=f"ws://127.0.0.1:{served.port}", wav=tmp_path / "silence.wav", out=tmp_path / "a.wav", patience_s=2.5
        )
        with pytest.raises(NoAnswer, match="the model listened and did not answer"):
            await talk(options, Console(file=io.StringIO(), width=100))


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["talk", *args])
    return result.exit_code, result.output + (result.stderr if result.stderr not in result.output else "")


@pytest.mark.parametrize("args", [(), ("--mic", "--wav", "x.wav")])
def test_a_wrong_command_line_says_what_is_wanted(args: tuple[str, ...]) -> None:
    code, text = run(*args)
    assert code == 2
    assert "--wav FILE or --mic" in text


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("answer.mp9", "answer.mp9 does not end in .wav or .flac"),
        ("answer", "answer does not end in .wav or .flac"),
        ("", "is a folder; name a file in it, for example"),
        ("question.wav/answer.wav", "question.wav is no folder"),
        ("locked/new/answer.wav", "locked may not be changed by this user"),
    ],
)
def test_where_an_answer_cannot_be_written_is_refused_before_anything_is_said(
    wav: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, sentence: str
) -> None:
    (tmp_path / "locked").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked" and allowed(path, mode))
    code, text = run("--wav", str(wav), "--url", "ws://127.0.0.1:9", "--out", f"{tmp_path}/{out}")
    text = re.sub(r"[\s│]+", " ", text)
    assert code == 2
    assert sentence in text
    assert "cannot reach" not in text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["locked", "question.wav"]


async def test_what_cannot_be_written_in_the_end_is_a_sentence(wav: Path, tmp_path: Path) -> None:
    async def in_the_way(peer: Peer) -> None:
        (tmp_path / "answer.wav").mkdir()
        await answers(peer)

    async with scripted(in_the_way) as server:
        with pytest.raises(UnwritableAudio, match=r"cannot write .*answer\.wav as sound: "):
            await talk(TalkOptions(url=server.url, wav=wav, out=tmp_path / "answer.wav"), Console(file=io.StringIO()))


def test_the_help_names_the_extra() -> None:
    assert "duplex-client[mic]" in re.sub(r"\x1b\[[0-9;]*m|\s|│", "", run("--help")[1])


def test_problems_are_one_sentence_and_a_one(wav: Path, tmp_path: Path) -> None:
    code, text = run("--wav", str(tmp_path / "absent.wav"))
    assert (code, "absent.wav" in text) == (1, True)
    code, text = run("--wav", str(wav), "--url", "ws://127.0.0.1:9", "--out", str(tmp_path / "a.wav"))
    assert (code, "cannot reach ws://127.0.0.1:9/v1/realtime" in text) == (1, True)
    code, text = run("--wav", str(wav), "--url", "ftp://host")
    assert (code, "no server address" in text) == (1, True)


async def test_without_sound_hardware_it_says_what_to_install(wav: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    async with scripted(mute) as server:
        url = server.url
        code, text = await asyncio.to_thread(run, "--wav", str(wav), "--url", url)
    assert code == 1
    assert "duplex-client[mic]" in text
    assert "--out FILE" in text


def test_a_sound_card_is_followed_without_seams_until_it_runs_away() -> None:
    cursor = Cursor()
    assert cursor.advance(1000.0, 20.0) == 1000.0
    assert cursor.advance(1035.0, 20.0) == 1020.0
    assert cursor.advance(1012.0, 20.0) == 1040.0
    assert cursor.advance(1500.0, 20.0) == 1500.0
