"""What a stage's factory returns on the runtimes whose workers are processes: ``torch`` and ``vllm``.

Model packages implement these protocols; the server's runtimes drive them, inside the worker process, on one thread. They
are sans-I/O: they await nothing, read no clock and know no process. Sessions and chat requests are alike to them. Nothing
here imports torch or vllm; ``Any`` in a payload is what the model package's ``payloads`` type says.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from duplex_core.errors import ErrorCode, ErrorInfo, error
from duplex_core.tensors import Tensor

# -- torch: slots and batched steps ------------------------------------------------------------------------------------


class SlotWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one slot takes part in a step with.

    ``payload`` is the request's payload on the first step of a request and ``None`` on its further ones.
    """

    slot: int
    payload: Any = None


class SlotResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step gave for one slot.

    ``outputs`` are payloads for the session, or :class:`~duplex_core.stages.Forward` for the links. ``done`` ends the request;
    until then the slot takes part in the next step as well. ``failed`` refuses this slot's request, and only that; the slot is
    left as if the request had never been. A sentence alone is a fault of the stage (``engine_error``, which a client may try
    again); what is the client's to change is an :class:`~duplex_core.errors.ErrorInfo` whose code says so, such as
    ``invalid_value`` with the ``param`` that is at fault.
    """

    slot: int
    outputs: tuple[Any, ...] = ()
    done: bool = True
    failed: str | ErrorInfo | None = None

    @property
    def refusal(self) -> ErrorInfo | None:
        """What the session is told when the request was refused."""
        return error(ErrorCode.ENGINE_ERROR, self.failed) if isinstance(self.failed, str) else self.failed


class BatchedWorker(Protocol):
    """A module with slots, one for each session, that computes all that is due in one batched step.

    A step's result for a slot must not depend on which other slots take part: idle ones are masked.
    """

    frame_ms: float | None
    """Period of a frame-locked stage: a request must be answered within it. ``None`` has no deadline."""

    def start(self, slots: int, device: str) -> None:
        """Load the weights onto ``device`` and make ``slots`` empty slots; on a GPU, capture graphs here. Called once."""

    def reset(self, slot: int) -> None:
        """A session begins in this slot, or the one in it has ended: make its state a new session's, touch no other's."""

    def step(self, work: Sequence[SlotWork]) -> Sequence[SlotResult]:
        """Compute one step for these slots, in any order, and answer each.

        What it raises ends the worker process, and with it the sessions that it served.
        """

    def interrupted(self, slot: int) -> None:
        """The slot's request was aborted between two steps; its state stays that of the session."""

    def close(self) -> None:
        """Release what is held."""


# -- vllm: one resumable request a session ----------------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens after an append are chosen.

    Attributes:
        max_tokens: most tokens of this segment.
        temperature: 0 is greedy.
        top_k: 0 is all.
        top_p: 1 is all.
        seed: of this request's own random numbers; ``None`` is the engine's.
        stop_token_ids: tokens that end the segment; the one that did is its last.
        allowed_token_ids: the only tokens that may be chosen; empty is all.
        logit_bias: added to single tokens' logits.
        decider: the options of the program's :class:`TokenDecider` for this segment: then it chooses every token and all the
            above but ``max_tokens`` and ``stop_token_ids`` says nothing. Plain values only.
    """

    max_tokens: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = {}
    decider: Mapping[str, Any] | None = None


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Feed positions to the session's request, then let it choose tokens. The program is sent a :class:`Segment`.

    ``ids`` has one entry for each position; where ``embeds`` has something for it, the entry is ignored. ``embeds`` is
    ``[n, hidden]`` for the positions listed in ``embed_at`` (rising, relative to this append). ``hidden`` asks for the last
    layer's hidden states. With ``fresh`` what was fed before is forgotten first: the request begins anew with these positions
    (after a window has moved).

    With ``kept`` these positions are ``[start, stop)`` of what had been fed when ``fresh`` was said last: their keys and values
    are moved here, the keys rotated to their new positions, and nothing is computed; ``ids`` has that length and says nothing.
    So a window moves: a fresh append that keeps the beginning, then one that keeps what the window keeps.

    The last token of each segment has been chosen but not computed; the runtime feeds it itself, before ``ids``, unless
    ``drop_last`` says that it is to be forgotten.
    """

    ids: Sequence[int]
    sampling: Sampling
    embeds: Tensor | None = None
    embed_at: Sequence[int] = ()
    hidden: bool = False
    fresh: bool = False
    drop_last: bool = False
    kept: tuple[int, int] | None = None


