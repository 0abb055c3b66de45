"""Recipes that are dropped on the page: what they leave open, and what the answer leaves out."""

from __future__ import annotations

import json

from browsed_page import Page
from simcore.studio.link import packed
from studio_jobs import IMAGES, JOB, OFFLOADED, RECIPE, UNSERVED

STAGED = {**JOB, "framework": "fsdp1", "mesh": {"pp": 2, "dp_shard": 4}}
IS_SEEN = "document.querySelector('[data-part=verdict]').checkVisibility()"


def test_an_answer_of_the_job_before_is_out_of_sight_until_the_recipe_is_the_job(page: Page) -> None:
    page.open()
    page.drop("recipe.yaml", RECIPE.encode())
    page.until("!document.getElementById('recipe').hidden")
    assert not page.run(IS_SEEN)
    assert "recipe.yaml is not the job yet: it does not say the machine and the number of GPUs" in page.text("#waiting")
    assert page.run("document.activeElement.id") == "asked-topology"
    page.choose("#asked-topology", "dgx-h100")
    page.run("document.getElementById('asked-gpus').focus()")
    page.tab.picture(page.shots / "recipe-asks.png")
    page.tab.press("8")
    page.tab.press("Enter")
    page.until(IS_SEEN)
    page.settled()
    page.picture("recipe-in")
    assert page.run("document.getElementById('field-model').value").startswith("Qwen/Qwen3-8B")
    assert page.run("document.getElementById('waiting').hidden && document.getElementById('missed').hidden")


FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/ds_z3_config.json
dataset: mine
template: qwen
cutoff_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
"""
ZERO3 = """{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}"""


def test_a_file_that_a_recipe_names_completes_it(page: Page) -> None:
    page.open()
    page.drop("recipe.yaml", FACTORY.encode())
    page.until("document.getElementById('recipe').innerText.includes('drop that file too')")
    assert "examples/ds_z3_config.json" in page.text("#recipe .wrong")
    assert not page.run("!!document.querySelector('#recipe .asked')"), "nothing is asked that the file may answer"
    assert page.text("#waiting") == "recipe.yaml is not the job yet: a file that it names is missing."
    page.drop("ds_z3_config.json", ZERO3.encode())
    page.until("document.querySelector('#recipe h3').innerText.includes('ds_z3_config.json')")
    page.answer("dgx-a100-40gb")
    page.until(IS_SEEN)
    page.settled()
    assert page.run("document.getElementById('field-framework').value") == "zero3"
    assert "no list price" in page.text("[data-part=time]")


def test_an_answer_that_the_recipe_refuses_is_corrected_where_it_was_given(page: Page) -> None:
    page.open()
    staged = UNSERVED.replace("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "Qwen/Qwen2.5-7B-Instruct")
    page.drop("recipe.yaml", staged.replace("tp_size: 1", "tp_size: 1, pp_size: 4").encode())
    page.answer(gpus="6", seq_len="2048")
    page.until("(document.querySelector('#recipe .wrong') || {innerText: ''}).innerText.includes('pp_size 4')")
    page.picture("recipe-corrected")
    assert "number of GPUs 6: 6 GPUs are no multiple of pp_size 4" in page.text("#recipe .wrong")
    assert page.run("document.getElementById('asked-topology').value") == "dgx-h100"
    page.answer()
    page.until(IS_SEEN)
    page.settled()
    assert page.run("document.getElementById('waiting').hidden")


def test_a_part_of_a_recipe_says_what_it_lacks(page: Page) -> None:
    page.open()
    page.drop("ds_z3_config.json", ZERO3.encode())
    page.until("document.getElementById('recipe').innerText.includes('part of a recipe')")
    assert "model, which is the training script's" in page.text("#recipe .asked")
    assert page.text("#notice") == ""
    said = "it is a part of a recipe and does not say the machine, the tokens of a sequence, the number of GPUs, "
    assert said in page.text("#waiting")
    assert page.run("document.getElementById('asked-training-precision-compute').placeholder") == "such as bf16"
    page.answer(model="Qwen/Qwen3-8B", seq_len="2048",
                **{"training-micro_batch_size": "1", "training-precision-compute": "bf16"})
    page.until(IS_SEEN)
    page.settled()
    assert "of the 79.11 GiB usable" in page.text("[data-part=verdict]"), "who knows the rest is answered"


def test_the_card_of_a_recipe_comes_back(page: Page) -> None:
    page.open()
    page.drop("recipe.yaml", (RECIPE + "special_tokens: {pad_token: x}\n").encode())
    page.until("document.getElementById('asked-gpus')")
    page.answer()
    page.until("document.getElementById('why-missed')")
    page.click("#recipe > .buttons button")
    assert page.run("document.getElementById('recipe').hidden")
    page.click("#why-missed")
    assert not page.run("document.getElementById('recipe').hidden")


def test_an_answer_of_another_layout_says_so(page: Page) -> None:
    page.open()
    text = f"{RECIPE}expert_parallel_size: 4 # of 8\n".replace("Qwen3-8B", "Qwen3-30B-A3B")
    page.drop("recipe.yaml", text.encode())
    page.until("!!document.querySelector('#recipe .wrong')")
    assert page.text("#waiting") == "recipe.yaml is not the job: rankscope does not model a part of it yet."
    assert "recipe.yaml:9: not modelled yet: expert_parallel_size: " in page.text("#recipe .wrong")
    assert "loose" not in page.text("#recipe")
    assert not page.run("!!document.querySelector('#recipe .asked')"), "no answer would help"
    page.click("#recipe .wrong button")
    page.until("!!document.querySelector('#recipe .asked')")
    page.answer(gpus="4")
    page.until(IS_SEEN)
    page.settled()
    said = "The answer is of another layout: without expert_parallel_size 4 of the recipe. It does not say"
    assert page.text("#other-layout").startswith(said)
    page.choose("#copy", "markdown")
    page.until("document.getElementById('dialog').open")
    assert f"\n\n{said}" in page.run("document.getElementById('dialog-text').value"), "who reads the table is told too"
    page.click("#dialog-close")
    assert page.run("getComputedStyle(document.querySelector('.answer > .verdict')).borderStyle") == "dashed"
    page.picture("other-layout")
    page.run("new Promise(done => setTimeout(done, 300))")
    page.open(address=page.run("location.href"))
    assert page.text("#other-layout").startswith(said), "a link has it too"
    page.drop("recipe.yaml", RECIPE.encode())
    page.until("!!document.querySelector('#recipe .asked')")
    page.answer(gpus="4")
    page.until("document.getElementById('other-layout').hidden")


GEMMA = IMAGES.replace("Qwen/Qwen2.5-VL-3B-Instruct", "google/gemma-4-31B-it").replace(
    "dp_size: none, tp_size: 1, cp_size: 1", "tp_size: 4, pp_size: 2").replace("batch_size: 8", "batch_size: 4")


def test_a_layout_that_is_taken_in_place_of_the_recipes_says_its_gpus_and_that_it_is_another(page: Page) -> None:
    page.open()
    page.drop("recipe.yaml", GEMMA.encode())
    page.answer(gpus="16", seq_len="2048", **{"training-image_height": "448"})
    page.until("!document.getElementById('plain').hidden")
    page.picture("taken-offers")
    fewer, larger = page.text("#plain").split("take ")[1:3]
    assert fewer.startswith("16 → 4 GPUs: dp_shard 4, pp 2 → 1, tp 4 → 1, without framework_options.local_batch_size ")
    assert fewer.strip().endswith("(16 GPUs cannot share a global batch of 4 evenly)")
    assert larger.startswith("dp_shard 16, pp 2 → 1, tp 4 → 1, global batch size 4 → 16")
    assert page.run("document.getElementById('other-layout').hidden"), "the recipe's own layout is refused, not another"
    page.click("#plain button")
    page.settled()
    page.picture("taken")
    said = ("The answer is of another layout than the recipe's: GPUs 16 → 4, tensor parallel 4 → 1, pipeline stages "
            "2 → 1, data parallel 2 → 4. It does not say whether the recipe fits.")
    assert page.text("#other-layout").strip() == said
    assert page.run("getComputedStyle(document.querySelector('.answer > .verdict')).borderStyle") == "dashed"
    assert "The job in view is no longer this recipe: GPUs 16 → 4, " in page.text("#recipe .since")
    page.set("training.recompute", "full")
    assert page.text("#recipe .since").endswith("recompute none → full, local batch size 1 → not said.")
    page.run("new Promise(done => setTimeout(done, 300))")
    page.open(address=page.run("location.href"))
    said = said.replace("data parallel 2 → 4", "data parallel 2 → 4, recompute none → full")
    assert page.text("#other-layout").strip() == said, "a link has it too"


def test_what_is_left_out_is_named_without_its_sources(page: Page) -> None:
    page.open()
    long = f"a base behind a tower {9 * 'that stays '}"
    said = page.run(f"""import('/left.js').then(({{ NOTHING, left_words }}) => left_words({{ ...NOTHING,
        missed: ['precision (of bf16)', '{long}(PEFT 0.21.2 other.py; 06)'] }}, {{}})[1])""")
    assert said == f"Without precision (of bf16) and {long}of the recipe, which may change the answer."


def test_a_recipe_that_is_closed_leaves_the_job_before(page: Page) -> None:
    page.open()
    page.drop("recipe.yaml", RECIPE.encode())
    page.until("!document.getElementById('recipe').hidden")
    page.click("#recipe > .buttons button")
    assert page.run(IS_SEEN)
    assert not page.run("document.getElementById('job').inert")


def test_keys_that_the_answer_leaves_out_stand_beside_the_verdict(page: Page) -> None:
    page.open()
    text = f"{RECIPE}adapter: lora\nlora_r: 16\nlora_target_linear: true\nlora_target_parameters: [mlp.weight]\n"
    page.drop("recipe.yaml", text.encode())
    page.until("!document.getElementById('recipe').hidden")
    page.answer()
    page.until("!document.getElementById('missed').hidden")
    page.settled()
    assert "Without lora_target_parameters of the recipe" in page.text("#missed")
    assert page.run("document.querySelector('#recipe details').open")
    page.until("location.hash.length > 100")
    page.run("new Promise(done => setTimeout(done, 300))")
    page.open(address=page.run("location.href"))
    assert "lora_target_parameters" in page.text("#missed")  # a link has it too


def test_the_way_back_of_the_browser_undoes_a_recipe_and_a_change(page: Page) -> None:
    page.open()
    page.settled()
    page.drop("recipe.yaml", RECIPE.encode())
    page.until("!document.getElementById('recipe').hidden")
    page.answer()
    page.until("/Out of memory/.test(document.querySelector('[data-part=verdict]').innerText)")
    page.until("document.querySelector('#result [data-changes]')")
    page.settled()
    before = json.dumps(page.text("[data-part=verdict]"))
    page.click("#result [data-changes]")
    page.until(f"document.querySelector('[data-part=verdict]').innerText !== {before}", 20)
    assert page.run("document.activeElement.dataset.part") == "verdict"
    page.click("#undo")
    page.until(f"document.querySelector('[data-part=verdict]').innerText === {before}", 20)
    page.run("history.back()")
    page.until("document.getElementById('field-model').value.startsWith('nemotron')", 20)


def test_a_layout_that_is_not_modelled_has_a_way_on(page: Page) -> None:
    page.open(address=f"{page.address}#{packed(STAGED)}")
    page.until("!document.getElementById('plain').hidden")
    assert "your job may be right" in page.text("#plain")
    refused = page.text("[data-axis=cp] .why summary").removeprefix("why not").split(", ")
    assert "1" not in [one.strip() for one in refused], "it has one of them"
    page.picture("not-yet")
    page.run("""void new MutationObserver(() => {
        if (!document.body.classList.contains('unanswered')) window.seen ??= !document.getElementById('plain').hidden;
      }).observe(document.body, { attributeFilter: ['class'] })""")
    page.click("#plain button")
    page.settled()
    assert page.run("window.seen") is False, "what the refused job was offered is gone with its answer"
    page.until("document.querySelector('[data-part=bars] svg')")


def test_frameworks_without_a_layout_come_last(page: Page) -> None:
    page.open()
    order = page.run("""import('/frontier.js').then(({ by_fewest }) => {
        const none = framework => ({ framework, value: null, layout: null });
        const some = (framework, value, rate) => ({ framework, value, layout: { tokens_per_s_per_gpu: rate } });
        return [none('a'), some('b', 8, 1), none('c'), some('d', 8, 2), some('e', 4, 1)].sort(by_fewest)
          .map(one => one.framework).join(' '); })""")
    assert order == "e d b a c"


def test_fewer_gpus_with_several_options_are_counted_and_taken_over(page: Page) -> None:
    """A framework of which a layout fits with several options only is one that fits."""
    page.open()
    page.run("""import('/search.js').then(({ Search }) => {
        const layout = (gpus) => ({ layout: `dp_shard ${gpus}`, keys: { 'mesh.dp_shard': gpus }, framework: 'fsdp2',
          peak_bytes: 2 ** 34, step_s: 1, tokens_per_s_per_gpu: 10, usd_per_million_tokens: 1 });
        const row = { why: 'oom, in backward', nearest: null, untried: 0, skipped: [], is_fewest: true, is_best: true };
        const search = new Search(document.createElement('form'), { frameworks: [] },
          () => ({ values: {} }), (keys) => { window.taken = keys; });
        Object.assign(search, { counted: [], layouts: [], sized: [] });
        search.show({ fewest: { ...row, framework: 'ddp', value: null, layout: null } });
        search.show({ fewest: { ...row, framework: 'fsdp2', value: null, layout: null,
          together: { gpus: 2, layout: layout(2) } } });
        search.show({ fewest: { ...row, framework: 'zero3', value: 8, layout: layout(8), unmodelled: ['states aside'],
          together: { gpus: 4, layout: layout(4), skipped: [3], other: { gpus: 3, batch: 66, layout: layout(3) } } } });
        search.show({ over: true });
        window.over = search.over; })""")
    assert page.run("window.over") == "3 frameworks: 2 fit, some only with several options at once."
    assert json.loads(page.run("""JSON.stringify([...document.querySelectorAll('#frontier tbody tr:not(.below)')]
        .map(row => [row.cells[1].innerText, row.cells[2].innerText, !!row.querySelector('button')]))""")) == [
            ["fsdp2, several options at once", "2", True], ["fsdp2", "none that was tried fits", False],
            ["zero3, several options at once, global batch 66", "3", True],
            ["zero3, several options at once", "4", True], ["zero3", "8", True],
            ["ddp", "none that was tried fits", False]]
    assert "3 GPUs do fit: dp_shard 3" in page.text("#frontier")
    assert "Not modelled with it yet, so not tried: states aside." in page.text("#frontier")
    page.click("#frontier button")
    assert page.run("window.taken['mesh.dp_shard']") == 2
    page.click("#frontier tr:nth-of-type(4) button")
    assert page.run("window.taken['training.global_batch_size']") == 66


def test_a_number_of_gpus_has_one_verdict_for_each_layout_and_its_batch_is_told(page: Page) -> None:
    """Too close to tell with several options, out of memory with one: two layouts, and each is said to be so."""
    page.open()
    head, lines = page.run("""import('/wording.js').then(({ fewest_words, limit_words }) => {
        const nearest = { keys: { 'mesh.dp_shard': 4 }, num_gpus: 4, peak_bytes: 8 * 2 ** 30, verdict: 'unsure',
          usable_bytes: 7.8 * 2 ** 30 };
        const row = { value: null, is_fewest: true, layout: null, beyond: 4, why: 'oom, in forward, input 2 GiB',
          nearest_bytes: 9 * 2 ** 30, nearest, skipped: [], untried: 0, together: null };
        const limit = { quantity: 'gpus', words: 'fewest GPUs', value: null, beyond: 4096, beyond_peak: '177 GiB',
          beyond_verdict: 'oom', beyond_batch: 4096, why: 'in forward, input 2 GiB' };
        const [head, lines] = fewest_words(row, {});
        return [head, [...lines, limit_words(limit)].join('|')]; })""")
    assert head == "too close to tell: none surely fits"
    assert "|With one option at a time, 4 GPUs, the most that were tried: does not fit" in lines
    assert "its best layout needs 9.00 GiB.|Nearest to fitting, with several options at once: dp_shard 4" in lines
    assert "4,096 GPUs with a global batch of 4,096, the most that were tried: does not fit, it needs 177 GiB" in lines


def test_a_key_that_is_not_modelled_is_left_out_by_a_click(page: Page) -> None:
    job = {**JOB, "framework": "automodel", "training": {**JOB["training"], "sequence_parallel": True}}
    page.open(address=f"{page.address}#{packed(job)}")
    page.settled()
    assert "not yet" in page.text("[data-part=problems]")
    page.click("[data-part=problems] li button + button")
    page.settled()
    assert "Fits" in page.text("[data-part=verdict]")
    assert page.text("#missed").startswith("Without training.sequence_parallel true, which may change the answer")
    page.run("new Promise(done => setTimeout(done, 300))")
    page.open(address=page.run("location.href"))
    assert "training.sequence_parallel" in page.text("#missed"), "a link has it too"


def test_a_key_of_a_recipe_that_is_left_out_has_the_recipes_own_name(page: Page) -> None:
    page.open()
    page.drop("recipe.yaml", f"{RECIPE}{OFFLOADED}mine: 1\n".encode())
    page.until("!!document.querySelector('#recipe .asked')")
    assert "gradient_checkpointing: " in page.text("#recipe .wrong")
    page.answer()
    page.until("!!document.querySelector('[data-part=problems] li button + button')")
    page.click("[data-part=problems] li button + button")
    page.settled()
    page.picture("left-out")
    said = "Without training.offload.activations (of gradient_checkpointing) and mine of the recipe"
    assert page.text("#missed").startswith(said), "the recipe's key has other parts, which stay"


def test_what_means_nothing_without_a_key_is_left_out_with_it(page: Page) -> None:
    training = {**JOB["training"], "lengths": "packed", "packed_length": 512}
    job = {**JOB, "model": "nemotron-h-8b", "training": training}
    page.open(address=f"{page.address}#{packed(job)}")
    page.settled()
    assert "packed_length" not in page.text("[data-part=problems]"), "it is no problem of the job as it is"
    page.click("[data-part=problems] li button + button")
    page.settled()
    assert "of the 79.11 GiB usable" in page.text("[data-part=verdict]")
    assert page.text("#missed").startswith("Without training.lengths packed and training.packed_length 512, which may")


def test_what_was_offered_to_the_job_before_is_out_of_reach_while_another_is_simulated(page: Page) -> None:
    page.open()
    page.settled()
    assert page.run("""(() => { const field = document.getElementById("field-training-seq_len"); field.value = "1024";
        field.dispatchEvent(new Event("change")); return document.querySelector("[data-part=advice]").inert; })()""")
    page.settled()
    assert not page.run("document.querySelector('[data-part=advice]').inert")


def test_a_model_that_is_nearly_one_is_taken_by_a_click(page: Page) -> None:
    page.open()
    page.drop("recipe.yaml", RECIPE.replace("Qwen3-8B", "Qwen3-8C").encode())
    page.until("document.querySelector('#recipe .guess')")
    page.click("#recipe .guess")
    page.until("!document.querySelector('#recipe .wrong')")
    page.answer()
    page.until("document.getElementById('field-model').value.toLowerCase().includes('qwen3-8b')")


def test_what_a_recipe_with_images_leaves_open_has_fields(page: Page) -> None:
    page.open()
    page.drop("recipe.yaml", IMAGES.encode())
    page.until("!!document.querySelector('#recipe .asked')")
    assert "pixels of an image from top to bottom" in page.text("#recipe .asked")
    assert "training." not in page.text("#recipe .asked")
    page.tab.picture(page.shots / "recipe-images.png")
    page.answer(seq_len="2048", **{"training-image_height": "448"})
    page.until("document.getElementById('field-model').value.toLowerCase().includes('qwen')")
    page.settled()
    assert "of the 79.11 GiB usable" in page.text("[data-part=verdict]")


def test_a_key_that_the_job_lacks_has_a_field_where_it_is_told(page: Page) -> None:
    job = {**JOB, "framework": "automodel", "model": "Qwen/Qwen2.5-VL-3B-Instruct",
           "training": {**JOB["training"], "frozen": ["model.visual"]}}
    page.open(address=f"{page.address}#{packed(job)}")
    page.settled()
    assert "the model has a vision tower" in page.text("[data-key='training.images'] .told")
    page.set("training.images", "1")
    assert "the model has a vision tower" not in page.text("#added")
    page.set("training.image_height", "448")
    assert "of the 79.11 GiB usable" in page.text("[data-part=verdict]")
    page.open()
    assert not page.run("!!document.querySelector('[data-key=\"training.images\"]')")


def test_a_model_that_the_framework_lacks_is_told_before_the_questions_and_given_to_another(page: Page) -> None:
    page.open()
    page.drop("recipe.yaml", UNSERVED.encode())
    page.until("!!document.querySelector('#recipe .asked')")
    assert "model.pretrained_model_name_or_path: Automodel's own layers of nemotron-nas" in page.text("#recipe .wrong")
    page.tab.picture(page.shots / "recipe-early.png")
    page.answer(seq_len="2048")
    page.until("!document.getElementById('plain').hidden")
    page.picture("recipe-given-away")
    assert "take fsdp2, dp_shard 8" in page.text("#plain")
    page.run("[...document.querySelectorAll('#plain button')].find(one => one.innerText.includes('fsdp2')).click()")
    page.settled()
    said = page.text("#other-layout")
    assert "another layout than the recipe's: framework automodel → fsdp2, loss masked_fp32 → auto. It does not" in said
    assert "of the 79.11 GiB usable" in page.text("[data-part=verdict]")
