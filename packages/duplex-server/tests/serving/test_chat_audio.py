"""Speech and pictures in chat, as OpenAI's own client sends and reads them, beside conversations over the real socket."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import io
import wave
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import openai
import pytest

from duplex_core.capabilities import Capabilities
from duplex_core.config import Modality
from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.items import InputAudio, InputImage, InputText, MessageItem, OutputAudio, Role
from duplex_core.model import EndTurn, ModelInput, ModelOutput, Respond, Speak
from duplex_core.testing.speech import burst
from duplex_server.audio.wav import write_wav
from duplex_server.engine.chat import ChatAudio, ChatRequest
from duplex_server.serving.chat_audio import MAX_REMEMBERED, REMEMBERED_S, Spoken
from tests.support.stages import gated_model

ASK_ALOUD: Any = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
PICTURE = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()


def speech_part(ms: float = 1000, rate_hz: int = 24_000) -> Any:
    data = base64.b64encode(write_wav(burst(ms, rate_hz), rate_hz)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def spoken_question(**kwargs: Any) -> Any:
    return {"role": "user", "content": [speech_part(**kwargs)]}


def client_of(served: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.http}/v1", api_key="none", max_retries=0)


def seconds(data: str) -> float:
    with wave.open(io.BytesIO(base64.b64decode(data))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        return float(file.getnframes() / 24_000)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000])
async def test_speech_is_heard_at_the_models_rate(served: Any, rate_hz: int) -> None:
    async with client_of(served) as client:
        whole = await client.chat.completions.create(model="parrot", messages=[spoken_question(rate_hz=rate_hz)])
    assert whole.choices[0].message.content == "You said 1000 milliseconds."
    assert whole.choices[0].message.audio is None


async def test_an_answer_is_spoken_and_spoken_of_later(served: Any) -> None:
    async with client_of(served) as client:
        messages: list[Any] = [spoken_question()]
        whole = await client.chat.completions.create(model="parrot", messages=messages, **ASK_ALOUD)
        message = whole.choices[0].message
        assert message.content is None
        assert message.audio is not None
        assert message.audio.transcript == "You said 1000 milliseconds."
        assert seconds(message.audio.data) == pytest.approx(1.0, abs=0.002)
        assert whole.usage is not None
        assert whole.usage.completion_tokens > 0
        for said in ({"role": "assistant", "audio": {"id": message.audio.id}}, message):
            again: list[Any] = [*messages, said, {"role": "user", "content": "one two three"}]
            written = await client.chat.completions.create(model="parrot", messages=again)
            assert written.choices[0].message.content == "one two three"
        messages += [{"role": "assistant", "audio": {"id": "audio_of_nobody"}}, {"role": "user", "content": "so?"}]
        with pytest.raises(openai.BadRequestError, match="send what it said as the message's content"):
            await client.chat.completions.create(model="parrot", messages=messages)


async def test_a_spoken_answer_comes_in_pieces(served: Any) -> None:
    aloud = {**ASK_ALOUD, "audio": {"voice": "alloy", "format": "pcm16"}}
    async with client_of(served) as client:
        pieces, transcript, ids, until, finish, usage = [], "", set(), 0, None, None
        stream = await client.chat.completions.create(
            model="parrot", messages=[spoken_question()], stream=True, stream_options={"include_usage": True}, **aloud
        )
        async for chunk in stream:
            for choice in chunk.choices:
                assert choice.delta.content is None
                finish = choice.finish_reason or finish
                told = choice.delta.audio
                if told is not None:
                    ids |= {told.id} if told.id else set()
                    transcript += told.transcript or ""
                    pieces.append(base64.b64decode(told.data or ""))
                    until = told.expires_at or until
            usage = chunk.usage
        sound = b"".join(pieces)
        assert len([piece for piece in pieces if piece]) > 5
        assert len(sound) / 48_000 == pytest.approx(1.0, abs=0.002)
        assert (transcript, finish, len(ids)) == ("You said 1000 milliseconds.", "stop", 1)
        assert until > 0
        assert usage is not None
        assert usage.total_tokens > 0
        later: list[Any] = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "audio": {"id": ids.pop()}},
            {"role": "user", "content": "thank you"},
        ]
        written = await client.chat.completions.create(model="parrot", messages=later)
        assert written.choices[0].message.content == "thank you"


async def test_a_tool_call_is_none_the_less_for_being_asked_aloud(served: Any) -> None:
    tool: Any = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
    question: Any = {"role": "user", "content": "call clock"}
    async with client_of(served) as client:
        whole = await client.chat.completions.create(model="parrot", messages=[question], tools=[tool], **ASK_ALOUD)
    message = whole.choices[0].message
    assert message.audio is None
    assert message.tool_calls is not None
    assert whole.choices[0].finish_reason == "tool_calls"


async def test_chats_are_spoken_while_a_conversation_is_in_the_middle_of_its_answer(served: Any) -> None:
    """One slot's session is held open by its own pace; the chats beside it take no slot and do not wait for it."""
    async with served.session() as caller, client_of(served) as client:
        await caller.by_hand()
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "word " * 200}]}
        await caller.say("conversation.item.create", item=item)
        await caller.say("response.create")
        await caller.until("response.output_audio.delta")
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model="parrot", messages=[spoken_question(ms=ms)], **ASK_ALOUD)
                for ms in (400, 600)
            )
        )
        assert [whole.choices[0].message.audio.transcript for whole in answers if whole.choices[0].message.audio] == [
            "You said 400 milliseconds.",
            "You said 600 milliseconds.",
        ]
        assert served.engine.sessions.taken == 1
        assert "response.done" not in caller.types()
        await caller.say("response.cancel")
        done = await caller.until("response.done")
        assert done["response"]["status"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"modalities": ["audio", "text"]}, "invalid_value", "audio"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "invalid_value", "audio"),
        ({**ASK_ALOUD, "audio": {"voice": "alloy", "format": "mp3"}}, "unsupported_parameter", "audio.format"),
        ({**ASK_ALOUD, "stream": True}, "unsupported_parameter", "audio.format"),
        ({**ASK_ALOUD, "audio": {"voice": "nobody", "format": "wav"}}, "invalid_value", "audio.voice"),
        ({"modalities": ["smell"]}, "invalid_value", "modalities.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]},
            "unsupported_parameter",
            "messages[0].content[0]",
        ),
    ],
)
async def test_what_cannot_be_said_so_is_refused_by_name(
    served: Any, body: dict[str, Any], code: str, param: str
) -> None:
    base = {"model": "parrot", "messages": [{"role": "user", "content": "hello"}]}
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.post("/v1/chat/completions", json={**base, **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)


@pytest.mark.parametrize(
    ("sound", "code", "field"),
    [
        ({"data": "UklGRg==", "format": "mp3"}, "unsupported_parameter", "format"),
        ({"data": "no base64!", "format": "wav"}, "invalid_value", "data"),
        ({"data": base64.b64encode(b"ID3 and so on").decode(), "format": "wav"}, "invalid_audio", "data"),
        ({"data": base64.b64encode(write_wav(b"", 16_000)).decode(), "format": "wav"}, "empty_audio", "data"),
    ],
)
async def test_speech_that_cannot_be_read_is_refused_by_name(
    served: Any, sound: dict[str, str], code: str, field: str
) -> None:
    part = {"type": "input_audio", "input_audio": sound}
    messages = [{"role": "user", "content": [{"type": "text", "text": "hear this"}, part]}]
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "parrot", "messages": messages})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, code)
    assert error["param"] == f"messages[0].content[1].input_audio.{field}"


