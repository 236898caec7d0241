"""Serves full-duplex speech models: sockets, sessions, turn detection and the stages that a model runs on.

Owns: routes, session runner and manager, orchestrator, stage runtimes, detectors, and the `duplex-server` command.
Called by: operators through the command line, and Python programs through the engine's API.
Never: names or imports a model package (they are found through their entry points), or imports the client.
"""

__version__ = "0.1.0"
