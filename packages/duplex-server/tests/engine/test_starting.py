"""Starting stages and replicas: side by side, but not on the same accelerator, and all or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duplex_core.stages import StageNews, StagePlan, StageRuntimeSpec, StageSpec
from duplex_server.engine.metrics import EngineMetrics
from duplex_server.engine.stages.host import TELL_S, StageHost
from duplex_server.engine.stages.starting import accelerators, start_together
from tests.support.linked import PlayedStage
from tests.support.virtual_loop import in_virtual_time, settle


class CannotLoad(Exception):
    """What a start raises here."""


class Loading:
    """Starts that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self._ends: dict[str, asyncio.Future[None]] = {}

    def __call__(self, name: str) -> Callable[[], Awaitable[None]]:
        end = self._ends[name] = asyncio.get_running_loop().create_future()

        async def start() -> None:
            self.begun.append(name)
            try:
                await end
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise

        return start

    async def end(self, name: str, failure: Exception | None = None) -> None:
        """Let one end, and everyone take note of it."""
        if failure is None:
            self._ends[name].set_result(None)
        else:
            self._ends[name].set_exception(failure)
        await settle()


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        (("cpu",), set()),
        (("cpu", "cuda:1"), {"cuda:1"}),
        (("cuda:0,cuda:1", "cuda:2"), {"cuda:0", "cuda:1", "cuda:2"}),
        ((), {""}),
        (("",), {""}),
    ],
)
def test_which_accelerators_devices_are(devices: tuple[str, ...], found: set[str]) -> None:
    assert accelerators(devices) == found


async def test_what_shares_no_accelerator_starts_side_by_side_and_the_rest_in_turn() -> None:
    loading = Loading()
    devices = {"a": "cuda:0", "b": "cuda:0,cuda:1", "c": "cuda:1", "d": "cuda:2", "e": "cpu"}
    several = [(accelerators((device,)), loading(name)) for name, device in devices.items()]
    starting = asyncio.create_task(start_together(several, CannotLoad))
    await settle()
    assert loading.begun == ["a", "d", "e"]
    await loading.end("a")
    assert loading.begun[3:] == ["b"]
    await loading.end("b")
    assert loading.begun[4:] == ["c"]
    assert not starting.done()
    for name in "cde":
        await loading.end(name)
    assert starting.done()
    await starting


async def test_where_none_is_named_it_may_be_any() -> None:
    loading = Loading()
    several = [
        (accelerators(devices), loading(name)) for name, devices in {"a": ("cuda:3",), "b": (), "c": ("cpu",)}.items()
    ]
    starting = asyncio.create_task(start_together(several, CannotLoad))
    await settle()
    assert loading.begun == ["a", "c"]
    await loading.end("a")
    assert loading.begun[2:] == ["b"]
    await loading.end("b")
    await loading.end("c")
    await starting


async def test_the_first_that_fails_stops_those_that_start_and_those_that_wait() -> None:
    loading = Loading()
    devices = {"a": "cuda:0", "b": "cuda:0", "c": "cuda:1"}
    several = [(accelerators((device,)), loading(name)) for name, device in devices.items()]
    starting = asyncio.create_task(start_together(several, CannotLoad))
    await settle()
    await loading.end("a", CannotLoad("no weights"))
    with pytest.raises(CannotLoad, match="no weights"):
        await starting
    assert (loading.begun, loading.cancelled) == (["a", "c"], ["c"])


async def test_what_is_not_expected_is_not_mistaken_for_it() -> None:
    loading = Loading()
    starting = asyncio.create_task(start_together([(frozenset(), loading("a"))], CannotLoad))
    await settle()
    await loading.end("a", ZeroDivisionError("a slip"))
    with pytest.raises(ExceptionGroup) as caught:
        await starting
    assert caught.group_contains(ZeroDivisionError, match="a slip")


@in_virtual_time
async def test_a_stage_that_takes_long_is_told_of_meanwhile_and_not_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def start(spec: StageSpec, tell: Callable[[StageNews], None]) -> PlayedStage:
        await asyncio.sleep(2.5 * TELL_S)
        return PlayedStage(spec, tell)

    caplog.set_level("INFO")
    runtime = StageRuntimeSpec(id="slow", summary="takes its time", start=start)
    host = StageHost({"slow": runtime}, lambda told: None, EngineMetrics())
    await host.start(StagePlan(stages=(StageSpec(name="thinker", factory="any:thing", runtime="slow"),)))
    await asyncio.sleep(10 * TELL_S)
    await host.aclose()
    assert [record.getMessage() for record in caplog.records if "stage thinker" in record.getMessage()] == [
        "stage thinker is still starting, for 15 s now",
        "stage thinker is still starting, for 30 s now",
        "stage thinker is up after 37.5 s",
    ]
