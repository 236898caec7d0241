"""From audio codes to 24 kHz sound: a flow makes mel frames, a vocoder makes samples, chunk by chunk.

Owns: one module a part. Called by: the stage that gives an answer its voice, and tests. Never: imports a heavy
library at the top of this file.
"""
