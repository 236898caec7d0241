"""`python -m model_minicpmo.testing FOLDER`: writes a tiny checkpoint that holds conversations, to try all without weights.

Owns the command line only; what it writes is `talking`'s. Never: writes into a folder that has something in it already.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Write the checkpoint; the exit status: 2 for a folder that cannot be taken."""
    parser = argparse.ArgumentParser(
        prog="python -m model_minicpmo.testing",
        description="Write a tiny checkpoint in the published layout. It listens while it is spoken to, answers when that ends, "
        "with a few fixed words in a voice that is noise, and stops. It understands nothing.",
    )
    parser.add_argument("folder", type=Path, help="where; it is made, and may not have anything in it")
    folder: Path = parser.parse_args().folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        parser.error(f"{folder} is there already and not an empty folder; name another one")
    from model_minicpmo.testing.talking import write_talking_checkpoint  # noqa: PLC0415 - brings torch

    write_talking_checkpoint(folder)
    sys.stdout.write(f"Written. Serve it with: duplex-server serve {folder} --profile cpu\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
