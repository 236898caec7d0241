"""Deploy settings: a profile of the model package's, a YAML file, the environment and ``--set``, as one validated value.

Owns where settings come from and how a wrong one is named. Called by the command line before anything is loaded. The model
package's own pydantic model says what there is to set; this knows none of it.

Precedence: ``--set`` before the environment before the file before the profile. The environment spells ``llm.base_url`` as
``DUPLEX_DEPLOY__LLM__BASE_URL``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import pydantic
import yaml

from duplex_core.spec import ModelSpec
from duplex_server.faults import sentences

PREFIX = "DUPLEX_DEPLOY__"


class DeployError(ValueError):
    """A setting cannot be used; the message names it."""


def read_settings(file: Path | None, assignments: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Everything that was set, merged and not yet validated.

    Args:
        file: the YAML file of ``--deploy``.
        assignments: the values of ``--set``: ``key.sub=value``, the value read as YAML.
        environ: the process's environment.

    Raises:
        DeployError: the file cannot be read, or an assignment is malformed.
    """
    settings = {} if file is None else _read_file(file)
    for name, text in sorted(environ.items()):
        if name.startswith(PREFIX):
            path = [part.lower() for part in name.removeprefix(PREFIX).split("__")]
            _put(settings, path, _value(text, name), source=name)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise DeployError(f"--set {assignment}: write it as key=value, with dots in the key for what is inside")
        _put(settings, key.strip().split("."), _value(text, f"--set {key}"), source=f"--set {key}")
    return settings


def profiles(spec: ModelSpec) -> dict[str, str]:
    """The profiles that a model package ships: name and what it is for, the default first.

    Raises:
        DeployError: the package names a folder of profiles that it does not have.
    """
    found = {name: _first_comment(file.read_text(encoding="utf-8")) for name, file in _profile_files(spec).items()}
    return dict(sorted(found.items(), key=lambda each: (each[0] != spec.default_profile, each[0])))


def resolve(spec: ModelSpec, settings: Mapping[str, Any], profile: str | None = None) -> pydantic.BaseModel:
    """The settings that a model is served with: those of a profile, what was set over them, the model's defaults elsewhere.

    Args:
        spec: the model.
        settings: what was set, from :func:`read_settings`.
        profile: one of the package's; ``None`` is its default.

    Raises:
        DeployError: there is no such profile, or a setting is wrong, by its dotted name.
    """
    files = _profile_files(spec)
    name = spec.default_profile if profile is None else profile
    if not name:
        return validate(spec.deploy_model, settings)
    if name not in files:
        known = ", ".join(profiles(spec)) or "none"
        raise DeployError(f"model {spec.id} has no profile {name!r}; it has: {known}")
    return validate(spec.deploy_model, _over(_read_file(files[name]), settings))


def _profile_files(spec: ModelSpec) -> dict[str, Traversable]:
    package, _, folder = spec.profiles.partition(":")
    if not package:
        return {}
    try:
        entries = list((resources.files(package) / folder).iterdir())
    except (ImportError, OSError) as exc:
        raise DeployError(f"model {spec.id} says that its profiles are in {spec.profiles}: {exc}") from exc
    return {entry.name.removesuffix(".yaml"): entry for entry in entries if entry.name.endswith(".yaml")}


def _first_comment(text: str) -> str:
    first = text.partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``below`` with everything that ``above`` sets; what stands inside a setting is merged too."""
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _over(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def validate(model: type[pydantic.BaseModel], settings: Mapping[str, Any]) -> pydantic.BaseModel:
    """The settings as the model package wants them.

    Raises:
        DeployError: what is wrong, each setting by its dotted name.
    """
    try:
        return model.model_validate(dict(settings))
    except pydantic.ValidationError as exc:
        raise DeployError(sentences("deploy setting", model, exc)) from None


def _read_file(path: Path | Traversable) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise DeployError(f"the deploy file {path} cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise DeployError(f"the deploy file {path} cannot be read: it is not text in UTF-8") from exc
    except yaml.YAMLError as exc:
        raise DeployError(f"the deploy file {path} is not YAML: {_where(exc)}") from exc
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise DeployError(f"the deploy file {path} must hold settings as 'key: value' lines")
    return document


def _where(exc: yaml.YAMLError) -> str:
    """Where a YAML file is wrong, and how."""
    if not isinstance(exc, yaml.MarkedYAMLError) or exc.problem_mark is None:
        return " ".join(str(exc).split())
    mark = exc.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {exc.problem}"


def _value(text: str, source: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise DeployError(f"{source}: {text!r} is not a YAML value; quote it") from exc


def _put(settings: dict[str, Any], path: Sequence[str], value: Any, *, source: str) -> None:
    inner = settings
    for part in path[:-1]:
        below = inner.setdefault(part, {})
        if not isinstance(below, dict):
            raise DeployError(f"{source}: {part} is set to {below!r} elsewhere, which has nothing inside")
        inner = below
    inner[path[-1]] = value
