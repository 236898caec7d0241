"""The process's entry: the command line, and a quiet end when Ctrl-C comes while it is still being imported.

Owns the exit status of an interrupted start, 130 as shells have it. Called by the package's console script. Must never import
anything heavy before it is ready to be interrupted.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it."""
    try:
        from duplex_server import cli  # noqa: PLC0415 - takes a second, in which somebody may think better of it

        cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("duplex-server: interrupted\n")
        sys.exit(INTERRUPTED)