class Listener:
    """Remembers what it was asked, and says a word in a sound of 10 ms at 16 kHz."""

    def __init__(self) -> None:
        self.asked: list[Respond] = []

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if not isinstance(event, Respond):
            return ()
        self.asked.append(event)
        return (Speak(fence=event.fence, text="Yes.", pcm=bytes(320)), EndTurn(fence=event.fence))


def listening(listener: Listener, **can: Any) -> Any:
    spec = gated_model(lambda: listener).spec
    able = msgspec.structs.replace(spec.capabilities(spec.deploy_model()), **can)
    return dataclasses.replace(spec, capabilities=lambda deploy: able)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.com/cat.png", "this server fetches nothing"),
        ("data:image/", "with a picture in base64"),
        ("data:image/svg+xml,<svg/>", "with a picture in base64"),
        ("data:image/png;base64,@@@", "is not base64"),
        ("data:image/png;base64,abcde", "is not base64"),
        ("data:image/png;base64", "has nothing in it"),
        ("data:image/png;base64,", "has nothing in it"),
    ],
)
async def test_a_picture_that_cannot_be_got_at_is_refused_by_name(serving: Any, url: str, message: str) -> None:
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "gated", "messages": [{"role": "user", "content": content}]}
    async with (
        serving(listening(Listener(), chat_image_input=True)) as served,
        httpx.AsyncClient(base_url=served.http) as client,
    ):
        answer = await client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    named = "messages[0].content[1].image_url.url"
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", named)
    assert message in error["message"]


