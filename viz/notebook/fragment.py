"""A fragment of HTML that brings its own style rules into another page, such as a notebook.

The rules reach nothing outside the fragment: each selector begins with its id. Only rules for classes that occur in the
fragment are included. It is light or dark as the theme of the notebook is, whatever the system prefers.

[Note: how notebooks mark a dark theme]
JupyterLab and Notebook 7: `data-jp-theme-light="false"` on the body, also in what nbconvert writes. VS Code: the class
`vscode-dark` or `vscode-high-contrast` on the body. Colab: `theme="dark"` on the root. marimo: the class `dark`.
Sphinx's themes: `data-theme="dark"`. Without any mark the card is light, which is readable on any background.
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

__all__ = ["DARK", "fragment"]

DARK: Final = ('[data-jp-theme-light="false"]', '[theme="dark"]', '[data-theme="dark"]', ".dark", ".vscode-dark",
               ".vscode-high-contrast:not(.vscode-high-contrast-light)")
_ROOT: Final = re.compile(r":root \{([^}]*)\}")
_NIGHT: Final = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{([^}]*)\}\s*\}")
_RULE: Final = re.compile(r"([^{}]+)\{([^{}]*)\}")
_PATTERN: Final = re.compile(r'<pattern\b.*?id="([^"]+)".*?</pattern>', re.DOTALL)
_TAG: Final = re.compile(r"<[^>]*>")
_NAMED: Final = re.compile(r'\b(id|aria-labelledby|aria-describedby)="([^"]*)"|url\(#([a-z-]+)\)')


def fragment(inside: Markup) -> str:
    """Returns `inside` with the style rules and textures that it uses, as HTML text of one `<div>`.

    It changes nothing around it: rules and ids begin with an id of the fragment.
    """
    own = f"rankscope-{hashlib.sha256(inside.encode()).hexdigest()[:10]}"
    textures = _textures(inside + _rules(inside))
    rules = _rules(textures + inside)
    content = Markup(_TAG.sub(lambda tag: _owned(tag[0], own), f"{textures}{inside}"))
    style = element("style", Markup(_owned(f"{_colours(rules, own)}\n{rules}", own).replace("&", f"#{own}")))
    return element("div", style, content, id=own, class_="rankscope")


def _owned(text: str, own: str) -> str:
    """Returns the text with the fragment's id before each id, as textures of another fragment may be folded away."""
    return _NAMED.sub(lambda m: f'{m[1]}="{own}-{m[2]}"' if m[1] else f"url(#{own}-{m[3]})", text)


def _textures(text: str) -> Markup:
    """Returns the patterns that the text uses; they are out of sight, but `display: none` would disable them."""
    used = set(re.findall(r"url\(#([a-z-]+)\)", text))
    patterns = "".join(m[0] for m in _PATTERN.finditer(texture_definitions()) if m[1] in used)
    return element("svg", element("defs", Markup(patterns)), class_="textures", width=0, height=0, aria_hidden="true")


@cache
def _style() -> str:
    return re.sub(r"/\*.*?\*/", "", stylesheet(), flags=re.DOTALL)


@cache
def _class_rules() -> tuple[tuple[str, str], ...]:
    """Returns (selector, body) of every rule for a class; media rules are only for the page."""
    plain = _ROOT.sub("", re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", _style()))
    rules = ((selector.strip(), body) for names, body in _RULE.findall(plain) for selector in names.split(","))
    return tuple((selector, body.strip()) for selector, body in rules if "." in selector)


def _rules(inside: str) -> str:
    card_rules = files("viz.notebook").joinpath("notebook.css").read_text(encoding="utf-8").strip()
    classes = {name for group in re.findall(r'class="([^"]*)"', inside) for name in group.split()}
    kept = (f"& {selector}{{{body}}}" for selector, body in _class_rules()
            if set(re.findall(r"\.([a-z][\w-]*)", selector)) <= classes)
    return "\n".join((*kept, card_rules))


def _colours(rules: str, own: str) -> str:
    """Returns the rules that set the colours that `rules` names, on light and on dark paper."""
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", rules))
    night = " ".join(_NIGHT.findall(_style()))
    light = " ".join(_ROOT.findall(_NIGHT.sub("", _style())))
    dark = ", ".join(f"{theme} #{own}" for theme in DARK)
    return (f"#{own} {{ color-scheme: light; {_variables(light, used)} }}\n"
            f"{dark} {{ color-scheme: dark; {_variables(night, used)} }}")


def _variables(variables: str, names: set[str]) -> str:
    values = dict(re.findall(r"--([a-z0-9-]+): ([^;]+);", variables))
    return " ".join(f"--{name}: {values[name]};" for name in sorted(names & values.keys()))
