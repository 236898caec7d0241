"""Helpers for tests of every package: import them as `tests.support.NAME`. Holds no test."""
