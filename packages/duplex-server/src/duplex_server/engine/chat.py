"""The turn-based half of the engine: one request in, one answer out, on the same stages and weights as the sessions.

Owns chat requests: each runs a model session of its own that is told to answer once, and needs no session slot. Used by the
chat route and by Python programs; the duplex half builds on it. It must never import anything of the duplex half: no
session machine, manager, runner or orchestrator.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any, Self, assert_never

import msgspec

from duplex_core.audio import DEFAULT_FORMAT
from duplex_core.config import FunctionTool, Modality, SessionConfig, ToolChoice, ToolMode
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.fence import Fence
from duplex_core.items import InputAudio, InputImage, Item, MessageItem
from duplex_core.model import (
    Abort,
    BeginTurn,
    Closed,
    Configured,
    Deadline,
    Decision,
    EndTurn,
    Failed,
    Fatal,
    InputRefused,
    Listen,
    ModelInput,
    ModelOutput,
    ModelSession,
    Respond,
    ResponseCause,
    Speak,
    StopReason,
    Submit,
    TokenUsage,
    ToolCall,
    TranscriptFailed,
    UserTranscript,
    WakeAt,
)
from duplex_core.plugins import PluginHost, load_plugins
from duplex_core.stages import Purpose, StageFailed, StageLost, StageOutput, StageReply, StageRequest
from duplex_server import builtins
from duplex_server.deploy import resolve as settle
from duplex_server.engine.metrics import EngineMetrics
from duplex_server.engine.served import ServedModel, prepare
from duplex_server.engine.speaking import Speaking
from duplex_server.engine.stages.host import StageHost, StageStartError, Told, owner_of
from duplex_server.engine.timers import Rung, Timers

MAX_CHATS = 64
"""Most chat requests at a time; beyond it ``resource_exhausted``."""


AUDIO_FORMAT = DEFAULT_FORMAT
"""How a spoken answer comes: 16-bit mono PCM at 24 kHz, whatever the model's own rate."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for an answer. ``history`` ends with what is to be answered.

    The user's audio in it is 16-bit mono PCM at the model's input rate, and an item with audio has an id. ``modality`` says
    whether the answer is written or spoken, in ``voice``. What is ``None`` is the model's own default.
    """

    history: tuple[Item, ...]
    modality: Modality = Modality.TEXT
    voice: str | None = None
    instructions: str | None = None
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: ToolChoice = ToolMode.AUTO
    parallel_tool_calls: bool = True
    temperature: float | None = None
    max_output_tokens: int | None = None


class ChatText(msgspec.Struct, frozen=True, kw_only=True):
    """More of the answer's words, written or spoken."""

    text: str


class ChatAudio(msgspec.Struct, frozen=True, kw_only=True):
    """More of the answer's sound, in :data:`AUDIO_FORMAT`."""

    pcm: bytes


class ChatToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """More of a tool call; pieces with one ``call_id`` belong together."""

    call_id: str
    name: str
    arguments: str


