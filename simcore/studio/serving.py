"""The studio as a process: listens at an address, says its link, and serves until Ctrl-C."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

import uvicorn

from simcore.errors import InputError, Problem
from simcore.studio.access import Access
from simcore.studio.link import link
from simcore.studio.server import Lanes, app

__all__ = ["serve"]

_WAIT_S: Final = 2
"""Seconds that answers under way get when the studio ends."""


def serve(start: Mapping[str, Any] | None, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serves until the process is ended. `start`: keys of the job that the link shows, None: the page's own.

    `say`: takes the link, once the studio listens. InputError for an address that cannot be had.
    """
    with _listening(host, port) as listening:
        access = Access.of(host, secrets.token_urlsafe(24))
        say(f"rankscope studio at {link(host, listening.getsockname()[1], access.token, start)}  (Ctrl-C ends it)")
        lanes = Lanes()
        config = uvicorn.Config(app(access, lambda: lanes), log_level="warning", access_log=False,
                                timeout_graceful_shutdown=_WAIT_S, server_header=False, http="h11", ws="none")
        _Server(config, lanes).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that ends the worker processes before it waits for requests, so that none waits for an answer."""

    def __init__(self, config: uvicorn.Config, lanes: Lanes) -> None:
        super().__init__(config)
        self._lanes = lanes

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers what waits with a problem, and cancels requests that are still read or sent after a while."""
        await asyncio.to_thread(self._lanes.close)
        if self.server_state.tasks:
            _, late = await asyncio.wait(self.server_state.tasks, timeout=_WAIT_S)
            for request in late:
                request.cancel()
        await super().shutdown(sockets)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()  # so that the link works as soon as it is said
    except OSError as error:
        listening.close()
        raise InputError(Problem(f"--host {host} --port {port}", f"cannot listen there: {error.strerror}")) from None
    return listening
