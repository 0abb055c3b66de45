"""Requests that are served, and what the page may do: hosts, origins, a token, the size of a body, response headers.

[Note: why a page on this machine needs these]
Any web site in the same browser may send requests to a loopback address. A request that names another host (DNS
rebinding), or comes from a page of another origin, is refused. Where the studio listens elsewhere, every question
needs the token that is in the link which the command prints.
"""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from simcore.studio.fields import most_bytes

__all__ = ["POLICY", "Access", "Guard"]

POLICY: Final = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
                 "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
"""Content security policy: only files of the studio, no address but its own, no script in the text of the page."""
_HEADERS: Final = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store"}
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Access:
    """Conditions of a request. `token`: that questions need, "" for none. `hosts`: names it may be addressed by."""

    token: str = ""
    hosts: frozenset[str] = _LOOPBACK

    @classmethod
    def of(cls, host: str, token: str) -> Access:
        """Access to a studio that listens at `host`; on loopback no token is needed, elsewhere any name is right."""
        return cls() if host in _LOOPBACK else cls(token, frozenset())

    def refusal(self, path: str, headers: Headers) -> tuple[int, str] | None:
        """(status, reason) of a request that is not served; None for one that is."""
        host = _name(headers.get("host", ""))
        if host is None or (self.hosts and host not in self.hosts):
            return 421, "is addressed by another name than the studio's"
        origin = headers.get("origin", "")
        if origin and _place(origin) != headers.get("host"):
            return 403, "comes from a page of another origin"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "comes from a page of another origin"
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if self.token and path.startswith("/api/") and not hmac.compare_digest(given.encode(), self.token.encode()):
            return 401, "needs the token of the link that the command printed"
        most = most_bytes(path.removeprefix("/api/"))
        if int(headers.get("content-length") or 0) > most:
            return 413, f"has more than {most:,} bytes"
        return None


class Guard:
    """ASGI application around another: refuses requests, and adds the headers of the policy to each response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        is_started = False

        async def with_headers(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._access.refusal(scope["path"], Headers(scope=scope))
        if refusal is None:
            try:
                return await self._app(scope, receive, with_headers)
            except asyncio.CancelledError:  # the studio ends while this request waits
                if is_started:
                    return None
                refusal = 503, "came too late: the studio ends"
        status, why = refusal
        answer = JSONResponse({"problems": [{"where": "", "message": f"the request {why}", "rule": ""}]}, status)
        return await answer(scope, receive, with_headers)


def _name(host: str) -> str | None:
    """Host of a Host header without its port; None for a header that has none."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname
    return None


def _place(origin: str) -> str | None:
    """Host and port of an Origin header; None for one that is no address."""
    with suppress(ValueError):
        return urlsplit(origin).netloc
    return None
