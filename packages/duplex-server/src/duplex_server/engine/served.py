"""The model that an engine serves: which package, which checkpoint, with which settings.

Owns the steps from "what the user typed" to a checked description, all of them before anything is loaded. Called by the
command line and by :meth:`duplex_server.engine.omni.DuplexOmni.start`. Must never load weights or import a model's heavy part.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pydantic

from duplex_core.capabilities import Capabilities
from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorCode, refuse
from duplex_core.model import ModelSession
from duplex_core.patch import SessionPatch, apply_session_patch
from duplex_core.plugins import PluginError, PluginHost
from duplex_core.spec import Checkpoint, ModelSpec, SessionContext
from duplex_core.stages import StagePlan
from duplex_core.transcribing import TranscribedSession, TranscriberSpec
from duplex_server.faults import complaint


class ModelUnavailable(RuntimeError):
    """The model cannot be served with these settings; the message is one clear sentence."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model with its settings, checked and not yet loaded.

    ``name`` is what clients call it: what the user named on the command line, else the package's id. ``transcriber`` hears
    the user's words where the model does not; its stage is part of the plan. ``aliases`` are further names that clients may use.
    """

    name: str
    spec: ModelSpec
    checkpoint: Checkpoint
    deploy: pydantic.BaseModel
    capabilities: Capabilities
    config: SessionConfig
    plan: StagePlan
    transcriber: TranscriberSpec | None = None
    aliases: tuple[str, ...] = ()

    def answers_to(self, name: str) -> bool:
        """Whether a client that asks for ``name`` means this model."""
        return name in (self.name, self.spec.id, *self.aliases)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients are told of, the model's own first."""
        return tuple(dict.fromkeys((self.name, *self.aliases)))

    def create_session(
        self, session_id: str, *, config: SessionConfig | None = None, chat: bool = False
    ) -> ModelSession:
        """The model's side of one session, which begins with ``config``, or of one chat request."""
        session = self.spec.create_session(
            SessionContext(
                session_id=session_id,
                config=config or self.config,
                deploy=self.deploy,
                checkpoint=self.checkpoint,
                chat=chat,
            )
        )
        if self.transcriber is None or chat:
            return session
        stage = self.transcriber.stage.name
        return TranscribedSession(session, stage=stage, rate_hz=self.capabilities.input_rate_hz)

    def configured(self, patch: SessionPatch | None) -> SessionConfig:
        """The configuration that a session begins with, after ``patch``.

        Raises:
            DuplexError: a field of it that cannot be served, by name.
        """
        if patch is None:
            return self.config
        config = apply_session_patch(self.config, self.with_own_name(patch), self.capabilities)
        if config.options != self.config.options:
            config = msgspec.structs.replace(config, options=self.check_options(config.options))
        return config

    def with_own_name(self, patch: SessionPatch) -> SessionPatch:
        """``patch`` with this model's own name, when it asks for it by another."""
        if isinstance(patch.model, str) and self.answers_to(patch.model):
            return msgspec.structs.replace(patch, model=self.config.model)
        return patch

    @property
    def check_options(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """Checks a session's ``options`` with the package's model of them."""
        return lambda options: checked_options(self.spec.options_model, options)


def prepare(
    plugins: PluginHost,
    model: str | None,
    read_deploy: Callable[[ModelSpec], pydantic.BaseModel],
    *,
    aliases: Sequence[str] = (),
) -> ServedModel:
    """Find the package for ``model`` and check that it can serve it with its deploy settings.

    Args:
        plugins: what is installed.
        model: an id, a folder with a checkpoint, a checkpoint's name, or ``None`` for the embedded default.
        read_deploy: gives the deploy settings that the chosen model is served with.
        aliases: further names by which clients may ask for it.

    Raises:
        PluginError: no package serves it, or the one that should is broken.
        ModelUnavailable: the folder holds no checkpoint, or the settings cannot work together.
    """
    checkpoint = read_checkpoint(model) if model is not None else None
    try:
        spec = plugins.select_model(checkpoint)
    except PluginError as exc:
        if checkpoint is not None and (missing := _no_checkpoint(checkpoint)) is not None:
            raise ModelUnavailable(missing) from exc
        raise
    deploy = read_deploy(spec)
    checkpoint = checkpoint or Checkpoint(name=spec.id)
    try:
        plan = spec.stage_plan(checkpoint, deploy)
        capabilities = spec.capabilities(deploy)
        config = spec.session_config(deploy)
    except ValueError as exc:
        raise ModelUnavailable(f"model {spec.id} cannot be served so: {exc}") from exc
    name = model if model is not None and checkpoint.path is None else spec.id
    return ServedModel(
        name=name,
        spec=spec,
        checkpoint=checkpoint,
        deploy=deploy,
        # The server decides about turns, and it has a rule also where no detector hears whether they are finished.
        capabilities=msgspec.structs.replace(capabilities, semantic_vad=True),
        config=msgspec.structs.replace(config, model=name),
        plan=plan,
        aliases=tuple(aliases),
    )


def session_limit(served: ServedModel, wanted: int | None) -> int:
    """Most sessions at a time: as many as wanted, else the model package's default, never more than its stages hold.

    Raises:
        ModelUnavailable: more are wanted than the stages hold.
    """
    limit = served.spec.max_sessions if wanted is None else wanted
    for stage in served.plan.stages:
        each = stage.resources.sessions
        if each is None or limit <= each * stage.replicas:
            continue
        if wanted is not None:
            raise ModelUnavailable(
                f"stage {stage.name} holds {each * stage.replicas} sessions ({stage.replicas} x {each}), fewer than the "
                f"{wanted} of --max-sessions; ask for fewer, or give it more replicas or room in the deploy settings"
            )
        limit = each * stage.replicas
    return limit


def with_transcriber(served: ServedModel, plugins: PluginHost, wanted: str) -> ServedModel:
    """The same model with a transcriber for its sessions.

    Raises:
        ModelUnavailable: there is no such transcriber, or the model transcribes by itself.
    """
    transcriber = plugins.transcribers.get(wanted)
    if transcriber is None:
        known = ", ".join(sorted(plugins.transcribers)) or "none"
        raise ModelUnavailable(f"there is no transcriber {wanted!r}; installed are: {known}")
    if served.capabilities.input_transcription:
        raise ModelUnavailable(f"model {served.name} transcribes by itself; leave the transcriber {wanted} out")
    if transcriber.stage.name in {stage.name for stage in served.plan.stages}:
        raise ModelUnavailable(
            f"the transcriber {wanted} and the model {served.name} both have a stage {transcriber.stage.name!r}; "
            "choose another transcriber"
        )
    return dataclasses.replace(
        served,
        capabilities=msgspec.structs.replace(served.capabilities, input_transcription=True),
        plan=StagePlan(stages=(*served.plan.stages, transcriber.stage)),
        transcriber=transcriber,
    )


def read_checkpoint(model: str) -> Checkpoint:
    """Describe what the user named; when it is a folder, with its ``config.json`` and the names in it.

    Raises:
        ModelUnavailable: the folder's ``config.json`` is not readable JSON.
    """
    folder = Path(model)
    if not folder.is_dir():
        return Checkpoint(name=model)
    config: Mapping[str, Any] = {}
    path = folder / "config.json"
    if path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            raise ModelUnavailable(f"{path} cannot be read: {exc}") from exc
    files = frozenset(each.name for each in folder.iterdir())
    return Checkpoint(name=model, path=str(folder.resolve()), config=config, files=files)


def _no_checkpoint(named: Checkpoint) -> str | None:
    """Why there is no checkpoint where the user pointed, if that is what is wrong; else it is that no package knows it."""
    if named.path is not None:
        if not named.files:
            return f"the folder {named.name} is empty; name one with a checkpoint (its config.json and weights)"
        if not named.config:
            return f"the folder {named.name} holds no checkpoint that an installed model knows: it has no config.json"
        return None
    if not named.name.startswith(("/", ".", "~")) and not Path(named.name).is_absolute():
        return None
    if Path(named.name).exists():
        return f"{named.name} is no folder; name the folder that holds the checkpoint"
    return f"there is no folder {named.name}; name one with a checkpoint, or an installed model (duplex-server models)"


def checked_options(model: type[pydantic.BaseModel], options: dict[str, Any]) -> dict[str, Any]:
    """A session's options after validation, defaults filled in.

    Raises:
        DuplexError: the first option that is unknown or wrong, by name.
    """
    try:
        return model.model_validate(options).model_dump()
    except pydantic.ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        path = ".".join(("session", "options", *map(str, first["loc"])))
        unknown = first["type"] == "extra_forbidden"
        code = ErrorCode.UNKNOWN_PARAMETER if unknown else ErrorCode.INVALID_VALUE
        known = ", ".join(model.model_fields) or "none"
        message = f"{path} is no option of this model; it has: {known}" if unknown else path + complaint(model, first)
        raise refuse(code, message, param=path) from None
