"""Makes checkpoints of random weights in the published layout, of any size, for tests and for measuring.

Owns: `write_checkpoint` and the sizes it is called with.
Called by: the tests of this package, and the suite that runs on hardware.
Never: is imported by the plugin or by a stage; pretends that what such a checkpoint says means anything.
"""

from __future__ import annotations

from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import PUBLISHED, TINY, Sizes

__all__ = ["PUBLISHED", "TINY", "Sizes", "write_checkpoint"]
