"""Where a checkpoint is: a folder as it is, or a name on the Hugging Face hub, fetched once into the hub's own cache.

Owns: telling the two apart, and what is said when a name cannot be had. Called by: every stage when it starts, in its process.
Never: fetches what no stage reads.
"""

from __future__ import annotations

import re
from pathlib import Path

from model_minicpmo.errors import CheckpointError

_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_NOT_READ = ("*.mp4", "*.mp3", "*.gif", "*.png", "*.jpg", "*.jpeg", "*.md")
"""Files of the published checkpoint that show what it can do."""


def checkpoint_folder(checkpoint: str) -> Path:
    """Give the folder of a checkpoint.

    Args:
        checkpoint: A folder, or a name such as `openbmb/MiniCPM-o-4_5`. A name is fetched from the hub unless it is in the hub's
            cache; that takes as long as the network does.

    Raises:
        CheckpointError: It is neither, or the name is not in the cache and cannot be fetched.
    """
    folder = Path(checkpoint)
    if folder.is_dir():
        return folder
    if not _NAME.fullmatch(checkpoint):
        raise CheckpointError(
            folder,
            "is no folder and no name on the hub; name a checkpoint's folder, or one such as openbmb/MiniCPM-o-4_5",
        )
    return _fetched(checkpoint)


def _fetched(name: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - folders do without it
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        return Path(snapshot_download(name, ignore_patterns=list(_NOT_READ)))
    except (OSError, HFValidationError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            Path(name),
            f"is no folder here, and could not be fetched from the hub ({reason}). Download it where there is a network "
            f"(`hf download {name}`) and name its folder, or give this machine a network",
        ) from error
