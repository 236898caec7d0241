"""How the stages of each runtime are worked in virtual time, on the caller's thread.

Those of ``thread`` as they are, those of ``torch`` by single steps, those of ``vllm`` by an engine that the test brings along.
Used by :class:`~duplex_core.testing.stages.StageHost` alone. It imports no library of theirs: what a package's factories import
is the package's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from duplex_core.errors import DuplexError
from duplex_core.stages import StageWorker
from duplex_core.workers import BatchedWorker, EngineProgram, EngineSession, SlotWork

SLOTS = 64
"""Sessions and chat requests that a ``torch`` stage holds here at a time."""


class RunsProgram(Protocol):
    """One session's program, driven over some language model: what an engine of the tests gives."""

    def run(self, payload: Any) -> Iterable[Any]:
        """Work on one request; what the program emitted."""


ProgramEngine = Callable[[EngineProgram, EngineSession], RunsProgram]
"""Stands in for the engine of the ``vllm`` runtime: given the stage's program and one session of it, it drives that."""


class Worked(Protocol):
    """A stage that is worked here."""

    def run(self, session_id: str, payload: Any, emit: Callable[[Any], None]) -> None:
        """Do all of one request's work."""

    def release(self, session_id: str) -> None:
        """The session is over."""

    def close(self) -> None:
        """Release what the stage holds."""


class Threaded:
    """A stage of the ``thread`` runtime."""

    def __init__(self, worker: StageWorker) -> None:
        """Work with ``worker``."""
        self.worker = worker

    def run(self, session_id: str, payload: Any, emit: Callable[[Any], None]) -> None:
        """Do all of one request's work."""
        self.worker.run(payload, emit, lambda: False)

    def release(self, session_id: str) -> None:
        """Nothing is kept for a session."""

    def close(self) -> None:
        """Close the worker."""
        self.worker.close()


class Batched:
    """A stage of the ``torch`` runtime: a slot a session, one slot a step."""

    def __init__(self, worker: BatchedWorker) -> None:
        """Start ``worker`` on the CPU."""
        self._worker = worker
        self._worker.start(SLOTS, "cpu")
        self._free = list(reversed(range(SLOTS)))
        self._slots: dict[str, int] = {}

    def run(self, session_id: str, payload: Any, emit: Callable[[Any], None]) -> None:
        """Step until the request is done.

        Raises:
            DuplexError: the worker refused it.
        """
        slot = self._slot(session_id)
        work = SlotWork(slot=slot, payload=payload)
        while True:
            (result,) = self._worker.step((work,))
            if result.refusal is not None:
                raise DuplexError(result.refusal)
            for output in result.outputs:
                emit(output)
            if result.done:
                return
            work = SlotWork(slot=slot)

    def _slot(self, session_id: str) -> int:
        if session_id not in self._slots:
            assert self._free, f"more than {SLOTS} sessions are open at once"
            self._slots[session_id] = self._free.pop()
            self._worker.reset(self._slots[session_id])
        return self._slots[session_id]

    def release(self, session_id: str) -> None:
        """Give the session's slot back."""
        slot = self._slots.pop(session_id, None)
        if slot is not None:
            self._worker.reset(slot)
            self._free.append(slot)

    def close(self) -> None:
        """Close the worker."""
        self._worker.close()


class Programmed:
    """A stage of the ``vllm`` runtime, over an engine that the test brought."""

    def __init__(self, program: EngineProgram, engine: ProgramEngine) -> None:
        """Run sessions of ``program`` on ``engine``."""
        self._program = program
        self._engine = engine
        self._sessions: dict[str, RunsProgram] = {}

    def run(self, session_id: str, payload: Any, emit: Callable[[Any], None]) -> None:
        """Do all of one request's work."""
        if session_id not in self._sessions:
            self._sessions[session_id] = self._engine(self._program, self._program.open(session_id))
        for emitted in self._sessions[session_id].run(payload):
            emit(emitted)

    def release(self, session_id: str) -> None:
        """Forget the session."""
        self._sessions.pop(session_id, None)

    def close(self) -> None:
        """Close the program."""
        self._program.close()
