"""Known vulnerabilities of the locked versions, by pip-audit.

`make audit` runs it in the environment of .ci/tools.lock: python .ci/audit.py requirements.lock ...

Exit codes: 0 every package was asked about and has none known; 1 some have; 69 (EX_UNAVAILABLE) some were not answered
for, which is not the same as none known. pip-audit itself ends with 0 and "No known vulnerabilities found" when its
database cannot be reached and it has left out every package: its JSON is read instead, which names those left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

CLEAN, VULNERABLE, UNAVAILABLE = 0, 1, 69
SERVICES: Final = ("pypi", "osv")
"""Databases of vulnerabilities that pip-audit knows, in the order in which they are asked."""
SECONDS: Final = 300


def ask(service: str, locks: list[str]) -> str:
    """The JSON that pip-audit prints about these files; empty where it fails. It resolves and installs nothing."""
    files = [word for lock in locks for word in ("-r", lock)]
    command = [sys.executable, "-m", "pip_audit", "-s", service, "--disable-pip", "--require-hashes", "-f", "json",
               "--progress-spinner", "off", *files]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS).stdout
    except subprocess.TimeoutExpired:
        return ""


def verdict(answer: str) -> tuple[int, list[str]]:
    """The exit code that an answer comes to, and the lines that say so."""
    try:
        packages: list[dict[str, Any]] = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return UNAVAILABLE, ["no answer"]
    found = [f"{one['name']} {one['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'none yet'}"
             for one in packages for flaw in one.get("vulns", ())]
    left_out = [one["name"] for one in packages if "vulns" not in one]
    told = [f"no answer about {len(left_out)} of {len(packages)} packages, {left_out[0]} first"] if left_out else []
    if found:
        return VULNERABLE, found + told
    if told or not packages:
        return UNAVAILABLE, told or ["no package was asked about"]
    return CLEAN, [f"no known vulnerabilities in {len(packages)} packages"]


def main(locks: list[str]) -> int:
    """Asks one database after the other until one answers; prints what it said, or in one line that none did."""
    tried: list[str] = []
    for service in SERVICES:
        code, told = verdict(ask(service, locks))
        if code != UNAVAILABLE:
            print("\n".join(f"audit: {line}" for line in told))
            return code
        tried.append(f"{service}: {'; '.join(told)}")
    print(f"audit: not done, vulnerabilities stay unknown ({'; '.join(tried)})")
    return UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
