"""What a model would be served as: its stages, where they run and what they take, told without loading anything.

Owns the description and how it is shown. Called by ``duplex-server plan``. Must never start a stage or import a model's heavy
part.
"""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from duplex_core.stages import StageSpec
from duplex_server.engine.served import ServedModel

MIB = 1024 * 1024


class PlannedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of a stage: on which device, with how many bytes there (``None``: not stated)."""

    device: str
    memory_bytes: int | None


class PlannedStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage. ``sessions`` and ``chats`` are those of all its replicas; ``None`` sessions: no limit of its own."""

    name: str
    runtime: str
    factory: str
    inputs: tuple[str, ...]
    sessions: int | None
    chats: int
    replicas: tuple[PlannedReplica, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What ``serve`` would start. ``memory_bytes`` sums up each device as far as the stages state it."""

    model: str
    package: str
    profile: str | None
    max_sessions: int
    stages: tuple[PlannedStage, ...]
    memory_bytes: dict[str, int]
    settings: dict[str, Any]


def describe(served: ServedModel, *, package: str, profile: str | None, max_sessions: int) -> Plan:
    """The plan of a model that has been prepared."""
    stages = tuple(_stage(spec) for spec in served.plan.stages)
    memory: dict[str, int] = {}
    for stage in stages:
        for replica in stage.replicas:
            if replica.memory_bytes is not None:
                memory[replica.device] = memory.get(replica.device, 0) + replica.memory_bytes
    return Plan(
        model=served.name,
        package=package,
        profile=profile or served.spec.default_profile or None,
        max_sessions=max_sessions,
        stages=stages,
        memory_bytes=memory,
        settings=served.deploy.model_dump(mode="json"),
    )


def _stage(spec: StageSpec) -> PlannedStage:
    resources = spec.resources
    devices = resources.devices or ("this process" if spec.runtime == "thread" else "the runtime's choice",)
    return PlannedStage(
        name=spec.name,
        runtime=spec.runtime,
        factory=spec.factory,
        inputs=tuple(f"{link.source} ({link.kind.value})" for link in spec.inputs),
        sessions=None if resources.sessions is None else resources.sessions * spec.replicas,
        chats=resources.chats * spec.replicas,
        replicas=tuple(
            PlannedReplica(device=devices[index % len(devices)], memory_bytes=resources.memory_bytes)
            for index in range(spec.replicas)
        ),
    )


def show(plan: Plan, console: Console) -> None:
    """Print a plan for people."""
    under = f", profile {plan.profile}" if plan.profile else ""
    console.print(f"{plan.model} ({plan.package}{under}): at most {plan.max_sessions} sessions", markup=False)
    table = Table(padding=(0, 1, 0, 0))
    for title in ("Stage", "Runtime", "Takes from", "Replica", "Device", "Memory", "Sessions", "Chats"):
        table.add_column(title, overflow="fold", min_width=len(title))  # a narrow screen must hide no device
    for stage in plan.stages:
        before, after = _described(stage)
        for index, replica in enumerate(stage.replicas):
            memory = "not stated" if replica.memory_bytes is None else _amount(replica.memory_bytes)
            table.add_row(*before, str(index), replica.device, memory, *after)
            before, after = ("", "", ""), ("", "")  # said once, beside the first replica
    if table.row_count:
        console.print(table)
    else:
        console.print("It has no stages.")
    for device, amount in sorted(plan.memory_bytes.items()):
        console.print(f"{device}: {_amount(amount)} in all", markup=False)


def _described(stage: PlannedStage) -> tuple[tuple[str, str, str], tuple[str, str]]:
    """What is said of a stage as a whole: before its replicas' columns, and behind them."""
    sessions = "any" if stage.sessions is None else str(stage.sessions)
    chats = "any" if stage.runtime == "thread" else str(stage.chats)
    return (stage.name, stage.runtime, ", ".join(stage.inputs) or "the session"), (sessions, chats)


def _amount(count: int) -> str:
    return f"{count / MIB / 1024:.1f} GiB" if count >= 1024 * MIB else f"{count / MIB:.0f} MiB"
