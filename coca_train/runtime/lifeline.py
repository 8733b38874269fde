"""A connection of every rank to rank 0, on which nothing is sent: it tells at once when a process is gone.

A rank that is killed while others wait at a store (DeepSpeed makes its groups there) or in NCCL is missed by nobody
until engine.timeout_s is over. The kernel closes the connections of a process however it ends.
"""

import contextlib
import hmac
import os
import socket

from coca_train.runtime import dist, watchdog

TOKEN_BYTES = 16
TAKEN = b"+"
CONNECT_S = 5.0
ANSWER_S = 60.0  # rank 0 takes one after the other


def connect() -> None:
    """Have the watchdog look at the connections of this rank. COLLECTIVE, with the process group.

    A rank that cannot reach rank 0 has none, and waits as long as it would without.
    """
    host = os.environ["MASTER_ADDR"]
    with contextlib.ExitStack() as stack:
        server, offer = None, (0, b"")
        if dist.is_main():
            with contextlib.suppress(OSError):
                # At the address of the cluster's network only.
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                server = stack.enter_context(socket.create_server((host, 0), family=family, backlog=dist.world_size()))
                server.settimeout(CONNECT_S)
                offer = (server.getsockname()[1], os.urandom(TOKEN_BYTES))
        port, token = dist.broadcast_object(offer)
        lines: dict[socket.socket, int] = {}  # the rank at the other end of each
        if not dist.is_main() and port:
            with contextlib.suppress(OSError):
                line = socket.create_connection((host, port), timeout=CONNECT_S)
                line.sendall(token + dist.rank().to_bytes(4, "big"))
                lines[line] = 0
        (n_lines,) = dist.all_reduce([float(len(lines))])
        if server is not None:
            lines = _taken(server, token, int(n_lines))
        else:
            lines = {line: rank for line, rank in lines.items() if _is_taken(line)}
    watchdog.look_at(lines)


def _taken(server: socket.socket, token: bytes, n_lines: int) -> dict[socket.socket, int]:
    """Rank 0: the connections that lie in the server's queue, but for those of strangers; each is told."""
    lines: dict[socket.socket, int] = {}
    with contextlib.suppress(TimeoutError):
        while len(lines) < n_lines:
            line = server.accept()[0]
            with contextlib.suppress(OSError):
                line.settimeout(CONNECT_S)
                greeting = line.recv(TOKEN_BYTES + 4, socket.MSG_WAITALL)
                if hmac.compare_digest(greeting[:TOKEN_BYTES], token):
                    line.sendall(TAKEN)
                    lines[line] = int.from_bytes(greeting[TOKEN_BYTES:], "big")
    return lines


def _is_taken(line: socket.socket) -> bool:
    """Another rank: whether rank 0 has taken the connection. One that it has not says nothing when it breaks."""
    with contextlib.suppress(OSError):
        line.settimeout(ANSWER_S)
        return line.recv(len(TAKEN)) == TAKEN
    return False
