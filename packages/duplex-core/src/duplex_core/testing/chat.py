"""One chat request, as the server's chat route makes it: a model session of its own, one turn, no session machine.

Used by the conformance kit and by tests of model packages. Works in no time at all; only the order is real.
"""

from __future__ import annotations

from collections import deque

import msgspec
import pydantic

from duplex_core.config import Modality, SessionConfig
from duplex_core.errors import ErrorInfo
from duplex_core.fence import Fence
from duplex_core.items import Item
from duplex_core.model import (
    Closed,
    Configured,
    EndTurn,
    Failed,
    Fatal,
    InputRefused,
    Listen,
    ModelInput,
    ModelOutput,
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
from duplex_core.spec import Checkpoint, ModelSpec, SessionContext
from duplex_core.testing.stages import StageHost


class ChatAnswer(msgspec.Struct, kw_only=True):
    """What came of a chat request. ``calls`` gives each tool call's name and whole arguments, by call id."""

    text: str = ""
    pcm: bytes = b""
    calls: dict[str, tuple[str, str]] = {}
    reason: StopReason | None = None
    usage: TokenUsage = TokenUsage()
    error: ErrorInfo | None = None


def chat(
    spec: ModelSpec,
    history: tuple[Item, ...],
    *,
    host: StageHost,
    config: SessionConfig | None = None,
    deploy: pydantic.BaseModel | None = None,
    checkpoint: Checkpoint | None = None,
    modality: Modality = Modality.TEXT,
) -> ChatAnswer:
    """Answer ``history``, in writing unless ``modality`` says otherwise.

    Raises:
        AssertionError: the model session left the request without an end, or answered with something that no chat has.
    """
    settings = deploy if deploy is not None else spec.deploy_model()
    begun = msgspec.structs.replace(config or spec.session_config(settings), modality=modality)
    fence = Fence(session_id="chat_1").next_turn()
    session = spec.create_session(
        SessionContext(
            session_id=fence.session_id,
            config=begun,
            deploy=settings,
            checkpoint=checkpoint or Checkpoint(name=spec.id),
            chat=True,
        )
    )
    asked = Respond(response_id="chat", fence=fence, config=begun, history=history, cause=ResponseCause.CLIENT)
    inputs: deque[ModelInput] = deque([Configured(config=begun, fence=fence), asked])
    answer = ChatAnswer()
    while inputs and answer.reason is None and answer.error is None:
        for output in session.handle(inputs.popleft(), 0.0):
            if isinstance(output, Submit):
                inputs.extend(host.work(output.request))
            else:
                _take(answer, output)
    assert answer.reason is not None or answer.error is not None, "the chat request was left without an end"
    session.handle(Closed(), 0.0)
    host.release(fence.session_id)
    return answer


def _take(answer: ChatAnswer, output: ModelOutput) -> None:
    match output:
        case Speak(text=text, pcm=pcm):
            answer.text += text
            answer.pcm += pcm
        case ToolCall(call_id=call_id, name=name, arguments=arguments):
            _, before = answer.calls.get(call_id, (name, ""))
            answer.calls[call_id] = (name, before + arguments)
        case EndTurn(reason=reason, usage=usage):
            answer.reason, answer.usage = reason, usage
        case Listen():
            answer.reason = StopReason.DONE
        case Failed(error=error) | Fatal(error=error) | InputRefused(error=error):
            answer.error = error
        case WakeAt(at_ms=at_ms):
            assert at_ms is None, "a chat request waits for no timer: nobody listens to its pace"
        case UserTranscript() | TranscriptFailed():
            pass  # what was recognised is for conversations
        case _:
            raise AssertionError(f"a chat request cannot be answered with {type(output).__name__}")
