"""What a model package registers: one :class:`ModelSpec` per model family.

Read by the server at start. Everything here is light: the heavy part is behind import paths in the stage plan and loads
when a stage starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from duplex_core.capabilities import Capabilities
from duplex_core.config import SessionConfig
from duplex_core.model import ModelSession
from duplex_core.stages import StagePlan


class NoOptions(pydantic.BaseModel):
    """The options model of a model that has none: any option is refused by name."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What ``duplex-server serve MODEL`` was pointed at.

    ``name`` is what the user typed. ``config`` is the parsed ``config.json`` beside the weights and ``files`` the names in
    that folder; both are empty for a model whose weights come inside its packages.
    """

    name: str
    path: str | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """What a model session is made from.

    ``deploy`` holds the validated deploy settings; ``chat`` says that the session serves one chat request.
    """

    session_id: str
    config: SessionConfig
    deploy: pydantic.BaseModel
    checkpoint: Checkpoint
    chat: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model family, as its package describes it.

    Attributes:
        id: unique name, also what ``serve`` accepts and ``/v1/models`` lists when no checkpoint is named.
        summary: one line for ``duplex-server models``.
        claims: whether this package serves the checkpoint; cheap, must not raise on any input.
        claims_text: what ``claims`` looks for, for people.
        capabilities: what sessions can do, given the validated deploy settings.
        session_config: the defaults of a session: instructions, voice, turn detection.
        deploy_model: pydantic model of the deploy settings (YAML file, ``--set``), with ``extra="forbid"``.
        options_model: pydantic model of the session's ``options``, with ``extra="forbid"``.
        stage_plan: the stages for a checkpoint and deploy settings. Raises ``ValueError`` with a clear sentence when
            they cannot work together; must not load weights.
        create_session: makes the model's side of one session, or of one chat request (``context.chat``).
        embedded: the package needs no checkpoint and may be the default when no model is named.
        profiles: where the package keeps its deploy profiles: ``package:folder`` inside it, with one YAML file of deploy settings
            for each profile, named after it; the comment on a file's first line says what it is for. Empty: it has none.
        default_profile: the one that is taken when the operator names none.
        max_sessions: default number of sessions that the default profile holds.
    """

    id: str
    summary: str
    claims: Callable[[Checkpoint], bool]
    claims_text: str
    capabilities: Callable[[pydantic.BaseModel], Capabilities]
    session_config: Callable[[pydantic.BaseModel], SessionConfig]
    stage_plan: Callable[[Checkpoint, pydantic.BaseModel], StagePlan]
    create_session: Callable[[SessionContext], ModelSession]
    deploy_model: type[pydantic.BaseModel] = NoOptions
    options_model: type[pydantic.BaseModel] = NoOptions
    embedded: bool = False
    max_sessions: int = 4
    profiles: str = ""
    default_profile: str = ""
