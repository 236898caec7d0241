"""What is wrong with a value that a person set, in that person's words.

Owns the sentences for what pydantic found. Called where settings are validated: the deploy settings
(:mod:`duplex_server.deploy`) and a session's options (:mod:`duplex_server.engine.served`). Pure. Must never
show the value of a secret, or pydantic's own vocabulary where there is a plainer word.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import pydantic
from pydantic_core import ErrorDetails

Context = Mapping[str, Any]

LONGEST_VALUE = 60
"""Characters of a wrong value that are shown."""


def sentences(kind: str, model: type[pydantic.BaseModel], exc: pydantic.ValidationError) -> str:
    """Every fault by the dotted name of its setting, joined by semicolons.

    Args:
        kind: what one of the values is called, for example ``deploy setting``.
        model: what they were validated with.
        exc: what came of that.
    """
    faults = exc.errors(include_url=False)
    return "; ".join(_sentence(kind, model, fault) for fault in faults if not _follows(fault, faults))


def _follows(fault: ErrorDetails, faults: Sequence[ErrorDetails]) -> bool:
    """Whether a fault is only that a list lacks entries, since those that were given are wrong themselves."""
    path = fault["loc"]
    inside = any(other["loc"][: len(path)] == path and len(other["loc"]) > len(path) for other in faults)
    return fault["type"] == "too_short" and inside


def _sentence(kind: str, model: type[pydantic.BaseModel], fault: ErrorDetails) -> str:
    path = fault["loc"]
    if fault["type"] == "extra_forbidden":
        return _unknown(kind, model, path)
    return f"{kind} {_dotted(path)}{complaint(model, fault)}" if path else f"the {kind}s{complaint(model, fault)}"


def complaint(model: type[pydantic.BaseModel], fault: ErrorDetails) -> str:
    """What follows the name of a setting that is there and has a wrong value: ``" must be at least 1, not 0"``."""
    path, context, kind = fault["loc"], fault.get("ctx", {}), fault["type"]
    if kind in ("value_error", "assertion_error"):
        return f": {context['error']}"
    inner = _at(model, path)
    if inner is not None and kind in ("model_type", "model_attributes_type", "dict_type"):
        return f" has settings inside ({_names(inner)}); it cannot be {_shown(fault['input'])} itself"
    wanted = _WANTED.get(kind)
    told = wanted(context) if wanted is not None else fault["msg"].replace("Input should be", "must be")
    if kind in ("missing", "too_short", "too_long"):
        return f" {told}"
    seen = "" if _secret(model, path) else f", not {_shown(fault['input'])}"
    quoted = "; put it in quotes" if kind == "string_type" else ""
    return f" {told}{seen}{quoted}"


def _unknown(kind: str, model: type[pydantic.BaseModel], path: Sequence[str | int]) -> str:
    """There is no such setting: those that there are beside it, and the one that was probably meant."""
    beside = _at(model, path[:-1])
    known = _names(beside) if beside is not None else "none"
    near = difflib.get_close_matches(str(path[-1]), beside.model_fields if beside is not None else (), n=1)
    meant = f"; did you mean {_dotted([*path[:-1], *near])}?" if near else ";"
    where = f"{_dotted(path[:-1])} has" if path[:-1] else "there are"
    return f"there is no {kind} {_dotted(path)}{meant} {where}: {known}"


def _entries(context: Context, which: str) -> str:
    count = context[f"{which}_length"]
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _list(_: Context) -> str:
    return "must be a list, for example [first, second]"


def _whole(_: Context) -> str:
    return "must be a whole number"


def _number(_: Context) -> str:
    return "must be a number"


def _bool(_: Context) -> str:
    return "must be true or false"


def _address(_: Context) -> str:
    return "must be an address like http://127.0.0.1:9000/v1"


_WANTED: Mapping[str, Callable[[Context], str]] = {
    "missing": lambda _: "is missing",
    "string_type": lambda _: "must be text",
    "literal_error": lambda context: f"must be {context['expected']}",
    "enum": lambda context: f"must be {context['expected']}",
    "int_type": _whole,
    "int_parsing": _whole,
    "int_from_float": _whole,
    "float_type": _number,
    "float_parsing": _number,
    "bool_type": _bool,
    "bool_parsing": _bool,
    "list_type": _list,
    "tuple_type": _list,
    "set_type": _list,
    "frozen_set_type": _list,
    "url_type": _address,
    "url_parsing": _address,
    "url_scheme": _address,
    "greater_than": lambda context: f"must be more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"must be at least {context['ge']:g}",
    "less_than": lambda context: f"must be less than {context['lt']:g}",
    "less_than_equal": lambda context: f"must be at most {context['le']:g}",
    "too_short": lambda context: f"needs at least {_entries(context, 'min')}",
    "too_long": lambda context: f"has room for {_entries(context, 'max')} at most",
}


def _dotted(path: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _names(model: type[pydantic.BaseModel]) -> str:
    return ", ".join(model.model_fields) or "none"


def _annotation(model: type[pydantic.BaseModel], path: Sequence[str | int]) -> Any:
    """What the setting at ``path`` is declared as; ``None`` where that cannot be told."""
    found: Any = model
    for part in path:
        if isinstance(part, int):
            continue  # an entry of a list is declared with the list
        inner = _model_in(found)
        if inner is None or part not in inner.model_fields:
            return None
        found = inner.model_fields[part].annotation
    return found


def _at(model: type[pydantic.BaseModel], path: Sequence[str | int]) -> type[pydantic.BaseModel] | None:
    """The model of the settings inside ``path``, if there are any."""
    return _model_in(_annotation(model, path))


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)


def _secret(model: type[pydantic.BaseModel], path: Sequence[str | int]) -> bool:
    return "Secret" in str(_annotation(model, path))


def _shown(value: object) -> str:
    """A wrong value, as it would be written in YAML as nearly as matters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