class ChatDone(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is whole. Always the last event."""

    reason: StopReason
    usage: TokenUsage


ChatEvent = ChatText | ChatAudio | ChatToolCall | ChatDone


class _Chat:
    """One running request: its model session, what waits for it, its stage work and its timers."""

    def __init__(self, request_id: str, model: ModelSession, stages: StageHost, output_rate_hz: int) -> None:
        self.fence = Fence(session_id=request_id).next_turn()
        self._speaking = Speaking(output_rate_hz)
        self._spoken = False
        self._model = model
        self._stages = stages
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[StageReply | Rung[Deadline]] = deque()
        self._filled = asyncio.Event()
        self._work: dict[tuple[str, str], StageRequest] = {}
        self._timers: Timers[Deadline] = Timers(self.put)
        self._stopped: ErrorInfo | None = None

    def stop(self, info: ErrorInfo) -> None:
        """There will be no answer, since nothing more comes from the stages: whoever waits for it is told ``info``."""
        self._stopped = info
        self._filled.set()

    def put(self, entry: StageReply | Rung[Deadline]) -> None:
        self._waiting.append(entry)
        self._filled.set()

    async def events(self, config: SessionConfig, history: tuple[Item, ...]) -> AsyncGenerator[ChatEvent]:
        """Tell the model to answer and pass on what it says, to the end of its turn."""
        self._spoken = config.modality is Modality.AUDIO
        respond = Respond(
            response_id=f"resp_{self.fence.session_id}",
            fence=self.fence,
            config=config,
            history=history,
            cause=ResponseCause.CLIENT,
        )
        told: list[ModelInput] = [Configured(config=config, fence=Fence(session_id=self.fence.session_id)), respond]
        now_ms = self._loop.time() * 1000.0
        while True:
            for each in told:
                for output in self._model.handle(each, now_ms):
                    for event in self._perform(output):
                        yield event
                        if isinstance(event, ChatDone):
                            return
            entry = await self._next()
            now_ms = self._loop.time() * 1000.0
            if isinstance(entry, Rung):
                told, now_ms = [entry.due], entry.time_ms(now_ms)
            else:
                told = [entry]

    def close(self) -> None:
        """Stop all work of this request, give back its seats and end its model session."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._stages.release, self.fence.session_id)
            stack.callback(self._model.handle, Closed(), self._loop.time() * 1000.0)
            for key in list(self._work):
                stack.callback(self._abort, key)
            stack.callback(self._timers.close)

    async def _next(self) -> StageReply | Rung[Deadline]:
        while not self._waiting:
            if self._stopped is not None:
                raise DuplexError(self._stopped)
            self._filled.clear()
            await self._filled.wait()
        entry = self._waiting.popleft()
        if isinstance(entry, StageFailed) or (isinstance(entry, StageOutput) and entry.final):
            self._work.pop((entry.stage, entry.request_id), None)
        if isinstance(entry, StageFailed) and entry.fatal:
            raise DuplexError(entry.error)
        return entry

    def _perform(self, output: ModelOutput) -> Iterator[ChatEvent]:
        """Carry out one output of the model; what the caller gets of it, if anything.

        Raises:
            DuplexError: the model cannot answer.
        """
        match output:
            case Speak() | ToolCall() | EndTurn():
                for each in self._speaking.convert(output, AUDIO_FORMAT) if self._spoken else (output,):
                    yield from self._say(each)
            case Submit(request=request):
                self._submit(msgspec.structs.replace(request, purpose=Purpose.CHAT))
            case Abort(stage=stage, request_id=request_id):
                self._abort((stage, request_id))
            case WakeAt(key=key, at_ms=at_ms):
                self._timers.set(Deadline(key=key), at_ms)
            case Listen():
                yield ChatDone(reason=StopReason.DONE, usage=TokenUsage())
            case Failed(error=info) | Fatal(error=info) | InputRefused(error=info):
                raise DuplexError(info)
            case BeginTurn() | UserTranscript() | TranscriptFailed():
                pass  # about turns and speech, of which a chat has none
            case _:
                assert_never(output)

    def _say(self, decision: Decision) -> Iterator[ChatEvent]:
        """What the caller gets of the answer."""
        match decision:
            case Speak(text=text, pcm=pcm):
                if text:
                    yield ChatText(text=text)
                if pcm and self._spoken:
                    yield ChatAudio(pcm=pcm)
            case ToolCall(call_id=call_id, name=name, arguments=arguments):
                yield ChatToolCall(call_id=call_id, name=name, arguments=arguments)
            case EndTurn(reason=reason, usage=usage):
                yield ChatDone(reason=reason, usage=usage)
            case _:
                raise AssertionError(f"{type(decision).__name__} is no part of an answer")

    def _submit(self, request: StageRequest) -> None:
        self._work[request.stage, request.request_id] = request
        self._stages.submit(request)

    def _abort(self, key: tuple[str, str]) -> None:
        request = self._work.get(key)
        if request is not None:
            self._stages.abort(request.fence, request.stage, request.request_id)
            del self._work[key]


class AsyncOmni:
    """A served model for one request at a time: :meth:`generate`. Made by :meth:`start`."""

    def __init__(self, served: ServedModel, plugins: PluginHost) -> None:
        """Prepare the engine; nothing is loaded before :meth:`start` enters it."""
        self.served = served
        self.plugins = plugins
        self.metrics = EngineMetrics()
        self._stages = StageHost(plugins.runtimes, self._on_told, self.metrics)
        self._chats: dict[str, _Chat] = {}
        self._no_chats = asyncio.Event()
        self._no_chats.set()
        self._stopping = False

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        model: ServedModel | str | None = None,
        *,
        plugins: PluginHost | None = None,
        deploy: Mapping[str, Any] | None = None,
        profile: str | None = None,
    ) -> AsyncIterator[Self]:
        """Load a model and hold it until the ``async with`` block ends.

        Args:
            model: a prepared model, or what ``duplex-server serve`` takes; ``None`` is the embedded default.
            plugins: what is installed; looked up when not given.
            deploy: deploy settings, when ``model`` is not prepared yet.
            profile: the deploy profile that they stand over; ``None`` is the model's default.

        Raises:
            PluginError: no installed package serves the model.
            ModelUnavailable: it cannot be served with these settings.
            StageStartError: a stage did not start.
            DeployError: a deploy setting is wrong, or there is no such profile.
        """
        host, served = resolve(model, plugins, deploy, profile)
        engine = cls(served, host)
        async with engine._running():
            yield engine

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """Hold the stages; requests that run when they are let go are told ``shutdown``."""
        try:
            await self._stages.start(self.served.plan)
        except StageStartError as exc:
            raise StageStartError(f"model {self.served.name}: {exc}") from exc.__cause__
        try:
            yield
        finally:
            self._stopping = True
            for chat in self._chats.values():
                chat.stop(error(ErrorCode.SHUTDOWN, "the server stops; try again later"))
            await self._stages.aclose()

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return not self._stopping and self._stages.healthy()

    @property
    def stages_down(self) -> tuple[str, ...]:
        """The stages that take no requests now; they come back by themselves, where their runtime restarts them."""
        return self._stages.down

    @property
    def chats(self) -> int:
        """Chat requests that run."""
        return len(self._chats)

    async def generate(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        """Answer one request. Closing the generator stops the work.

        Raises:
            DuplexError: the model does not chat, or not in this way; too much is going on; or it failed.
        """
        self._require_chat()
        self._require_ways(request)
        request_id = f"chat_{secrets.token_hex(12)}"
        config = self._config(request)
        model = await asyncio.to_thread(self.served.create_session, request_id, chat=True)
        self._require_chat()  # much may have happened meanwhile
        chat = _Chat(request_id, model, self._stages, self.served.capabilities.output_rate_hz)
        self._chats[request_id] = chat
        self._count_chats()
        try:
            async with contextlib.aclosing(chat.events(config, request.history)) as events:
                async for event in events:
                    yield event
        finally:
            del self._chats[request_id]
            self._count_chats()
            chat.close()

    async def drain(self, drain_s: float) -> None:
        """Take no new request, and give those that run ``drain_s`` seconds to end."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._no_chats.wait()

    def _count_chats(self) -> None:
        self.metrics.chats.set(len(self._chats))
        if self._chats:
            self._no_chats.clear()
        else:
            self._no_chats.set()

    def _require_chat(self) -> None:
        if not self.served.capabilities.chat:
            raise _refusal(ErrorCode.UNSUPPORTED_EVENT, f"model {self.served.name} does not answer chat requests")
        if self._stopping:
            raise _refusal(ErrorCode.SHUTDOWN, "the server stops; try again later")
        self._stages.require()
        if len(self._chats) >= MAX_CHATS:
            raise _refusal(ErrorCode.RESOURCE_EXHAUSTED, f"{MAX_CHATS} chat requests are running; try again soon")

    def _require_ways(self, request: ChatRequest) -> None:
        """Refuse what the model does not take or give in a chat."""
        can = self.served.capabilities
        parts = [part for item in request.history if isinstance(item, MessageItem) for part in item.content]
        for there, able, what in (
            (request.modality is Modality.AUDIO, can.chat_audio_output, "speak in an answer to a chat request"),
            (
                any(isinstance(part, InputAudio) for part in parts),
                can.chat_audio_input,
                "hear speech in a chat request",
            ),
            (
                any(isinstance(part, InputImage) for part in parts),
                can.chat_image_input,
                "see pictures in a chat request",
            ),
        ):
            if there and not able:
                raise _refusal(ErrorCode.UNSUPPORTED_PARAMETER, f"model {self.served.name} does not {what}")

    def _config(self, request: ChatRequest) -> SessionConfig:
        """The model's defaults with the request's settings, without turn detection."""
        changes: dict[str, Any] = {
            "modality": request.modality,
            "output_format": AUDIO_FORMAT,
            "turn_detection": None,
            "transcription": None,
            "tools": request.tools,
            "tool_choice": request.tool_choice,
            "parallel_tool_calls": request.parallel_tool_calls,
        }
        for name in ("voice", "instructions", "temperature", "max_output_tokens"):
            value = getattr(request, name)
            if value is not None:
                changes[name] = value
        return msgspec.structs.replace(self.served.config, **changes)

    def _on_told(self, told: Told) -> None:
        """A stage answers: the request that asked gets it. One that has ended gets nothing."""
        chat = self._chats.get(owner_of(told))
        if chat is None:
            return
        if isinstance(told, StageLost):
            chat.stop(told.error)
        else:
            chat.put(told)


def resolve(
    model: ServedModel | str | None,
    plugins: PluginHost | None,
    deploy: Mapping[str, Any] | None,
    profile: str | None = None,
) -> tuple[PluginHost, ServedModel]:
    """The installed plugins and the prepared model behind the arguments of :meth:`AsyncOmni.start`."""
    host = plugins if plugins is not None else load_plugins([builtins])
    if isinstance(model, ServedModel):
        return host, model

    return host, prepare(host, model, lambda spec: settle(spec, deploy or {}, profile))


def _refusal(code: ErrorCode, message: str) -> DuplexError:
    info: ErrorInfo = error(code, message)
    return DuplexError(info)