async def test_the_model_is_told_everything_in_order(serving: Any) -> None:
    listener = Listener()
    can = {"chat_audio_input": True, "chat_audio_output": True, "chat_image_input": True, "voices": ("ada", "bob")}
    content = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
        speech_part(ms=500, rate_hz=16_000),
    ]
    messages: list[Any] = [{"role": "user", "content": content}]
    async with serving(listening(listener, **can)) as served, client_of(served) as client:
        aloud = {**ASK_ALOUD, "audio": {"voice": "bob", "format": "wav"}}
        whole = await client.chat.completions.create(model="gated", messages=messages, **aloud)
        first = whole.choices[0].message.audio
        assert first is not None
        assert seconds(first.data) == pytest.approx(0.01, abs=0.001)
        messages += [{"role": "assistant", "audio": {"id": first.id}}, {"role": "user", "content": "and?"}]
        await client.chat.completions.create(model="gated", messages=messages)
    spoken, written = listener.asked
    assert (spoken.config.modality, spoken.config.voice) == (Modality.AUDIO, "bob")
    asked, said, more = written.history
    assert asked == spoken.history[0]
    assert isinstance(asked, MessageItem)
    assert asked.id == "item_0"
    text, picture, sound = asked.content
    assert text == InputText(text="look")
    assert picture == InputImage(image_url=PICTURE, detail="low")
    assert isinstance(sound, InputAudio)
    assert sound.audio == burst(500, 16_000)
    assert said == MessageItem(role=Role.ASSISTANT, content=(OutputAudio(transcript="Yes."),))
    assert isinstance(more, MessageItem)
    assert written.config.modality is Modality.TEXT


@pytest.mark.parametrize(
    ("request_of", "what"),
    [
        ({"modality": Modality.AUDIO}, "speak in an answer"),
        ({"part": InputAudio(audio=b"\0\0")}, "hear speech"),
        ({"part": InputImage(image_url=PICTURE)}, "see pictures"),
    ],
)
async def test_a_model_that_does_not_declare_it_is_not_asked(engine_of: Any, request_of: Any, what: str) -> None:
    part = request_of.pop("part", InputText(text="hello"))
    request = ChatRequest(history=(MessageItem(role=Role.USER, content=(part,)),), **request_of)
    listener = Listener()
    async with engine_of(listening(listener)) as engine:
        assert engine.served.capabilities == Capabilities(
            input_rate_hz=16_000, output_rate_hz=16_000, chat=True, semantic_vad=True
        )
        with pytest.raises(DuplexError, match=what) as caught:
            await anext(engine.generate(request))
        assert caught.value.info.code is ErrorCode.UNSUPPORTED_PARAMETER
    assert listener.asked == []


async def test_a_written_answer_has_no_sound_though_the_model_makes_some(engine_of: Any) -> None:
    request = ChatRequest(history=(MessageItem(role=Role.USER, content=(InputText(text="hello"),)),))
    async with engine_of(listening(Listener(), chat_audio_output=True)) as engine:
        written = [event async for event in engine.generate(request)]
        spoken = [e async for e in engine.generate(msgspec.structs.replace(request, modality=Modality.AUDIO))]
    assert not [event for event in written if isinstance(event, ChatAudio)]
    assert len(b"".join(event.pcm for event in spoken if isinstance(event, ChatAudio))) == 480


async def test_a_spoken_stream_stops_when_its_client_goes_away_and_no_other_does(serving: Any, stages: Any) -> None:
    gated = stages.gated_model(concurrency=2)
    able = msgspec.structs.replace(gated.spec.capabilities(gated.spec.deploy_model()), chat_audio_output=True)
    spec = dataclasses.replace(gated.spec, capabilities=lambda deploy: able)
    async with serving(spec) as served, client_of(served) as client:
        aloud = {**ASK_ALOUD, "audio": {"voice": "alloy", "format": "pcm16"}, "stream": True}
        streams = []
        for text in ("leaves hold", "stays hold"):
            stream = await client.chat.completions.create(
                model="gated", messages=[{"role": "user", "content": text}], **aloud
            )
            streams.append(stream)
            await asyncio.to_thread(gated.gate.holding.acquire)
        leaving, staying = streams
        await leaving.close()
        await asyncio.to_thread(gated.stopped.acquire)
        async with asyncio.timeout(20):
            while served.engine.chats > 1:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert gated.gate.running == 1
        gated.gate.let_go.set()
        said = ""
        async for chunk in staying:
            for choice in chunk.choices:
                said += (choice.delta.audio and choice.delta.audio.transcript) or ""
        assert said == "stays late "
        async with asyncio.timeout(20):
            await served.engine.drain(20)
        assert served.engine.chats == 0


def test_what_was_said_is_remembered_within_bounds() -> None:
    now = [1000.0]
    spoken = Spoken(lambda: now[0])
    ids = [spoken.new_id() for _ in range(MAX_REMEMBERED + 1)]
    for number, each in enumerate(ids):
        assert spoken.keep(each, f"answer {number}") == 1000 + REMEMBERED_S
    with pytest.raises(DuplexError, match="too long ago"):
        spoken.transcript(ids[0], "messages[1]")
    assert spoken.transcript(ids[1], "messages[1]") == "answer 1"
    now[0] += REMEMBERED_S
    with pytest.raises(DuplexError) as caught:
        spoken.transcript(ids[1], "messages[1]")
    assert caught.value.info.param == "messages[1].audio.id"
