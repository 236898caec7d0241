"""The limit rule: how many text tokens an answer may still have, and when that ends its turn; how long any turn may be. Pure.

Called by: the session, which knows what was said, and the thinker, which ends a unit, and the turn with it. Never: counts a token
that is not to be heard.
"""

from __future__ import annotations


def tokens_left(limit: int | None, said: int, *, units: int = 0, most_units: int | None = None) -> int | None:
    """Say how many tokens an answer may still have; None is no limit.

    It is 0 where more was said than may be: a unit that was under way when the answer was asked for knows nothing of its limit.
    And it is 0 once the answer has had `most_units` units, whatever was said in them: so every turn ends.
    """
    if most_units is not None and units >= most_units:
        return 0
    return None if limit is None else max(0, limit - said)


def ends_turn(most: int | None, spoken: int) -> bool:
    """Say whether a turn is over with a unit of `spoken` tokens that might have had `most`."""
    return most is not None and spoken >= most
