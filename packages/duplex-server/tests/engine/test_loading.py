"""Why a stage cannot be started, in one line that says what to do about it."""

from __future__ import annotations

import ctypes

import pytest

from duplex_server.engine.stages.loading import describe


@pytest.mark.parametrize(
    ("library", "package"),
    [
        ("libnowhere.so.7", "libnowhere7"),
        ("libNo_Where2.so.1", "libno-where2-1"),
        ("libno+where.so.3.1", "libno+where3"),
    ],
)
@pytest.mark.parametrize("kind", [OSError, ImportError])
def test_a_library_that_the_system_lacks_is_named_with_its_package(
    library: str, package: str, kind: type[Exception]
) -> None:
    with pytest.raises(OSError, match="cannot open shared object file") as said:
        ctypes.CDLL(library)
    told = describe(kind(str(said.value)))
    assert told.startswith(f"{kind.__name__}: {library}: cannot open shared object file")
    assert told.endswith(f"apt-get install {package})")


@pytest.mark.parametrize(
    "failure",
    [
        ImportError("No module named 'nowhere'"),
        OSError("weights.bin: checksum differs"),
        RuntimeError("libnowhere.so.7: cannot open shared object file"),
        OSError("libnowhere.so: cannot open shared object file"),
    ],
)
def test_anything_else_is_told_as_it_is(failure: Exception) -> None:
    assert describe(failure) == f"{type(failure).__name__}: {failure}"
