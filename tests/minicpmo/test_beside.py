"""What goes on beside a conversation with MiniCPM-o: chats, other sessions, refusals, and answers to what was written."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import wave
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from duplex_core.testing.speech import burst
from tests.minicpmo.conftest import TURN, WRITTEN
from tests.minicpmo.served import INPUT_HZ, OUTPUT_HZ, Answer, Conversation, call, voice, wav
from tests.support.serving import Served

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
]
WHOLE = "".join(TURN)
SPEECH = burst(2000.0, INPUT_HZ)
"""Loud enough for the checkpoint, and its seconds are the model's."""
QUIET = bytes(2 * INPUT_HZ)
SHORT = base64.b64encode(wav(burst(100.0, INPUT_HZ), INPUT_HZ)).decode()


def picture() -> str:
    """A small picture, as base64 of a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.linear_gradient("L").resize((320, 240)).convert("RGB").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


async def ask(served: Served, **body: Any) -> dict[str, Any]:
    """One chat completion."""
    async with httpx.AsyncClient(base_url=served.http, timeout=120.0) as client:
        reply = await client.post("/v1/chat/completions", json={"model": "minicpmo", "temperature": 0, **body})
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


def written(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def samples(pcm: bytes) -> Any:
    return np.frombuffer(pcm, dtype="<i2").astype(np.int32)


async def test_chats_are_answered_while_a_session_is_in_mid_turn(served: Served) -> None:
    sound = base64.b64encode(wav(burst(1500.0, INPUT_HZ), INPUT_HZ)).decode()
    spoken = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}]}
    async with call(served) as caller:
        await caller.say(SPEECH)
        await caller.first_audio(1)
        text, aloud = await asyncio.gather(
            ask(served, messages=[{"role": "system", "content": "Be brief."}, written("Is anybody there?")]),
            ask(served, messages=[spoken], modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"}),
        )
        assert not caller.of("response.done"), "the chats were to be answered within the turn"
        answer = await caller.answered(1)
        await caller.close()
    assert text["choices"][0]["message"]["content"] == WRITTEN
    assert text["choices"][0]["finish_reason"] == "stop"
    assert text["usage"]["prompt_tokens"] > text["usage"]["completion_tokens"] > 0
    audio = aloud["choices"][0]["message"]["audio"]
    assert audio["transcript"] == WRITTEN
    with wave.open(io.BytesIO(base64.b64decode(audio["data"]))) as file:
        assert file.getframerate() == OUTPUT_HZ
        assert file.getnframes() / OUTPUT_HZ == pytest.approx(
            50 / 25, abs=0.5
        )  # at least fifty codes of a 25th of a second
        assert any(file.readframes(file.getnframes()))
    assert (answer.status, answer.text) == ("completed", WHOLE)


async def test_a_chat_sees_a_picture_and_a_cut_answer_says_so(served: Served) -> None:
    seen = "data:image/png;base64," + picture()
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": seen}}]
    with_picture = await ask(served, messages=[{"role": "user", "content": parts}])
    without = await ask(served, messages=[{"role": "user", "content": parts[:1]}], max_tokens=2)
    assert with_picture["choices"][0]["message"]["content"] == WRITTEN
    assert with_picture["usage"]["prompt_tokens"] >= without["usage"]["prompt_tokens"] + 64
    assert without["choices"][0]["finish_reason"] == "length"
    assert without["usage"]["completion_tokens"] == 2


async def test_sessions_at_once_have_states_of_their_own(served: Served) -> None:
    """Two that are spoken to alike answer alike; one with another voice sounds otherwise."""
    other = base64.b64encode(voice(320.0)).decode()
    options: list[dict[str, Any]] = [{}, {}, {"reference_audio": other}]
    async with contextlib.AsyncExitStack() as calls:
        callers = [await calls.enter_async_context(call(served, microphone=False, options=each)) for each in options]
        for caller in callers:
            await caller.append(SPEECH + QUIET)
        answers = await asyncio.gather(*(caller.answered(1) for caller in callers))
        await asyncio.gather(*(caller.close() for caller in callers))
    assert [answer.text for answer in answers] == [WHOLE] * 3
    first, second, third = (samples(answer.pcm) for answer in answers)
    assert len(first) == len(second) == len(third)
    assert (
        np.abs(first - second).max() <= 33
    )  # a thousandth of full scale: steps of several sessions add up in another order
    assert np.abs(first - third).max() > 1000


async def test_a_session_that_is_silent_hears_nothing_of_what_is_said_to_another(served: Served) -> None:
    async with call(served) as silent, call(served) as spoken_to:
        await spoken_to.say(SPEECH)
        answer = await spoken_to.answered(1)
        await silent.until("response.listen", count=8)
        await asyncio.gather(silent.close(), spoken_to.close())
    spoken(answer)
    assert not silent.answers()


@pytest.mark.parametrize(
    ("options", "named", "message"),
    [
        ({"window": "wide"}, "session.options.window", "'off', 'basic' or 'context'"),
        ({"temperature": 0}, "session.options.temperature", "must be at least 0.01, not 0"),
        ({"top_k": "3"}, "session.options.top_k", "must be a whole number, not '3'"),
        ({"greedy": 1}, "session.options.greedy", "must be true or false, not 1"),
        ({"forced_listen": -1}, "session.options.forced_listen", "must be at least 0, not -1"),
        ({"reference_audio": "bm8gd2F2"}, "session.options.reference_audio", "must be a wav or flac file"),
        ({"reference_audio": SHORT}, "session.options.reference_audio", "the reference voice lasts 0.10 s; it has to"),
        ({"max_slices": 10}, "session.options.max_slices", "must be at most 9, not 10"),
        ({"temprature": 0.5}, "session.options.temprature", "is no option of this model"),
        (
            {"high_tokens": 100, "low_tokens": 100},
            "session.options",
            "low_tokens 100 must be less than high_tokens 100",
        ),
    ],
)
async def test_options_that_cannot_be_are_refused_by_name(
    served: Served, options: dict[str, Any], named: str, message: str
) -> None:
    async with call(served, microphone=False) as caller:
        await caller.send("session.update", session={"type": "realtime", "options": options})
        error = (await caller.until("error"))["error"]
        await caller.close()
    code = "unknown_parameter" if "temprature" in options else "invalid_value"
    assert (error["param"], error["code"], error["type"]) == (named, code, "invalid_request_error")
    assert message in error["message"], error


async def test_a_voice_that_cannot_be_read_ends_its_session_as_its_sender_s_fault_and_frees_its_slot(
    served: Served,
) -> None:
    """Its header is in order, so that it is read; that it holds no sound is found by a stage."""
    file = io.BytesIO()
    soundfile.write(file, np.full(INPUT_HZ, np.nan), INPUT_HZ, format="WAV", subtype="FLOAT")
    unreadable = base64.b64encode(file.getvalue()).decode()
    for _ in range(4):  # one more than there are seats
        async with call(served, microphone=False, options={"reference_audio": unreadable}) as caller:
            await caller.append(QUIET[:960])  # the session begins, and its voice is read, with the first sound
            error = (await caller.until("error"))["error"]
            closed = await caller.until("session.closed")
        assert error["message"] == "the reference voice holds values that are no numbers"
        assert (error["code"], error["param"]) == ("invalid_value", "session.options.reference_audio")
        assert error["type"] == "invalid_request_error"
        assert not error.get("retryable")
        assert closed["error"]["code"] == "invalid_value"
    async with call(served, microphone=False) as caller:
        await question(caller, "Is anybody there?")
        spoken(await caller.answered(1))
        await caller.close()


async def test_a_written_question_is_answered_aloud_without_a_microphone(served: Served) -> None:
    async with call(served, microphone=False) as caller:
        await question(caller, "Is anybody there?")
        first = await caller.answered(1)
        await question(caller, "And now?")
        second = await caller.answered(2)
        await caller.close()
    for answer in (first, second):
        spoken(answer)


async def test_an_answer_s_own_instructions_and_limit_are_kept_to(served: Served) -> None:
    """Asked as stock clients ask for a greeting. After an answer that was cut off the next is whole again."""
    async with call(served, microphone=False) as caller:
        await caller.send("response.create", response={"instructions": "Greet the user."})
        greeting = await caller.answered(1)
        await caller.send("response.create", response={"max_output_tokens": 8})
        cut = await caller.answered(2)
        await caller.send("response.create")
        whole = await caller.answered(3)
        await caller.close()
    spoken(greeting)
    assert (cut.status, cut.reason, cut.text) == ("incomplete", "max_output_tokens", TURN[0] + " and shall")
    assert cut.ms == pytest.approx(2000.0, abs=500.0)
    spoken(whole)


async def test_the_session_s_limit_holds_for_turns_that_the_model_takes(served: Served) -> None:
    async with call(served, microphone=False) as caller:
        await caller.append(QUIET)
        await caller.send("session.update", session={"type": "realtime", "max_output_tokens": 3})
        await caller.append(SPEECH + QUIET)
        answer = await caller.answered(1)
        heard = len(caller.of("response.listen"))
        await caller.append(QUIET * 2)
        await caller.until("response.listen", count=heard + 2)
        await caller.close()
    assert (answer.status, answer.reason, answer.text) == ("incomplete", "max_output_tokens", "I heard every")
    assert len(caller.answers()) == 1


@pytest.mark.parametrize(
    ("type_", "field", "value"),
    [
        ("response.create", "output_modalities", ["text"]),
        ("response.create", "tools", [{"type": "function", "name": "lookup"}]),
        ("response.create", "conversation", "none"),
        ("response.create", "input", []),
        ("response.create", "prompt", {"id": "p"}),
        ("response.create", "reasoning", {"effort": "low"}),
        ("session.update", "instructions", "Be somebody else."),
        ("session.update", "options", {"greedy": False}),
        ("session.update", "output_modalities", ["text"]),
        ("session.update", "tools", [{"type": "function", "name": "lookup"}]),
        ("session.update", "truncation", "disabled"),
        ("session.update", "audio.output.speed", 1.2),
        ("session.update", "audio.input.transcription", {"model": "whisper-1"}),
        ("session.update", "audio.input.noise_reduction", {"type": "near_field"}),
    ],
)
async def test_what_this_model_cannot_do_is_refused_by_name_and_nothing_is_done(
    served: Served, type_: str, field: str, value: Any
) -> None:
    name = type_.partition(".")[0]
    fields: Any = value
    for part in reversed(field.split(".")):
        fields = {part: fields}
    async with call(served, microphone=False) as caller:
        await caller.append(QUIET[:960])  # with the first sound the model has begun
        await caller.send(type_, **{name: fields if name == "response" else {"type": "realtime", **fields}})
        error = (await caller.until("error"))["error"]
        await caller.close()
    assert (error["code"], error["param"]) == ("unsupported_parameter", f"{name}.{field}")
    assert not caller.answers()
    assert len(caller.of("session.updated")) == 1


async def question(caller: Conversation, text: str) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await caller.send("conversation.item.create", item=item)
    await caller.send("response.create")


def spoken(answer: Answer) -> None:
    assert (answer.status, answer.text) == ("completed", WHOLE)
    assert answer.ms == pytest.approx(1000.0 * len(TURN), abs=500.0)
    assert any(answer.pcm)


async def test_a_picture_and_a_recording_in_an_item_are_taken_in_before_the_answer(served: Served) -> None:
    """Each is a second or more that is listened to, and the last is answered; the same item says nothing a second time."""
    recording = base64.b64encode(SPEECH + QUIET).decode()
    shown = {"type": "input_image", "image_url": "data:image/png;base64," + picture()}
    content = [shown, shown, {"type": "input_audio", "audio": recording}, {"type": "input_text", "text": "What is it?"}]
    async with call(served, microphone=False) as caller:
        item = {"type": "message", "role": "user", "content": content}
        await caller.send("conversation.item.create", item=item)
        await caller.send("response.create")
        first = await caller.answered(1)
        before = caller.of("response.listen")
        await caller.send("response.create")
        await caller.answered(2)
        await caller.close()
    assert len(before) == 3, "a picture, and two seconds of the recording"
    assert not any(event.get("response_id") for event in before)
    spoken(first)


async def test_a_picture_that_cannot_be_seen_fails_its_answer_as_its_sender_s_fault(served: Served) -> None:
    """In a session and in a chat alike. The session goes on."""
    url = "data:image/png;base64," + base64.b64encode(base64.b64decode(picture())[:100]).decode()
    async with call(served, microphone=False) as caller:
        item = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}
        await caller.send("conversation.item.create", item=item)
        await caller.send("response.create")
        done = await caller.until("response.done")
        await question(caller, "Is anybody there?")
        spoken(await caller.answered(2))
        await caller.close()
    assert done["response"]["status"] == "failed"
    told = done["response"]["status_details"]["error"]
    assert (told["type"], told["code"]) == ("invalid_request_error", "invalid_value")
    assert "cannot be decoded as a picture" in told["message"]
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "minicpmo", "messages": [{"role": "user", "content": parts}]}
    async with httpx.AsyncClient(base_url=served.http, timeout=120.0) as client:
        reply = await client.post("/v1/chat/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")


async def test_a_session_sees_what_its_camera_shows(served: Served) -> None:
    """Frames go with the second in which they came, and nothing is the worse for them."""
    async with call(served, microphone=False) as caller:
        frame = picture()
        for pcm in (SPEECH[: len(QUIET)], SPEECH[len(QUIET) :], QUIET):
            audio = base64.b64encode(pcm).decode()
            await caller.send("input_audio_buffer.append", audio=audio, video_frames=[{"data": frame}])
        answer = await caller.answered(1)
        await caller.close()
    spoken(answer)


async def test_a_context_that_is_full_ends_the_session_that_wanted_no_window(served: Served) -> None:
    """In the profile for a CPU a context has 1024 positions, and a silent second takes thirteen. The others go on."""
    options, undetected = {"window": "off"}, {"turn_detection": None}
    async with call(served, microphone=False, options=options, input=undetected) as caller, call(served) as other:
        await caller.append(QUIET * 90)
        error = (await caller.until("error"))["error"]
        await caller.until("session.closed")
        await other.say(SPEECH)
        answer = await other.first_audio(1)
        await other.close()
    assert error["code"] == "context_length_exceeded"
    assert 60 <= len(caller.of("response.listen")) <= 80
    assert any(answer.pcm)


async def test_a_window_that_moves_in_vllm_s_cache_is_not_noticed(served: Served) -> None:
    options = {"window": "basic", "high_tokens": 200, "low_tokens": 120}
    async with call(served, microphone=False, options=options, input={"turn_detection": None}) as caller:
        await caller.append(QUIET * 60 + SPEECH + QUIET)
        answer = await caller.answered(1)
        assert len(caller.of("response.listen")) == 62
        await caller.close()
    spoken(answer)
    assert not caller.of("error")
    async with asyncio.timeout(30), httpx.AsyncClient(base_url=served.http) as client:
        while counted(await client.get("/metrics"), "moved_positions") < 500:  # noqa: ASYNC110 - told once a second
            await asyncio.sleep(0.2)
        assert not counted(await client.get("/metrics"), "recomputed_positions")


def counted(metrics: httpx.Response, what: str) -> float:
    """How often something has happened in the thinker's stage, or to how many positions."""
    series = [line.split() for line in metrics.text.splitlines() if line.startswith("duplex_stage_events_total{")]
    return sum(float(value) for name, value in series if f'what="{what}"' in name and 'stage="thinker"' in name)
