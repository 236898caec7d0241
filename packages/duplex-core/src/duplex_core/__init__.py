"""What every part of the framework agrees on, and nothing that does input or output.

Owns: the contracts (commands, events, items, session configuration), the wire codec for both ends, the session
machine, the plugin hooks and their loading, and the conformance kit for model packages.
Called by: the server, the client and every model package.
Never: imports one of those three, an event loop, a socket, a clock, or a tensor library.
"""

__version__ = "0.1.0"
