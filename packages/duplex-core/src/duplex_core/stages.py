"""Where a model's work is done: plans of stages, requests to them and their outputs.

A model package describes its pipeline as a :class:`StagePlan`; the server starts each :class:`StageSpec` on a runtime and
moves :class:`StageRequest` and :class:`StageOutput` between model sessions and stages. Payloads are typed by the model
package alone; nobody else looks inside. Nothing here imports a runtime.

A request may flow through several stages. What a stage emits as :class:`Forward` goes along the plan's links to the next
stages, chunk by chunk, without a detour through the session; all of it is one request to the session, which ends when every
stage on its way has ended, and whose abort reaches every stage at once.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from duplex_core.errors import ErrorInfo
from duplex_core.fence import Fence


class Lane(enum.Enum):
    """Which half of the conversation a piece of work belongs to."""

    INPUT = "input"
    """Understanding the user: survives an interruption of the answer."""
    OUTPUT = "output"
    """Making the answer: aborted, and its late results dropped, when the epoch advances."""


class LinkKind(enum.Enum):
    """What a link between two stages carries."""

    TOKENS = "tokens"
    EMBEDDINGS = "embeddings"
    HIDDEN_STATES = "hidden_states"
    CODEC_FRAMES = "codec_frames"
    AUDIO = "audio"


class StageLink(msgspec.Struct, frozen=True, kw_only=True):
    """An edge of a pipeline: what ``source`` forwards as ``kind`` is work for the stage that has this among its inputs."""

    source: str
    kind: LinkKind


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica of a stage takes, and how much it holds.

    Attributes:
        devices: the devices of each replica, replica ``i`` on the ``i``-th entry (counted round): ``cpu``, ``cuda:0``, or
            several joined by commas for a replica that spans them; empty leaves it to the runtime.
        memory_bytes: memory on the device that one replica takes; ``None`` is not stated.
        sessions: sessions that one replica holds at a time; ``None`` is no limit of the stage's own.
        chats: chat requests that one replica works on at a time, beside its sessions; more of them wait in line.
    """

    devices: tuple[str, ...] = ()
    memory_bytes: int | None = None
    sessions: int | None = None
    chats: int = 1


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline.

    ``factory`` is an import path ``package.module:callable`` that is resolved where the stage runs and called with
    ``options`` as keyword arguments; it returns what the runtime named by ``runtime`` asks for (``thread``: a
    :class:`StageWorker`; ``torch`` and ``vllm``: see :mod:`duplex_core.workers`). ``concurrency`` is the number of sessions
    that a ``thread`` stage works on at once.

    ``inputs`` are the links by which work reaches the stage from other stages. ``payloads`` is the import path of a light
    module's type (a struct, or a union of tagged structs) that every payload to and from this stage belongs to; runtimes
    whose workers are processes need it.
    """

    name: str
    factory: str
    runtime: str = "thread"
    options: Mapping[str, Any] = {}
    concurrency: int = 1
    replicas: int = 1
    inputs: tuple[StageLink, ...] = ()
    payloads: str = ""
    resources: Resources = Resources()


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of one model, in the order in which they start.

    Raises:
        ValueError: two stages of one name, a number or devices that cannot be, a link from a stage that is not there, or links
            that go round in a circle.
    """

    stages: tuple[StageSpec, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a plan that cannot run."""
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the plan has two stages {name!r}; give each its own name")
        for stage in self.stages:
            _check(stage)
            for link in stage.inputs:
                if link.source not in names:
                    known = ", ".join(names)
                    raise ValueError(
                        f"stage {stage.name!r} has an input from {link.source!r}, but the plan has: {known}"
                    )
        left = {stage.name: {link.source for link in stage.inputs} for stage in self.stages}
        while left:
            free = [name for name, sources in left.items() if not sources & left.keys()]
            if not free:
                raise ValueError(f"the links between the stages {', '.join(sorted(left))} go round in a circle")
            for name in free:
                del left[name]

    def after(self, source: str, kind: LinkKind) -> tuple[str, ...]:
        """The stages that take what ``source`` forwards as ``kind``."""
        link = StageLink(source=source, kind=kind)
        return tuple(stage.name for stage in self.stages if link in stage.inputs)


def _check(stage: StageSpec) -> None:
    """Refuse a stage with numbers or devices that cannot be."""
    resources = stage.resources
    least = {
        "replicas": (stage.replicas, 1),
        "concurrency": (stage.concurrency, 1),
        "resources.sessions": (resources.sessions, 0),
        "resources.chats": (resources.chats, 0),
        "resources.memory_bytes": (resources.memory_bytes, 0),
    }
    for name, (value, bound) in least.items():
        if value is not None and value < bound:
            raise ValueError(f"{name} of stage {stage.name!r} must be at least {bound}, not {value}")
    devices: Any = resources.devices
    if isinstance(devices, str) or not all(isinstance(each, str) and each for each in devices):
        raise ValueError(
            f"resources.devices of stage {stage.name!r} must be a list with a text for each replica, such as "
            f"('cuda:0', 'cuda:1'), not {devices!r}"
        )


class Purpose(enum.Enum):
    """For whom a piece of work is done: the two have seats of their own in a stage, so that neither starves the other."""

    SESSION = "session"
    """A duplex session: it holds a seat from admission to its end."""
    CHAT = "chat"
    """A chat request: it waits in line for a seat."""


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """Emitted by a stage's worker: ``payload`` is work for each stage that is linked to it by ``kind``.

    ``payload=None`` is nothing to do (a model that chose to listen has nothing to say) and goes nowhere.
    """

    kind: LinkKind
    payload: Any


class StageMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage did for one request; told once, with the request's final output or its failure.

    A stage tells the times from the moment at which it was given the request; ``begun_ms`` and ``whole`` are the engine's to
    say, and a stage leaves them as they are.

    Attributes:
        stage: which stage.
        begun_ms: when the stage was given the request, from the moment at which the session submitted it: 0 for the first
            stage, later for one down the links.
        queue_ms: from submission to the first work on it.
        first_ms: from submission to the first output; ``None`` when it had none.
        total_ms: from submission to its end.
        input_tokens: tokens (or positions) computed as a prompt; 0 for stages without tokens.
        output_tokens: tokens generated.
        ms_per_token: mean time between two generated tokens; ``None`` below two.
        steps: batched steps taken part in.
        deadline_misses: steps that ended after their deadline.
        preemptions: times that the engine set the request aside and computed it again.
        whole: whether this is all. ``False`` for work that was cut off before the stage had told its figures: the times are the
            engine's own then, and the counts leave that work out.
    """

    stage: str
    begun_ms: float = 0.0
    queue_ms: float = 0.0
    first_ms: float | None = None
    total_ms: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    ms_per_token: float | None = None
    steps: int = 0
    deadline_misses: int = 0
    preemptions: int = 0
    whole: bool = True


class StageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Work for one stage. ``request_id`` is unique within the session."""

    stage: str
    request_id: str
    fence: Fence
    lane: Lane
    payload: Any
    purpose: Purpose = Purpose.SESSION

    def output(
        self,
        payload: Any = None,
        *,
        final: bool = False,
        made_by: str = "",
        forward: Forward | None = None,
        metrics: tuple[StageMetrics, ...] = (),
    ) -> StageOutput:
        """A piece of the answer to this request; the arguments are the fields of :class:`StageOutput`."""
        return StageOutput(
            stage=self.stage,
            request_id=self.request_id,
            fence=self.fence,
            lane=self.lane,
            payload=payload,
            final=final,
            made_by=made_by,
            forward=forward,
            metrics=metrics,
        )

    def failed(self, error: ErrorInfo, *, fatal: bool = False, metrics: tuple[StageMetrics, ...] = ()) -> StageFailed:
        """The end of this request without an answer; the arguments are the fields of :class:`StageFailed`."""
        return StageFailed(
            stage=self.stage,
            request_id=self.request_id,
            fence=self.fence,
            lane=self.lane,
            error=error,
            fatal=fatal,
            metrics=metrics,
        )


class StageOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a stage's answer. ``final`` ends the request; a final output may have ``payload=None``.

    ``stage`` and ``request_id`` are those that the session submitted, also when a stage further down the links made this
    piece; ``made_by`` names that stage then (empty: ``stage`` itself). ``forward`` is for the links and no session sees it.
    ``metrics`` come with the final output, one entry for each stage that worked on the request, the first stage's first.
    """

    stage: str
    request_id: str
    fence: Fence
    lane: Lane
    payload: Any
    final: bool = False
    made_by: str = ""
    forward: Forward | None = None
    metrics: tuple[StageMetrics, ...] = ()


class StageFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A request ended without its final output. ``fatal`` says that the stage itself died.

    ``metrics`` are as for :class:`StageOutput`: what is known of the work until then.
    """

    stage: str
    request_id: str
    fence: Fence
    lane: Lane
    error: ErrorInfo
    fatal: bool = False
    metrics: tuple[StageMetrics, ...] = ()


StageReply = StageOutput | StageFailed
"""What comes back to who submitted a request."""


class StageLost(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage held for a session is gone, with the replica that held it: the session cannot go on.

    Told for every session that had a seat there, whether or not it had a request open; those requests get nothing else.
    """

    stage: str
    session_id: str
    error: ErrorInfo


class StageStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage measured since it last told: for the server's metrics alone.

    Attributes:
        stage: which stage.
        replica: which of its replicas; ``None`` is the stage as a whole.
        gauges: values as they are now, by name.
        counts: how often things happened, by name.
        samples: single measurements, by name; those that are times are in seconds.
    """

    stage: str
    replica: int | None = None
    gauges: Mapping[str, float] = {}
    counts: Mapping[str, int] = {}
    samples: Mapping[str, Sequence[float]] = {}


StageNews = StageReply | StageLost | StageStats
"""What a running stage tells the engine."""


class StagePort(Protocol):
    """A running stage as the orchestrator sees it. All methods are called on the event loop and never block."""

    def place(self, session_id: str) -> None:
        """Give a session a seat, which it holds until :meth:`release`. Called before its first request; idempotent.

        Chat requests are not placed; the first request of one waits in line for a seat.

        Raises:
            DuplexError: every seat is taken, or no replica is up; nothing has changed.
        """

    def release(self, session_id: str) -> None:
        """The session, or the chat request, is over: forget all of it, and free its seat. Idempotent."""

    def submit(self, request: StageRequest) -> None:
        """Queue ``request``. Every request gets exactly one final output or one failure, unless it is aborted.

        Requests of one session run one at a time, in the order submitted.
        """

    def abort(self, session_id: str, request_id: str | None = None) -> None:
        """Stop one request, or all of a session's. No output of it is delivered after this call returns."""

    def healthy(self) -> bool:
        """Whether the stage takes requests."""


class RunningStage(StagePort, Protocol):
    """What a runtime gives for one started stage: its port, and the way to stop it."""

    async def aclose(self) -> None:
        """Stop the stage and release what it holds. Requests still open get no reply. Called once, on the event loop."""


StartStage = Callable[[StageSpec, Callable[[StageNews], None]], Awaitable[RunningStage]]
"""Start one stage; its news are handed to the second argument, on the event loop that called."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageRuntimeSpec:
    """A place where stages can run, which a :class:`StageSpec` names in ``runtime``.

    Attributes:
        id: what a stage's ``runtime`` says: ``thread``, ``vllm``...
        summary: one line for people; it says what a stage's ``factory`` must return on this runtime.
        check: raises what ``start`` would when the stage's description lacks something that the runtime needs. Called for all
            stages before any is started, and to show what would be; it loads nothing heavy. ``None``: nothing is checked.
        start: called on the event loop for each stage of the served model: those that share an accelerator one after the
            other, in the order of the plan, the others at the same time. It returns when the stage takes requests, with its
            weights loaded; loading must not block the loop. What it raises stops the server's start, and the starts that
            are under way are cancelled. A stage that dies later answers its open requests with ``StageFailed(fatal=True)``
            and is no longer ``healthy``.
    """

    id: str
    summary: str
    start: StartStage
    check: Callable[[StageSpec], None] | None = None


class StageWorker(Protocol):
    """What a factory of the ``thread`` runtime returns. Constructed, called and closed off the event loop."""

    def run(self, payload: Any, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        """Work on one request: ``emit`` each piece, stop soon after ``cancelled()`` becomes true, return when done.

        Raises:
            DuplexError: something that can be expected to go wrong did (a service that cannot be reached, a request that the
                model refuses). The client is told its ``info``; the log gets one line with its cause. Anything else that is
                raised is a fault of the worker: the client is told that the stage failed, and the log gets the traceback.
        """

    def close(self) -> None:
        """Release what the worker holds."""
