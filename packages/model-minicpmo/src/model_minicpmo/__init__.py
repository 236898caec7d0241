"""MiniCPM-o 4.5 behind the model seam: its tokens, rules, session and stages.

Owns: everything that knows this model. `gpu/` holds what loads torch, transformers or vLLM and is imported when a stage starts.
Called by: the server, which finds the plugin through the package's entry point.
Never: imports the server or the client, loads a tensor library outside `gpu/`, or fetches anything at run time.
"""

__version__ = "0.1.0"
