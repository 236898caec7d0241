"""Frames that no honest client sends, made from those that honest ones do.

Owns the mutations. Used by the long runs beside it and by the tests, which give it randomness of different kinds: a seeded
generator here, hypothesis there. Knows no socket, and no judgement of what should become of a frame.
"""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable
from typing import Any

from duplex_core.testing.examples import COMMAND_EXAMPLES
from duplex_core.wire import encode_command

GOOD: dict[str, str] = {name: encode_command(command) for name, command in sorted(COMMAND_EXAMPLES.items())}
"""One honest frame of each kind."""
NAMES = list(GOOD)

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    0.5,
    -0.0,
    1e308,
    1e-308,
    "",
    " ",
    "\x00",
    "null",
    "é\u202e\U0001f600",
    "A" * 600,
    "AAAA",
    "AAA",
    "root",
    [],
    {},
    [[]],
    [None],
    {"type": "message"},
    {"": {}},
)
TEXTS = (
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "1e999",
    "NaN",
    "\\ud800",
    "\x00",
    "\t",
    "é",
    "/*",
    "0x10",
    "-",
)


def frame(rng: random.Random) -> str | bytes:
    """One frame: now and then honest or binary, mostly neither."""
    kind = rng.randrange(20)
    if kind == 0:
        return GOOD[rng.choice(NAMES)]
    if kind == 1:
        return rng.randbytes(rng.randrange(40))
    if kind == 2:
        return _nothing_like_it(rng)
    if kind < 10:
        return _broken_text(rng)
    return _broken_document(rng)


def _nothing_like_it(rng: random.Random) -> str:
    depth = rng.choice((1, 10, 100, 2000))
    makers: tuple[Callable[[], str], ...] = (
        lambda: "".join(rng.choice(TEXTS) for _ in range(rng.randrange(12))),
        lambda: "[" * depth + "]" * depth,
        lambda: '{"type":"session.update","session":{"options":' + '{"a":' * depth + "1" + "}" * (depth + 2),
        lambda: json.dumps(rng.choice(ODD_VALUES)),
        lambda: "",
    )
    return rng.choice(makers)()


def _broken_text(rng: random.Random) -> str:
    """An honest frame with characters cut out, put in, doubled, or the end of another frame."""
    text = GOOD[rng.choice(NAMES)]
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(text))
        end = min(len(text), start + rng.randrange(12))
        piece = text[start:end]
        put = rng.choice((rng.choice(TEXTS), piece * 2, "", piece.swapcase(), chr(rng.randrange(1, 0xD800))))
        text = text[:start] + put + text[end:]
    if rng.randrange(6) == 0:
        other = GOOD[rng.choice(NAMES)]
        text = text[: rng.randint(0, len(text))] + other[rng.randint(0, len(other)) :]
    return text


def _broken_document(rng: random.Random) -> str:
    """An honest frame with values replaced, taken out, renamed, doubled or moved here from another frame."""
    document = broken(json.loads(GOOD[rng.choice(NAMES)]), rng)
    return json.dumps(document, ensure_ascii=rng.random() < 0.5)


def broken(document: Any, rng: random.Random) -> Any:
    """``document``, an object or a list, changed in up to three places."""
    for _ in range(rng.randint(1, 3)):
        _break(document, rng)
    return document


def _break(document: Any, rng: random.Random) -> None:
    place = document
    while True:
        keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        below = place[key]
        if not (isinstance(below, dict | list) and below and rng.random() < 0.6):
            break
        place = below
    match rng.randrange(6):
        case 0:
            del place[key]
        case 1 if isinstance(place, dict):
            place[rng.choice(("", "type", "x", "audio", str(key) + "s"))] = place.pop(key)
        case 2 if isinstance(place, dict):
            place[rng.choice(("x", "event_id", "delta", "session"))] = copy.deepcopy(rng.choice(ODD_VALUES))
        case 3:
            place[key] = json.loads(GOOD[rng.choice(NAMES)])
        case 4:
            place[key] = base64.b64encode(rng.randbytes(rng.randrange(64))).decode()
        case _:
            place[key] = copy.deepcopy(rng.choice(ODD_VALUES))
