"""The checkpoint's tokenizer, without running any code that a checkpoint names.

Owns: which class reads it. Called by: the thinker and its decider. Never: fetches anything.

The published tokenizer is Qwen2's with more tokens; `AutoTokenizer` would ask for the vendor's code.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from transformers import Qwen2Tokenizer


@cache
def load_tokenizer(folder: str) -> Any:
    """Read the tokenizer in `folder`; the same object each time."""
    return Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
