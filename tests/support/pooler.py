"""PgBouncer in transaction mode, where it is installed (Debian and Ubuntu: package `pgbouncer`)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.support.postgres import free_port


def binary() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class Pooler:
    """A pooler before one database; `size` server connections for all clients together."""

    def __init__(self, url: str, size: int = 1) -> None:
        self._url = urlsplit(url)
        self._size = size
        self.port = free_port()

    @property
    def url(self) -> str:
        parts = self._url
        return f"postgresql://{parts.username}@127.0.0.1:{self.port}{parts.path}"

    def __enter__(self) -> Self:
        program = binary()
        assert program is not None
        self._directory = Path(tempfile.mkdtemp(prefix="sume-pooler-"))
        self._directory.chmod(0o755)
        parts = self._url
        users = self._directory / "users.txt"
        users.write_text(f'"{parts.username}" "{parts.password or ""}"\n')
        configuration = self._directory / "pgbouncer.ini"
        configuration.write_text(
            "[databases]\n"
            f"* = host={parts.hostname} port={parts.port}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"unix_socket_dir =\nauth_type = trust\nauth_file = {users}\n"
            f"pool_mode = transaction\ndefault_pool_size = {self._size}\nmax_client_conn = 200\n"
            "server_check_delay = 0\n"
        )
        for path in (users, configuration):
            path.chmod(0o644)
        # It refuses to run as root.
        user = "nobody" if os.geteuid() == 0 else None
        self._process = subprocess.Popen(
            [program, "-q", str(configuration)],
            user=user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self._directory, ignore_errors=True)
