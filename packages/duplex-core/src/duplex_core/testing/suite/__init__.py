"""The parts of the conformance suite, by subject. Put together by :mod:`duplex_core.testing.conformance`."""
