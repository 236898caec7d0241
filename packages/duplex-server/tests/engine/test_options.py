"""A session's options that cannot be: told by name and in plain words."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from duplex_core.errors import DuplexError, ErrorCode
from duplex_server.engine.served import checked_options


class Options(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    pace: float = pydantic.Field(default=1.0, le=2.0)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"pace": 3}, ErrorCode.INVALID_VALUE, "session.options.pace must be at most 2, not 3"),
        ({"pace": "quick"}, ErrorCode.INVALID_VALUE, "session.options.pace must be a number, not 'quick'"),
        (
            {"volume": 1},
            ErrorCode.UNKNOWN_PARAMETER,
            "session.options.volume is no option of this model; it has: pace",
        ),
    ],
)
def test_a_wrong_option_is_told_in_plain_words(options: dict[str, Any], code: ErrorCode, message: str) -> None:
    with pytest.raises(DuplexError) as caught:
        checked_options(Options, options)
    assert (caught.value.info.code, caught.value.info.message) == (code, message)


def test_options_that_are_fine_get_their_defaults() -> None:
    assert checked_options(Options, {}) == {"pace": 1.0}
