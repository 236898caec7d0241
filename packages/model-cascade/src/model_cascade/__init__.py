"""The embedded default: speech recognition, a small language model and a voice behind the model seam.

Owns: the cascade's plugin, its session rules and its stages.
Called by: the server, which finds it through its entry point.
Never: imports the server or the client, loads weights when its plugin is imported, or fetches anything at run time.
"""

__version__ = "0.1.0"
