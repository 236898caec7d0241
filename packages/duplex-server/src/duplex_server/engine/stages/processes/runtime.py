"""A runtime whose workers are processes, from the import path of its driver.

Called where runtimes are registered (:mod:`duplex_server.builtins`; a plugin may do the same with a driver of its own), and by
the host of the stages through what is registered. Must never import a driver: that happens in the worker process.
"""

from __future__ import annotations

from collections.abc import Callable

from duplex_core.stages import StageNews, StageRuntimeSpec, StageSpec
from duplex_server.engine.stages.processes.pool import Pool, check
from duplex_server.engine.stages.processes.settings import ProcessSettings


def runtime(name: str, summary: str, *, driver: str, settings: ProcessSettings | None = None) -> StageRuntimeSpec:
    """A runtime to be registered.

    Args:
        name: what a stage's ``runtime`` says.
        summary: one line for people; it says what a stage's ``factory`` must return.
        driver: import path of a :class:`~duplex_server.engine.stages.processes.driver.Driver`'s class.
        settings: how its processes are watched.
    """
    chosen = settings or ProcessSettings()

    async def start_stage(stage: StageSpec, news: Callable[[StageNews], None]) -> Pool:
        return await start(stage, news, driver=driver, settings=chosen)

    return StageRuntimeSpec(id=name, summary=summary, start=start_stage, check=check)


async def start(stage: StageSpec, news: Callable[[StageNews], None], *, driver: str, settings: ProcessSettings) -> Pool:
    """Start ``stage``, all its replicas, and return when each is ready.

    Raises:
        StageLoadError: the plan lacks something, or a replica did not start. No process is left.
    """
    pool = Pool(stage, news, driver=driver, settings=settings)
    try:
        await pool.start()
    except BaseException:
        await pool.aclose()
        raise
    return pool
