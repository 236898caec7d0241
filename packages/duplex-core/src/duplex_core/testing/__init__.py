"""The conformance kit: what a model package and the engine are tested with. Never imported by what serves.

- :mod:`duplex_core.testing.conformance`: the suite that every model package runs, by subclassing it (needs pytest).
- :mod:`duplex_core.testing.driver`: one conversation in virtual time, without sockets, tasks or threads.
- :mod:`duplex_core.testing.invariants`: what holds for the events of every conversation.
- :mod:`duplex_core.testing.echo`: the smallest real model package.
- :mod:`duplex_core.testing.native`: the smallest one that takes its turns itself.
- :mod:`duplex_core.testing.examples`: one example of every command and event.
"""
