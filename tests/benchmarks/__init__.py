"""Tests of the benchmarks: that they run and say what they measured. No figure is asserted here."""
