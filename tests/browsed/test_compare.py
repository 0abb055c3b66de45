"""A job that is kept, and what the next one has more or less than it; changes in the form's words."""

from __future__ import annotations

from browsed_page import Page
from simcore.studio.link import packed
from studio_jobs import JOB

LARGE = {**JOB, "topology": "rtx-4090", "mesh": {"dp_shard": 2},
         "training": {"seq_len": 4096, "micro_batch_size": 8, "method": "full"}}


def test_a_kept_job_is_told_and_the_next_stands_against_it(page: Page) -> None:
    page.open(address=f"{page.address}#{packed(JOB)}")
    page.settled()
    page.click("#pin")
    page.until("!document.getElementById('against').hidden")
    assert "Kept as A" in page.text("#against")
    assert "1 kept" in page.text("#pinned")
    page.click("#pin")  # the same job once more is no second one
    assert "This job is A already" in page.text("#notice")
    page.set("training.recompute", "full")
    against = "/Against the kept job A .fsdp2, 8 GPUs.: .[0-9.]+ GiB, step .[0-9]+ %/"
    page.until(f"{against}.test(document.getElementById('against').innerText)")
    page.until("document.querySelector('.versus')")
    assert "llama-3.2-1b full, fsdp2, 8 GPUs" in page.text("[data-part=versus]")
    link = page.run("location.href")
    page.open(address=link)  # the job in view is read before it is asked beside the kept one
    page.until("document.querySelector('.versus')")
    page.settled()
    assert page.text("#notice") == ""


def test_a_change_is_told_in_the_words_of_the_form(page: Page) -> None:
    page.open(address=f"{page.address}#{packed(LARGE)}")
    page.until("document.querySelector('[data-part=advice] b')")
    words = page.text("[data-part=advice] b")
    assert "\u2192" in words
    assert "training." not in words
    page.click("[data-limit=gpus]")
    page.until("document.querySelector('#limit p')")
    assert "(unsure)" not in page.text("#limit")


def test_a_pasted_recipe_is_read(page: Page) -> None:
    page.open()
    page.run("""(() => { const data = new DataTransfer();
        data.setData('text', 'base_model: Qwen/Qwen3-8B\\nadapter: lora\\n');
        document.body.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true })); })()""")
    page.until("!document.getElementById('recipe').hidden || !document.getElementById('notice').hidden")
    assert "pasted.yaml" in page.text("#recipe") + page.text("#notice")


def test_a_search_whose_answer_cannot_be_read_ends(page: Page) -> None:
    page.open()
    page.run("""import('/search.js').then(({ Search }) => {
        Search.prototype.show = () => { throw new Error('odd'); }; })""")
    page.until("performance.getEntriesByName('all pictures').length")  # nothing moves under the mouse
    page.click("#searching [type=submit]")
    page.until("document.getElementById('progress').innerText === 'odd'")
    assert page.run("document.getElementById('search-stop').disabled")


def test_quick_clicks_on_several_degrees_all_take_effect(page: Page) -> None:
    page.open()
    page.until("!document.querySelector('[data-axis=ep] button').disabled")
    page.run("""for (const button of ['gpus] button:nth-of-type(2)', 'gpus] button:nth-of-type(2)', 'ep] button'])
        document.querySelector(`[data-axis=${button}`).click()""")
    page.settled()
    assert [page.text(f"[data-axis={axis}] .value") for axis in ("gpus", "ep")] == ["32", "4"]
    page.click("#undo")
    page.until("document.querySelector('[data-axis=gpus] .value').innerText === '8'")
    assert page.text("[data-axis=ep] .value") == "8"


def test_undo_never_leaves_the_page(page: Page) -> None:
    """A change and the one back are a step each within a second, with one address."""
    page.open(address=f"{page.address}#{packed(JOB)}")
    page.settled()
    page.until("!document.querySelector('[data-axis=gpus] button:nth-of-type(2)').disabled")
    for way in (2, 1):
        page.run(f"document.querySelector('[data-axis=gpus] button:nth-of-type({way})').click()")
    page.settled()
    page.until("!document.getElementById('undo').hidden")
    for _ in range(4):
        page.run("document.getElementById('undo').click()")
    page.run("new Promise(done => setTimeout(done, 500))")
    assert page.run("location.href").startswith(page.address.partition("#")[0])
    assert "8" in page.text("[data-axis=gpus] .value")


def test_a_number_of_gpus_is_typed(page: Page) -> None:
    page.open()
    page.settled()
    page.run("document.querySelector('[data-axis=gpus] .value').focus()")
    for key in ("1", "6", "Enter"):
        page.tab.press(key)
    page.until("document.querySelector('[data-axis=gpus] .value').innerText === '16'")
    page.settled()
    assert "16 ranks" in page.run("document.querySelector('[data-part=bars]').textContent")


def test_more_gpus_take_a_larger_batch_and_say_so(page: Page) -> None:
    page.open(address=f"{page.address}#{packed(JOB)}")
    page.settled()
    place = "document.querySelector('[data-axis=gpus] .value').getBoundingClientRect().top"
    before = page.run(place)
    page.step("gpus", 1)
    assert page.run("document.getElementById('field-training-global_batch_size').value") == "16"
    assert "global batch 8 \u2192 16" in page.text("#notice")
    assert abs(page.run(place) - before) < 1, "what is told does not move the button away from the pointer"


def test_a_model_without_experts_takes_their_degree_away(page: Page) -> None:
    page.open()
    page.set("model", "llama-3.1-8b")
    page.until("document.getElementById('notice').innerText.includes('degrees of the model before')")
    page.settled()
    assert "Fits" in page.text("[data-part=verdict]")
