"""A program in several processes that find each other, as a launcher starts them."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from tests.support.children import run_script

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "TVM_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip


def run_ranks(
    script: Path, world: int, *args: str, env: Mapping[str, str] | None = None,
    timeout: float = 240, forked: bool = True,
) -> Sequence[subprocess.CompletedProcess[str]]:  # fmt: skip
    """A script in `world` processes with a launcher's environment: how each of them ended.

    forked : as of `children`.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port = found.getsockname()[1]

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        place = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world), "MASTER_PORT": str(port),
        }  # fmt: skip
        given = {**ENVIRONMENT, **place, **(env or {})}
        return run_script(script, *args, env=given, timeout=timeout, forked=forked)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))
