"""Links to the studio: a job in the part behind #, as the page's own module `state.js` writes and reads it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["VERSION", "link", "packed"]

VERSION: Final = 1
"""Version of the state in a link; `page/state.js` has the same."""


def packed(job: Mapping[str, Any]) -> str:
    """Text of a job for a link: its version, then JSON, deflated, as base64 for addresses without padding."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    text = json.dumps({"job": job}, ensure_ascii=False, separators=(",", ":")).encode()
    content = deflate.compress(text) + deflate.flush()
    return f"{VERSION}.{base64.urlsafe_b64encode(content).decode().rstrip('=')}"


def link(host: str, port: int, token: str = "", job: Mapping[str, Any] | None = None) -> str:
    """Address of a studio; `token`: that it asks for, "" for none; `job`: keys of the scenario to show."""
    named = f"[{host}]" if ":" in host else host
    asked = f"?token={token}" if token else ""
    return f"http://{named}:{port}/{asked}{'' if job is None else f'#{packed(job)}'}"
