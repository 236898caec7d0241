"""The limit rule: how many text tokens an answer may still have, and when that ends its turn. Pure.

Called by: the session, which knows what was said, and the thinker, which ends a unit, and the turn with it. Never: counts a token
that is not to be heard.
"""

from __future__ import annotations


def tokens_left(limit: int | None, said: int) -> int | None:
    """Say how many tokens an answer may still have; None is no limit.

    It is 0 where more was said than may be: a unit that was under way when the answer was asked for knows nothing of its limit.
    """
    return None if limit is None else max(0, limit - said)


def ends_turn(most: int | None, spoken: int) -> bool:
    """Say whether a turn is over with a unit of `spoken` tokens that might have had `most`."""
    return most is not None and spoken >= most
