"""How speech over an answer is judged, over the recorded set of ``benchmarks/overlap``."""
