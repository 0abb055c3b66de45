"""Links: short, versioned, and read back as they were."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

from checkout import ROOT
from simcore.inputs.loading import load
from simcore.studio.link import VERSION, link, packed


def unpacked(text: str) -> Any:
    version, _, content = text.partition(".")
    assert int(version) == VERSION
    return json.loads(zlib.decompress(base64.urlsafe_b64decode(content + "=="), -15))


def test_a_job_is_read_back() -> None:
    job = {"name": "\u00fc <b>", "mesh": {"tp": 2}}
    assert unpacked(packed(job)) == {"job": job}


def test_a_link_to_any_shipped_scenario_is_short() -> None:
    (*_, scenario) = load(ROOT / "scenarios/nano-explore/lora.yaml")
    assert len(link("127.0.0.1", 8765, "", scenario.document.data)) < 2000


def test_a_token_is_not_in_the_part_that_is_shared() -> None:
    address = link("::1", 80, "secret", {"name": "x"})
    assert address.startswith("http://[::1]:80/?token=secret#")
    assert "secret" not in address.partition("#")[2]


def test_the_page_has_the_same_version() -> None:
    text = (ROOT / "simcore/studio/page/state.js").read_text(encoding="utf-8")
    assert re.search(r"VERSION = (\d+);", text)
    assert f"VERSION = {VERSION};" in text
