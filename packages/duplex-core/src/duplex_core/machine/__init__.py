"""The session machine: a conversation's rules as a pure function of (state, input, time).

:class:`~duplex_core.machine.session.SessionMachine` is driven by the session runner, which performs the effects that it
returns and decides nothing. See :mod:`duplex_core.machine.io` for what goes in and comes out, and
:mod:`duplex_core.machine.table` for every state and legal move.
"""
