"""Runs `duplex-server` in a process to which every address but the loopback's is unreachable.

Started by `conftest.py`. Names are not resolved either: whoever tries to reach out fails, and with it the test.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any

ATTEMPT = "reached out to the network"


def _is_local(host: Any) -> bool:
    if host in {None, "", "localhost", b"localhost"}:
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host).is_loopback
    except ValueError:
        return False


def refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: whoever reaches beyond the loopback gets an error, and the attempt stands in the error stream."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if not _is_local(host):
        sys.stderr.write(f"{ATTEMPT}: {event} {host}\n")
        raise OSError(f"{ATTEMPT}: {host}")


def _expect_refusal() -> None:
    try:
        socket.getaddrinfo("localhost.invalid", 80)
    except OSError as refused:
        if ATTEMPT in str(refused):
            return
    raise AssertionError("the network is not refused")


def main() -> None:
    """Run the server's command line without a network."""
    sys.addaudithook(refuse_network)
    _expect_refusal()
    from duplex_server.cli import main as serve

    serve()


if __name__ == "__main__":
    main()
