"""Audio between the wire and the engine: sample encodings and sample rates.

Owns nothing but arithmetic on samples. Called by whoever turns bytes from a client into PCM for the engine,
and back. Never touches sockets, base64, JSON, sessions or clocks.
"""

from duplex_server.audio.formats import AudioFormatError, check_channels, decode, encode, samples_of
from duplex_server.audio.resample import StreamResampler

__all__ = ["AudioFormatError", "StreamResampler", "check_channels", "decode", "encode", "samples_of"]
