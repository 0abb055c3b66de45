"""The studio as a process: its link, and its end by Ctrl-C while requests hang."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process")
def test_it_ends_without_a_traceback_while_a_request_hangs() -> None:
    command = [sys.executable, "-c", "from simcore.cli.app import main; main()", "studio", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as studio:
        assert studio.stdout is not None
        try:
            address = urlsplit(studio.stdout.readline().split()[3])
            with socket.create_connection((address.hostname, address.port)) as half:
                half.sendall(b"POST /api/view HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                             b"content-length: 9\r\nexpect: 100-continue\r\n\r\n")
                assert b"100" in half.recv(100)  # the request is read from here on
                studio.send_signal(signal.SIGINT)
                _, told = studio.communicate(timeout=30)
        finally:
            studio.kill()
    assert told == ""
