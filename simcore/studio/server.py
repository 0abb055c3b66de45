"""The studio as an ASGI application: the page's files, and one door for each kind of question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from simcore.errors import InputError
from simcore.studio.access import Access, Guard
from simcore.studio.fields import fields_of, most_bytes
from simcore.studio.lane import Lane, Lost, Refused, Superseded
from simcore.studio.searching import Ready, Searching
from simcore.studio.worker import problems_json
from viz.pages.studio import page_of_studio, script_of_pages
from viz.stylesheet import stylesheet

__all__ = ["MOST_SEARCHES", "SCRIPTS", "Lanes", "app"]

_LANES: Final[Mapping[str, tuple[str, ...]]] = {
    "quick": ("view", "answer"),
    "side": ("catalogue", "scenario", "import", "memory", "legal", "pictures", "options", "figure", "formats",
             "convert", "explain", "compare"),
    "long": ("measured", "limit", "advice", "faster")}
"""Worker processes, and the kinds of questions that each answers, the most urgent first."""
SCRIPTS: Final = ("address", "app", "copies", "door", "files", "form", "frontier", "left", "limits", "mesh", "offers",
                  "panels", "search", "state", "steppers", "steps", "values", "versus", "wording")
"""Modules of the page."""
_LAST: Final = "pictures"
_JSON: Final = "application/json"
MOST_SEARCHES: Final = 4
"""Searches that run at a time."""


class Lanes:
    """The worker processes of a studio, by name."""

    def __init__(self, limit_s: float = 60.0) -> None:
        self._lanes = {name: Lane(kinds, limit_s, warm=name != "long") for name, kinds in _LANES.items()}
        self.searches: set[Searching] = set()
        self.ready = Ready()

    def of(self, kind: str) -> Lane | None:
        """Lane that answers a kind of question."""
        return next((self._lanes[name] for name, kinds in _LANES.items() if kind in kinds), None)

    def search(self, fields: Mapping[str, Any]) -> Searching | None:
        """A search that has not begun, which `end` ends; None while too many run."""
        if len(self.searches) >= MOST_SEARCHES:
            return None
        running = Searching(fields, self.ready)
        self.searches.add(running)
        return running

    def end(self, running: Searching) -> None:
        """Ends a search, whose place another may take."""
        self.searches.discard(running)
        running.stop()
        if self._lanes:
            self.ready.start()

    def close(self) -> None:
        """Ends all worker processes."""
        for running in list(self.searches):
            running.stop()
        self.ready.close()
        for lane in self._lanes.values():
            lane.close()


def app(access: Access | None = None, made: Callable[[], Lanes] = Lanes) -> Guard:
    """The application. `access`: who may ask, by default this machine; `made`: starts the worker processes."""

    @asynccontextmanager
    async def lifespan(application: Starlette) -> AsyncIterator[None]:
        application.state.lanes = made()
        try:
            yield
        finally:
            application.state.lanes.close()

    routes = [
        Route("/", _page),
        Route("/style.css", _style),
        Route("/pages.js", _script_of_pages),
        *(Route(f"/{name}.js", _script) for name in SCRIPTS),
        Route("/api/search", _searched, methods=["POST"]),
        Route("/api/{kind}", _asked, methods=["POST"])]
    return Guard(Starlette(routes=routes, lifespan=lifespan), access or Access())


async def _page(request: Request) -> Response:
    return HTMLResponse(page_of_studio(_file("body.html")))


async def _style(request: Request) -> Response:
    return Response(f"{stylesheet()}\n{_file('studio.css')}", media_type="text/css")


async def _script_of_pages(request: Request) -> Response:
    return Response(script_of_pages(), media_type="text/javascript")


async def _script(request: Request) -> Response:
    return Response(_file(request.url.path[1:]), media_type="text/javascript")


@cache
def _file(name: str) -> str:
    return files("simcore.studio").joinpath("page", name).read_text(encoding="utf-8")


async def _asked(request: Request) -> Response:
    """Answer to one question; 409 if a newer one replaced it, 422 with problems, 503 if its worker was lost."""
    kind = request.path_params["kind"]
    lane: Lane | None = request.app.state.lanes.of(kind)
    if lane is None:
        return _problem(404, f"{kind[:40]!r} is no question")
    fields = await _fields(kind, request)
    if isinstance(fields, Response):
        return fields
    answer = await _answered(lane, kind, fields)
    if kind == _LAST:  # all is drawn: now a search may be made ready
        asyncio.get_running_loop().run_in_executor(None, request.app.state.lanes.ready.start)
    return answer


async def _searched(request: Request) -> Response:
    """Lines of JSON, one for each finding of a search; 422 with the problems of one that cannot begin.

    It ends where the page stops listening.
    """
    fields = await _fields("search", request)
    if isinstance(fields, Response):
        return fields
    lanes: Lanes = request.app.state.lanes
    running = lanes.search(fields)
    if running is None:
        return _problem(503, f"{MOST_SEARCHES} searches run already: stop one")
    found = _lines(lanes, running)
    first = await anext(found, b"")
    if first.startswith(b'{"problems"'):
        await found.aclose()
        return Response(first, 422, media_type=_JSON)
    return StreamingResponse(_with_first(first, found), media_type="application/x-ndjson")


async def _lines(lanes: Lanes, running: Searching) -> AsyncGenerator[bytes]:
    try:
        await asyncio.to_thread(running.begin)
        while (line := await asyncio.to_thread(running.next)) is not None:
            yield line + b"\n"
    finally:
        lanes.end(running)


async def _with_first(first: bytes, others: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(others):
        yield first
        async for line in others:
            yield line


async def _fields(kind: str, request: Request) -> dict[str, Any] | Response:
    """Fields of a question, or the response to a request that has none."""
    if not request.headers.get("content-type", "").startswith(_JSON):
        return _problem(415, f"expected {_JSON}")
    body = await _body(request, most_bytes(kind))
    if body is None:
        return _problem(413, f"expected at most {most_bytes(kind):,} bytes")
    try:
        return await asyncio.to_thread(fields_of, kind, body)
    except InputError as error:
        return _refused(400, problems_json(error.problems))


async def _answered(lane: Lane, kind: str, fields: dict[str, Any]) -> Response:
    tab = str(fields.get("tab", ""))[:80]
    try:
        return Response(await asyncio.wrap_future(lane.ask(tab, kind, fields)), media_type=_JSON)
    except Superseded:
        return JSONResponse({"superseded": True}, 409)
    except Refused as error:
        return _refused(422, error.problems)
    except Lost as error:
        return _problem(503, str(error))


async def _body(request: Request, most: int) -> bytes | None:
    """Body of a request, None if it has more than `most` bytes; no more than those are ever held."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)


def _refused(status: int, problems: bytes) -> Response:
    return Response(b'{"problems": %b}' % problems, status, media_type=_JSON)


def _problem(status: int, message: str) -> Response:
    return JSONResponse({"problems": [{"where": "", "message": message, "rule": ""}]}, status)
