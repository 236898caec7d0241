"""A stage on worker processes for tests: started, its news collected, and what it may have left behind looked for.

Used by the tests of the process runtimes. Owns no expectation but that nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from duplex_core.fence import Fence
from duplex_core.stages import (
    Lane,
    Purpose,
    StageFailed,
    StageLost,
    StageNews,
    StageOutput,
    StageReply,
    StageRequest,
    StageSpec,
    StageStats,
)
from duplex_server.engine.stages.processes.pool import Pool
from duplex_server.engine.stages.processes.runtime import start
from duplex_server.engine.stages.processes.settings import ProcessSettings
from tests.support.batched import Ask, Said

DRIVER = "duplex_server.engine.stages.batched.driver:BatchedDriver"
QUICK = ProcessSettings(start_s=60, ping_s=0.1, hang_s=60, stop_s=5, backoff_s=0.05, backoff_most_s=0.4)
"""A replica is started again soon; nothing else is hurried, since the machine may be busy."""


class News:
    """What a stage has told, and a way to wait for more of it."""

    def __init__(self) -> None:
        self.all: list[StageNews] = []
        self.stats: list[StageStats] = []
        self._changed = asyncio.Event()

    def __call__(self, news: StageNews) -> None:
        (self.stats if isinstance(news, StageStats) else self.all).append(news)  # type: ignore[arg-type]
        self._changed.set()

    async def until(self, enough: Callable[[], Any], timeout_s: float = 30) -> None:
        """Wait until ``enough()``, which is asked whenever something has come."""
        async with asyncio.timeout(timeout_s):
            while not enough():
                self._changed.clear()
                await self._changed.wait()

    async def ended(self, count: int) -> None:
        """Wait until so many requests have ended."""
        await self.until(lambda: len(self.ends) >= count)

    async def answer(self, request_id: str) -> StageReply:
        """The end of a request."""
        await self.until(lambda: any(each.request_id == request_id for each in self.ends))
        return next(each for each in self.ends if each.request_id == request_id)

    async def text(self, request_id: str) -> str:
        """What was said last for a request."""
        reply = await self.answer(request_id)
        assert isinstance(reply, StageOutput), reply
        return str(reply.payload.text)

    @property
    def replies(self) -> list[StageReply]:
        return [each for each in self.all if isinstance(each, StageOutput | StageFailed)]

    @property
    def ends(self) -> list[StageReply]:
        return [each for each in self.replies if isinstance(each, StageFailed) or each.final]

    @property
    def lost(self) -> list[StageLost]:
        return [each for each in self.all if isinstance(each, StageLost)]

    def texts(self, request_id: str) -> list[str]:
        """All that was said for a request."""
        outputs = [each for each in self.replies if isinstance(each, StageOutput) and each.request_id == request_id]
        return [each.payload.text for each in outputs if isinstance(each.payload, Said)]


@contextlib.asynccontextmanager
async def running(spec: StageSpec, settings: ProcessSettings = QUICK) -> AsyncIterator[tuple[Pool, News]]:
    """A stage of the ``torch`` runtime."""
    news = News()
    pool = await start(spec, news, driver=DRIVER, settings=settings)
    try:
        yield pool, news
    finally:
        await pool.aclose()


def request(
    session: str, request_id: str, do: str = "count", *, purpose: Purpose = Purpose.SESSION, **options: Any
) -> StageRequest:
    """A request to a :class:`~tests.support.batched.ScriptWorker`."""
    return StageRequest(
        stage="work",
        request_id=request_id,
        fence=Fence(session_id=session),
        lane=Lane.OUTPUT,
        payload=Ask(do=do, **options),
        purpose=purpose,
    )


def chat(chat_id: str, request_id: str, do: str = "count", **options: Any) -> StageRequest:
    """The same for a chat request."""
    return request(chat_id, request_id, do, purpose=Purpose.CHAT, **options)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What this process has of the system's, and what lies in shared memory."""

    children: frozenset[int]
    descriptors: int
    shared_memory: frozenset[str]

    @classmethod
    def now(cls) -> Held:
        """Look."""
        gc.collect()
        mine = str(os.getpid())
        return cls(
            children=frozenset(pid for pid in _processes() if _parent(pid) == mine),
            descriptors=len(os.listdir("/proc/self/fd")),
            shared_memory=frozenset(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else frozenset(),
        )

    def left(self) -> str:
        """What there is now that was not there then; nothing when all is as it was.

        A block of shared memory counts when no living process uses it: others on this machine have theirs.
        """
        after = Held.now()
        new = sorted(after.shared_memory - self.shared_memory)
        blocks = [name for name in new if not any(f"/dev/shm/{name}" in maps for maps in _maps())]
        children = sorted(after.children - self.children)
        more = after.descriptors - self.descriptors
        found = {"processes": children, "descriptors": more, "shared memory": blocks}
        return ", ".join(f"{what}: {which}" for what, which in found.items() if which)


def _maps() -> Iterator[str]:
    """What each process has in its memory."""
    for pid in _processes():
        with contextlib.suppress(OSError):
            yield Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _parent(pid: int) -> str:
    """A process's parent: also a dead one's that nobody has waited for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return status.rpartition(")")[2].split()[1]


def alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
