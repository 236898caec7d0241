"""From a recording of somebody's voice to what the flow needs to speak with it.

Owns: one module a feature, and the reader that puts them together. Called by: the stage that gives an answer its
voice, and tests. Never: imports a heavy library at the top of this file.
"""
