"""Markup: every text that is not markup is escaped."""

from __future__ import annotations

from viz.markup import Markup, element, escape, number


def test_markup_escapes_what_is_not_markup() -> None:
    assert escape("<a & b>") == "&lt;a &amp; b&gt;"
    assert element("p", "<", Markup("<b>x</b>"), 3, class_='"', hidden=True, title=None) == (
        '<p class="&quot;" hidden="hidden">&lt;<b>x</b>3</p>')
    assert element("a", title=Markup("<b>")) == '<a title="&lt;b&gt;"></a>'
    assert [number(v) for v in (0.0, -0.001, 1.5, 100.0, 2.345678)] == ["0", "0", "1.5", "100", "2.35"]
