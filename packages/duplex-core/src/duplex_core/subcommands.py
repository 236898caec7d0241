"""Sub-commands that a package adds to ``duplex-server``.

Owns the contract between the command line of the server and a plugin. It prescribes no argument parser: the sub-command
gets the words that follow its name and answers with an exit status.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SubcommandSpec:
    """``duplex-server NAME ...``.

    Attributes:
        id: the sub-command's name: lower case, words joined by hyphens; not one of the server's own.
        summary: one line for ``duplex-server --help``.
        run: called with the words after the name, when the sub-command was typed and never else; returns the exit status
            of the process. It parses its own options and prints its own ``--help``.
    """

    id: str
    summary: str
    run: Callable[[Sequence[str]], int]
