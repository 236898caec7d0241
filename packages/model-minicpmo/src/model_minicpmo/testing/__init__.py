"""Makes checkpoints of random weights in the published layout, of any size, for tests and for measuring.

Owns: `checkpoint.write_checkpoint`, the sizes in `sizes` that it is called with, and what it writes; `talking` for one that holds
conversations.
Called by: the tests of this package, and the suite that runs on hardware.
Never: is imported by the plugin or by a stage; pretends that what such a checkpoint says means anything; imports torch here.
"""
