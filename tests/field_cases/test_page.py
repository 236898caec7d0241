"""The page on the field cases is complete: each number has its test, or says why it is a model's own affair."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.*?) \| (.*?) ?\|$", PAGE, re.MULTILINE)
NUMBERS = range(1, 35)
A_MODELS_OWN = re.compile(r"^a model's own: \S.{10,}")


def named_here() -> dict[str, str]:
    """Every test of a case in this folder: its name and what its docstring says."""
    found = {}
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_case_"):
                found[node.name] = ast.get_docstring(node) or ""
    return found


def test_every_case_has_one_row() -> None:
    assert [int(number) for number, *_ in ROWS] == list(NUMBERS)


def test_every_row_names_its_test_or_why_there_is_none() -> None:
    known = named_here()
    for number, broke, here, test, _ in ROWS:
        assert broke.strip()
        assert here.strip()
        if A_MODELS_OWN.match(test):
            continue
        name = test.strip("`")
        assert name in known, f"case {number}: there is no test {name} in tests/field_cases"
        assert name.startswith(f"test_case_{int(number):02}_"), f"case {number} names the test of another: {name}"


def test_every_test_of_a_case_belongs_to_a_number() -> None:
    numbers = {int(name.split("_")[2]) for name in named_here()}
    assert numbers <= set(NUMBERS)
    tested = {int(number) for number, *_, test, _ in ROWS if not A_MODELS_OWN.match(test)}
    assert numbers == tested


def test_what_is_named_beside_exists() -> None:
    """Files and folders in the last column."""
    files = {path.name for folder in ("packages", "tests") for path in (ROOT / folder).rglob("test_*.py")}
    for _, _, _, _, also in ROWS:
        for name in re.findall(r"`(test_\w+\.py)`", also):
            assert name in files, name
        for name in re.findall(r"`(tests/\w+)`", also):
            assert (ROOT / name).is_dir(), name
