"""Rules of the page for a piece of it that stands in somebody else's page, such as a notebook.

They reach nothing outside the piece: each begins with its id. Only rules of classes that the piece has come along. A
notebook has a theme of its own, whatever the system prefers, so dark is what the notebook says it is.

[Note: how notebooks say that they are dark]
JupyterLab and Notebook 7: `data-jp-theme-light="false"` on the body, also in what nbconvert writes. VS Code: the class
`vscode-dark` or `vscode-high-contrast` on the body. Colab: `theme="dark"` on the root. marimo: the class `dark`.
Sphinx's themes: `data-theme="dark"`. What says nothing gets a light card, which reads on any ground.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Final

from viz.markup import Markup, element
from viz.palette import texture_definitions
from viz.stylesheet import stylesheet

__all__ = ["DARK", "piece"]

DARK: Final = ('[data-jp-theme-light="false"]', '[theme="dark"]', '[data-theme="dark"]', ".dark", ".vscode-dark",
               ".vscode-high-contrast:not(.vscode-high-contrast-light)")
_ROOT: Final = re.compile(r":root \{([^}]*)\}")
_NIGHT: Final = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{([^}]*)\}\s*\}")
_RULE: Final = re.compile(r"([^{}]+)\{([^{}]*)\}")
_PATTERN: Final = re.compile(r'<pattern\b.*?id="([^"]+)".*?</pattern>', re.DOTALL)
_TAG: Final = re.compile(r"<[^>]*>")
_NAMED: Final = re.compile(r'\b(id|aria-labelledby|aria-describedby)="([^"]*)"|url\(#([a-z-]+)\)')


def piece(inside: Markup) -> str:
    """`inside` with its rules and textures, as one element that touches nothing around it."""
    own = f"rankscope-{hashlib.sha256(inside.encode()).hexdigest()[:10]}"
    textures = _textures(inside + _rules(inside))
    rules = _rules(textures + inside)
    drawn = Markup(_TAG.sub(lambda tag: _owned(tag[0], own), f"{textures}{inside}"))
    style = element("style", Markup(_owned(f"{_colours(rules, own)}\n{rules}", own).replace("&", f"#{own}")))
    return element("div", style, drawn, id=own, class_="rankscope")


def _owned(text: str, own: str) -> str:
    """Ids get a beginning of their own: of two pictures in a notebook, one may be folded away with its textures."""
    return _NAMED.sub(lambda m: f'{m[1]}="{own}-{m[2]}"' if m[1] else f"url(#{own}-{m[3]})", text)


def _textures(text: str) -> Markup:
    """Patterns that are asked for; out of sight, but not `display: none`, which would take them away."""
    asked = set(re.findall(r"url\(#([a-z-]+)\)", text))
    found = "".join(m[0] for m in _PATTERN.finditer(texture_definitions()) if m[1] in asked)
    return element("svg", element("defs", Markup(found)), class_="textures", width=0, height=0, aria_hidden="true")


@cache
def _sheet() -> str:
    return re.sub(r"/\*.*?\*/", "", stylesheet(), flags=re.DOTALL)


@cache
def _class_rules() -> tuple[tuple[str, str], ...]:
    """(selector, body) of every rule for a class; those of media are for the page."""
    plain = _ROOT.sub("", re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", _sheet()))
    found = ((selector.strip(), body) for names, body in _RULE.findall(plain) for selector in names.split(","))
    return tuple((selector, body.strip()) for selector, body in found if "." in selector)


def _rules(inside: str) -> str:
    own = files("viz.notebook").joinpath("notebook.css").read_text(encoding="utf-8").strip()
    classes = {name for group in re.findall(r'class="([^"]*)"', inside) for name in group.split()}
    kept = (f"& {selector}{{{body}}}" for selector, body in _class_rules()
            if set(re.findall(r"\.([a-z][\w-]*)", selector)) <= classes)
    return "\n".join((*kept, own))


def _colours(rules: str, own: str) -> str:
    """Colours that the rules name, on light and on dark paper."""
    asked = set(re.findall(r"var\(--([a-z0-9-]+)\)", rules))
    night = " ".join(_NIGHT.findall(_sheet()))
    light = " ".join(_ROOT.findall(_NIGHT.sub("", _sheet())))
    dark = ", ".join(f"{theme} #{own}" for theme in DARK)
    return (f"#{own} {{ color-scheme: light; {_asked(light, asked)} }}\n"
            f"{dark} {{ color-scheme: dark; {_asked(night, asked)} }}")


def _asked(variables: str, names: set[str]) -> str:
    found = dict(re.findall(r"--([a-z0-9-]+): ([^;]+);", variables))
    return " ".join(f"--{name}: {found[name]};" for name in sorted(names & found.keys()))
