"""The engine: sessions, chat requests and the stages that both run on. No socket, no JSON, no model by name.

Owns nothing itself; importing it loads nothing. :class:`duplex_server.engine.omni.DuplexOmni` is the way in for Python
programs and for :mod:`duplex_server.serving`. The turn-based half, :mod:`duplex_server.engine.chat`, stands alone: it
must never import the duplex half.
"""
