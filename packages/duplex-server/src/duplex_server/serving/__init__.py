"""The engine behind sockets: routes, keys, and the process that listens. Thin: no rule about turns is here.

Used by the ``duplex-server`` command, and by programs that mount the application themselves.
"""
