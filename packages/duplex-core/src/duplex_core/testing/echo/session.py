"""One conversation with echo: the model's side of a session, sans-I/O.

Made by the plugin for each session and each chat request. Answers each :class:`~duplex_core.model.Respond` by having the
stage cut the reply, then speaks a piece whenever it is due. Decides what to say nowhere: that is the reply rule's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from duplex_core.audio import pcm16_ms
from duplex_core.fence import Fence
from duplex_core.items import item_text
from duplex_core.model import (
    Configured,
    Deadline,
    EndTurn,
    Failed,
    InputCommitted,
    Interrupted,
    Listen,
    ModelInput,
    ModelOutput,
    Respond,
    Speak,
    StopReason,
    Submit,
    TokenUsage,
    ToolCall,
    UserTranscript,
    WakeAt,
)
from duplex_core.spec import SessionContext
from duplex_core.stages import Lane, StageFailed, StageOutput, StageRequest
from duplex_core.testing.echo.options import EchoOptions
from duplex_core.testing.echo.reply import RATE_HZ, reply_to
from duplex_core.testing.echo.stage import STAGE, CutWork, Piece
from duplex_core.testing.echo.tools import Call

SPEAK = "speak"
"""Key of the timer that is due when the next piece is."""


class Turn:
    """The answer that is being made: what was cut and not yet spoken, and when the next piece is due."""

    def __init__(self, fence: Fence, usage: TokenUsage, reason: StopReason) -> None:
        """Begin with nothing to say yet."""
        self.fence = fence
        self.usage = usage
        self.reason = reason
        self.pieces: deque[Piece] = deque()
        self.cut = False
        self.due_ms: float | None = None


class EchoSession:
    """See the module's docstring."""

    def __init__(self, context: SessionContext, *, transcribes: bool = True) -> None:
        """Begin a conversation in which nothing was said."""
        self._transcribes = transcribes
        self._paced = not context.chat
        self._options = EchoOptions.model_validate(context.config.options)
        self._turn: Turn | None = None
        self._requests = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        """Take one input; see :class:`~duplex_core.model.ModelSession`."""
        match event:
            case Configured():
                self._options = EchoOptions.model_validate(event.config.options)
            case InputCommitted() if self._transcribes:
                said = f"{pcm16_ms(len(event.pcm), RATE_HZ):.0f} milliseconds"
                return (UserTranscript(item_id=event.item_id, text=said, final=True),)
            case Respond():
                return self._answer(event)
            case StageOutput():
                return self._take(event, now_ms)
            case Deadline():
                return self._speak(now_ms)
            case StageFailed():
                self._turn = None
                return (Failed(fence=event.fence, error=event.error),)
            case Interrupted():
                self._turn = None
                return (WakeAt(key=SPEAK, at_ms=None),)
            case _:
                pass  # echo answers turns: it needs neither the audio as it arrives nor the edits between them
        return ()

    def _answer(self, asked: Respond) -> Sequence[ModelOutput]:
        reply = reply_to(asked.history, asked.config, asked.cause)
        if reply is None:
            return (Listen(fence=asked.fence),)
        read = sum(len(item_text(item).split()) for item in asked.history)
        self._requests += 1
        if isinstance(reply, Call):
            return self._call(asked.fence, reply, read)
        usage = TokenUsage(input_tokens=read, output_tokens=len(reply.text.split()))
        self._turn = Turn(asked.fence, usage, StopReason.MAX_TOKENS if reply.cut else StopReason.DONE)
        request = StageRequest(
            stage=STAGE,
            request_id=f"{STAGE}-{self._requests}",
            fence=asked.fence,
            lane=Lane.OUTPUT,
            payload=CutWork(reply=reply, chunk_ms=self._options.chunk_ms),
        )
        return (Submit(request=request),)

    def _call(self, fence: Fence, call: Call, read: int) -> Sequence[ModelOutput]:
        """A tool call in two pieces, as a language model would stream it."""
        call_id = f"call_{fence.session_id}_{self._requests}"
        half = len(call.arguments) // 2
        first, second = call.arguments[:half], call.arguments[half:]
        usage = TokenUsage(input_tokens=read, output_tokens=len(call.arguments.split()))
        return (
            ToolCall(fence=fence, call_id=call_id, name=call.name, arguments=first),
            ToolCall(fence=fence, call_id=call_id, name=call.name, arguments=second, final=True),
            EndTurn(fence=fence, usage=usage),
        )

    def _take(self, output: StageOutput, now_ms: float) -> Sequence[ModelOutput]:
        turn = self._turn
        if turn is None or output.fence != turn.fence:
            return ()
        if isinstance(output.payload, Piece):
            turn.pieces.append(output.payload)
        turn.cut = turn.cut or output.final
        return self._speak(now_ms)

    def _speak(self, now_ms: float) -> Sequence[ModelOutput]:
        """Speak the pieces that are due, set the timer for the next, end the turn after the last."""
        turn = self._turn
        if turn is None:
            return ()
        outputs: list[ModelOutput] = []
        while turn.pieces and (turn.due_ms is None or turn.due_ms <= now_ms):
            piece = turn.pieces.popleft()
            outputs.append(Speak(fence=turn.fence, text=piece.text, pcm=piece.pcm, marks=piece.marks))
            begun_ms = now_ms if turn.due_ms is None else turn.due_ms
            pace = self._options.pace if self._paced else 0.0  # nobody listens to a chat's answer as it is made
            turn.due_ms = begun_ms + pcm16_ms(len(piece.pcm), RATE_HZ) * pace
        if turn.pieces:
            outputs.append(WakeAt(key=SPEAK, at_ms=turn.due_ms))
        elif turn.cut:
            self._turn = None
            outputs.append(EndTurn(fence=turn.fence, reason=turn.reason, usage=turn.usage))
        return outputs
