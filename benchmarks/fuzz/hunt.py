"""What a coverage-guided fuzzer needs to know of frames: what to do with its bytes, how to change them, where to begin.

Used by :mod:`benchmarks.fuzz.guided`, which joins it to atheris, and by the tests, which need no atheris. What must be true of
every frame is :mod:`benchmarks.fuzz.codec`'s.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from benchmarks.fuzz.codec import check
from benchmarks.fuzz.frames import broken
from duplex_core.testing.examples import COMMAND_EXAMPLES, EVENT_EXAMPLES
from duplex_core.wire import encode_command, encode_event


def target(data: bytes) -> None:
    """Give the codec ``data``, as it is and, where it is text, as text, which is how the server reads it.

    Raises:
        Broken: it erred.
    """
    check(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    check(text)


def mutated(data: bytes, rng: random.Random) -> bytes | None:
    """``data`` as a document with a value or two replaced, moved or taken out; ``None`` when it is no document."""
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict | list):
        return None
    return json.dumps(broken(document, rng), ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def plant(folder: Path) -> None:
    """Leave one honest frame of each kind, command or event, in ``folder``."""
    for name, command in COMMAND_EXAMPLES.items():
        (folder / f"seed-command-{name}").write_text(encode_command(command), encoding="utf-8")
    for name, event in EVENT_EXAMPLES.items():
        (folder / f"seed-event-{name}").write_text(encode_event(event, event_id="e", seq=1), encoding="utf-8")
