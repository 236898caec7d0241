"""The demo's entry: `python -m demo`, from the root of the tree.

Owns that Ctrl-C, also one that comes while the demo is still being imported, is one line and exit status 130. Called by
`nox -s demo`. Must never import anything heavy before it is ready to be interrupted.
"""

from __future__ import annotations

import logging
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the demo; the process's exit status."""
    # Of a server that ends while it is being started asyncio says that somebody else has waited for it: that is the demo itself.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    try:
        from demo import conversation  # noqa: PLC0415 - takes a second or two

        return conversation.main()
    except KeyboardInterrupt:
        print("\nThe demo was interrupted.", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
