"""Broken frames, in bounded numbers; the long runs are `python -m benchmarks.fuzz`."""
