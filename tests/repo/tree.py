"""Reads the tree for the tests beside it: which files it has, and what the code in them measures.

Owns: the meaning of the budgets (what counts as a line, a branch, a method) and of a broad `except`. Called by: the
tests of `tests/repo`. Never: judges; limits and exceptions stand in the tests and in `allowed.toml`.
"""

from __future__ import annotations

import ast
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)
_BROAD = {"Exception", "BaseException"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measure of one place.

    Attributes:
        place: `path` or `path::qualified name`, the path relative to the root of the tree.
        measure: `lines`, `body`, `complexity` or `methods`.
        value: How many.
    """

    place: str
    measure: str
    value: int


def files() -> list[Path]:
    """List the files of the tree: tracked ones, and new ones that git does not ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
    return sorted(ROOT / name for name in set(listed) if name and (ROOT / name).is_file())


def sources() -> list[Path]:
    """List the Python files that the budgets hold for: everything but tests."""
    return [path for path in files() if path.suffix == ".py" and "tests" not in path.relative_to(ROOT).parts]


def allowed(kind: str) -> list[dict[str, Any]]:
    """Read the exceptions of one kind from `allowed.toml`."""
    entries: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "allowed.toml").read_text()).get(kind, [])
    return entries


def name_of(path: Path) -> str:
    """Give a path as the tests print it: relative to the root, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


def measure(source: str, place: str) -> Iterator[Measured]:
    """Measure one file: its lines, and the bodies, branches and methods of what it defines."""
    yield Measured(place=place, measure="lines", value=len(source.splitlines()))
    for node, name in definitions(ast.parse(source)):
        where = f"{place}::{name}"
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(child, type_of_function) for child in node.body)
            yield Measured(place=where, measure="methods", value=methods)
        else:
            yield Measured(place=where, measure="body", value=_body(node))
            yield Measured(place=where, measure="complexity", value=_complexity(node))


def definitions(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, str]]:
    """Walk all functions and classes of a module with their qualified names, nested ones too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child, f"{prefix}{child.name}"
            yield from definitions(child, f"{prefix}{child.name}.")
        else:
            yield from definitions(child, prefix)


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not statements:
        return 0
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1


def _complexity(node: ast.AST) -> int:
    inside = list(ast.walk(node))
    branches = sum(isinstance(part, _BRANCHES) for part in inside)
    return 1 + branches + sum(len(part.values) - 1 for part in inside if isinstance(part, ast.BoolOp))


def swallowers(source: str, place: str) -> Iterator[str]:
    """Find where an unexpected error may vanish.

    That is a bare `except`, one for `Exception` or `BaseException` that does not end in `raise`, or a
    `suppress` of these.

    Yields:
        `path::qualified name` of the innermost function, or `path` for the module itself; once for each.
    """
    yield from _swallowers(ast.parse(source), place, "")


def _swallowers(node: ast.AST, place: str, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = f"{prefix}.{child.name}".lstrip(".") if named else prefix  # type: ignore[attr-defined]
        if _swallows(child):
            yield f"{place}::{inner}" if inner else place
        yield from _swallowers(child, place, inner)


def _swallows(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return (node.type is None or _is_broad(node.type)) and not isinstance(node.body[-1], ast.Raise)
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return called == "suppress" and any(_is_broad(argument) for argument in node.args)
    return False


def _is_broad(expression: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id in _BROAD for part in ast.walk(expression))
