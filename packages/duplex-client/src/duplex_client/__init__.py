"""Talks to a full-duplex speech model, over a socket or to an engine in the same process.

Owns: the client classes, their handles for answers and played audio, and the `duplex-client` command.
Called by: application code, the demo and the end-to-end tests.
Never: imports the server or a model package; an engine in the same process is handed in by the caller.
"""

__version__ = "0.1.0"
