"""The session machine: a conversation's rules as a pure function of (state, input, time).

:class:`~duplex_core.machine.session.SessionMachine` is driven through :class:`~duplex_core.machine.exchange.Exchange`, which
keeps the order between machine and model; the session runner and the test driver perform what comes out of it and decide
nothing. :mod:`duplex_core.machine.io` says what goes in and comes out, :mod:`duplex_core.machine.table` holds every state and
legal move.
"""
