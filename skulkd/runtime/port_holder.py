"""Who listens on a port that we cannot have, as far as this user may see."""

import contextlib
import os
from typing import Final

_ANY: Final = frozenset({"0.0.0.0", "::"})


def holder_of(host: str, port: int) -> str:
    """Name the process, with its id; empty when it cannot be seen. Blocks."""
    import psutil  # 20 ms, needed only when a start has failed

    # Process by process: one that ends meanwhile must not cost us the answer about the others.
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue  # we may listen on the port ourselves, on our other address
        with contextlib.suppress(psutil.Error, OSError):
            for found in process.net_connections(kind="tcp"):
                if found.status != psutil.CONN_LISTEN or not found.laddr:
                    continue
                in_the_way = found.laddr[0] in {host, *_ANY} or host in _ANY
                if found.laddr[1] == port and in_the_way:
                    return f"{process.name()} (pid {process.pid})"
    return ""
