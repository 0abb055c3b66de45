"""Keys of a framework whose names have dots: taken, shown, typed and left out as the one key that they are."""

from __future__ import annotations

import json
from typing import Any

from browsed_page import Page
from simcore.frameworks.registry import known_frameworks
from simcore.studio.catalogue import options
from simcore.studio.link import packed

OPTION = "moe.reshard_after_forward"
KEY = f"framework_options.{OPTION}"
FIELD = f"[data-key='{KEY}'] input"
JOB: dict[str, Any] = {
    "name": "mine", "model": "qwen3-30b-a3b", "topology": "dgx-h100", "framework": "automodel",
    "mesh": {"dp_shard": 8, "ep": 8}, "training": {"seq_len": 512, "global_batch_size": 8, "method": "full"}}
EDITS = """import("/state.js").then(({ leaves, value_of, with_value }) => %s.map((name) => {
    const key = `framework_options.${name}`;
    const made = with_value({ model: "m", mesh: { tp: 2 } }, key, "other");
    return [[...leaves(made)].includes(key), value_of(made, key), made.framework_options,
        with_value(made, key, undefined)];
})).then(JSON.stringify)"""


def own_options(page: Page) -> Any:
    """The job's options, as the page's scenario in its address has them."""
    page.until("location.hash.length > 60")
    page.run("new Promise(done => setTimeout(done, 300))")
    read = 'import("/state.js").then(({ decoded }) => decoded(location.hash.slice(1)))'
    return json.loads(page.run(f"{read}.then((state) => JSON.stringify(state.job.framework_options || null))"))


def test_every_option_with_a_dot_is_one_key(page: Page) -> None:
    page.open()
    names = [one["name"] for framework in known_frameworks() for one in options(framework) if "." in one["name"]]
    assert OPTION in names
    made = json.loads(page.run(EDITS % json.dumps(names)))
    for name, edits in zip(names, made, strict=True):
        assert edits == [True, "other", {name: "other"}, {"model": "m", "mesh": {"tp": 2}}], name


def test_such_an_option_is_found_applied_shown_typed_and_left_out(page: Page) -> None:
    page.open(address=f"{page.address}#{packed(JOB)}")
    page.settled()
    page.run(f"""(() => {{ const button = document.createElement("button");
        button.id = "applied"; button.dataset.changes = '{json.dumps({KEY: True})}';
        document.querySelector("main").prepend(button); button.click(); button.remove(); }})()""")
    page.settled()
    assert own_options(page) == {OPTION: True}
    assert "GiB" in page.text("[data-part=verdict]"), page.text("[data-part=problems]")
    assert page.run(f'document.querySelector("{FIELD}").value') == "true"
    page.choose(FIELD, "false")
    page.settled()
    assert own_options(page) == {OPTION: False}
    page.click(f"[data-key='{KEY}'] button")
    page.settled()
    assert own_options(page) is None
    assert not page.run(f'document.querySelector("{FIELD}")')
    page.run("""(() => { const field = document.getElementById("find"); field.value = "moe.reshard";
        field.dispatchEvent(new Event("input")); })()""")
    page.until("document.querySelector('.found-keys button')")
    page.click(".found-keys button")
    page.choose(FIELD, "true")
    page.settled()
    assert own_options(page) == {OPTION: True}