class SegmentEnd(enum.Enum):
    """Why a segment ended."""

    STOP = "stop"
    """A stop token, or the end-of-sequence token, which is then its last."""
    LENGTH = "length"
    """``max_tokens``."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """What an append gave.

    Attributes:
        ids: the chosen tokens.
        end: why they ended.
        hidden: if asked for, ``[fed, hidden]`` float32 of all positions computed: the re-fed token, the append's own, then the
            chosen tokens but the last, which has not been computed.
        fed: how many positions that is.
        context: positions in the request's KV cache now.
        told: what the decider had to tell, one entry a token, when it told anything.
    """

    ids: tuple[int, ...]
    end: SegmentEnd
    fed: int
    context: int
    hidden: Tensor | None = None
    told: tuple[Any, ...] = ()


class Emit(msgspec.Struct, frozen=True, kw_only=True):
    """Give this to the session, or to the links when it is a :class:`~duplex_core.stages.Forward`. Sent back: ``None``."""

    payload: Any


ProgramStep = Append | Emit


class EngineSession(Protocol):
    """One session's side of the stage: what to feed for each payload."""

    def run(self, payload: Any) -> Generator[ProgramStep, Segment | None, None]:
        """Work on one request. Every append yields; the segment that it gave is sent in.

        An interruption closes the generator at a yield (``GeneratorExit``). The runtime keeps what was fed and chosen before,
        and feeds it again to a new request when the next append comes, so the program only keeps its own books right.

        Raises:
            DuplexError: something that can be expected to go wrong did; the request fails with its ``info``, whose code says
                whether that is the client's to change (:func:`~duplex_core.errors.refuse` makes one). A full context is raised
                *into* the generator, at the append that would not fit, as :class:`duplex_core.errors.DuplexError` with code
                ``context_length_exceeded``; nothing of that append has been fed.
        """


class TokenDecider(Protocol):
    """Chooses every token of the segments that ask for it, inside the engine. Made once in the engine's process."""

    def decide(
        self, logits: Any, chosen: Sequence[int], told: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[int, Any]:
        """Choose one token.

        Args:
            logits: torch tensor ``[vocabulary]`` float32, raw.
            chosen: the tokens of this segment so far.
            told: what was told with each of them.
            options: ``Sampling.decider`` of the segment.

        Returns:
            the token, and anything plain to be told to the program (``None`` for nothing).
        """


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What engine a program runs on.

    Attributes:
        model: folder of the checkpoint.
        max_model_len: positions of one session's context.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        architecture: import path of a model class to register under ``architecture_name``, for checkpoints that vLLM does not
            know, or whose class has to be given embeddings.
        architecture_name: the name in the checkpoint's ``config.json`` (``architectures``), or in ``hf_overrides``.
        embeddings: whether appends carry embeddings.
        decider: import path of a :class:`TokenDecider`'s class, called without arguments.
        engine_args: further arguments of vLLM's ``AsyncEngineArgs``, as they are.
    """

    model: str
    max_model_len: int
    dtype: str = "auto"
    architecture: str = ""
    architecture_name: str = ""
    embeddings: bool = False
    decider: str = ""
    engine_args: Mapping[str, Any] = {}


class EngineProgram(Protocol):
    """What a factory of the ``vllm`` runtime returns: light to make, since the engine loads the weights."""

    def settings(self) -> EngineSettings:
        """What engine to start. Called once, before anything else."""

    def open(self, session_id: str) -> EngineSession:
        """A session begins, or a chat request does."""

    def close(self) -> None:
        """Release what is held."""
