/* Files that are dropped or opened: scenarios, recipes, a model's config.json, measured runs. */
import { Away, Problems, ask } from "./door.js";
import { clear, fill, make, notice } from "./panels.js";

const LARGEST = 45 * 2 ** 20;
const TEXT = 2 ** 18;
const RECIPES = /\.(ya?ml|json|toml|sh|py)$/i;
const plain_name = (name) => (name.replace(/[^A-Za-z0-9._-]/g, "_").replace(/^[._-]+/, "") || "file").slice(-100);

const base64 = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.split(",")[1] || "");
  reader.onerror = () => failed(new Problems([{ where: "", message: "The file cannot be read.", rule: "" }]));
  reader.readAsDataURL(blob);
});

export class Files {
  constructor(state, open, measured) {
    this.state = state;
    this.open = open; /* called with the keys of a job, and its files */
    this.measured = measured; /* called when marks of a measured run are there */
    this.box = document.getElementById("recipe");
    const input = document.getElementById("file");
    document.getElementById("open").addEventListener("click", () => input.click());
    input.addEventListener("change", () => { this.read([...input.files]); input.value = ""; });
    addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
    addEventListener("dragleave", () => document.body.classList.remove("dropping"));
    addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("dropping");
      this.read([...event.dataTransfer.files]);
    });
  }

  async read(list) {
    if (!list.length) return;
    notice("");
    try {
      const large = list.find((file) => file.size > LARGEST);
      if (large) throw new Problems([{ message: `${large.name} has ${(large.size / 2 ** 20).toFixed(0)} MiB; files of up to ${LARGEST / 2 ** 20} MiB are read. Your job is unchanged.` }]);
      const are_texts = list.every((file) => RECIPES.test(file.name) && file.size <= TEXT);
      if (are_texts) await this.texts(Object.fromEntries(await Promise.all(list.map(async (file) => [plain_name(file.name), await file.text()]))));
      else if (list.length === 1) await this.run(list[0]);
      else throw new Problems([{ message: "A measured run is one file: a snapshot, a log, or the text of an error." }]);
    } catch (error) {
      if (!(error instanceof Problems) && !(error instanceof Away)) throw error;
      notice(`${list.map((file) => file.name).join(", ")}: ${error.message}`);
    }
  }

  /* A scenario, a recipe or a model; a text that is none of these may be a log. */
  async texts(files, answers = {}) {
    const found = await ask("import", { files, ...answers });
    if (found.kind === "model") this.open({ ...this.state.job, ...found.values }, files);
    else if (found.kind === "scenario") this.open(found.values, {});
    else this.recipe(found, files, answers);
  }

  recipe(found, files, answers) {
    const open = found.questions.map((one) => this.asked(one, files, answers));
    const rows = (list, words) => list.length ? [make("details", {}, make("summary", { textContent: `${list.length} ${words}` }), make("ul", {}, ...list.map((text) => make("li", { textContent: text }))))] : [];
    const missed = found.left.filter((one) => one.kind !== "no effect");
    const away = make("button", { type: "button", textContent: "close" });
    away.addEventListener("click", () => { this.box.hidden = true; });
    this.box.hidden = false;
    this.box.replaceChildren(make("h3", { textContent: `Recipe of ${found.format}: ${Object.keys(files).join(", ")}` }),
      ...found.problems.map((one) => make("p", { className: "wrong", textContent: `${one.where}: ${one.message}` })),
      ...open, ...rows(missed.map((one) => `${one.key} ${one.value}: ${one.why}`), "keys are not modelled"),
      ...rows(Object.entries(found.origins).map(([key, origin]) => `${key}: ${origin}`), "keys, and where each comes from"), make("p", { className: "buttons" }, away));
    if (!found.questions.length && !found.problems.length) this.open(found.values, Object.fromEntries(Object.entries(files).filter(([name]) => JSON.stringify(found.values).includes(name))));
    else this.box.scrollIntoView({ block: "nearest" });
  }

  /* A field for what a recipe leaves open; its answer imports again. */
  asked(question, files, answers) {
    const name = { "--gpus": "gpus", "--seq-len": "seq_len", "--topology": "topology" }[question.option.split(" ")[0]];
    const id = `asked-${name}`;
    const input = make("input", { id, type: "text", value: name === "topology" ? this.state.job.topology || "" : "" });
    const button = make("button", { type: "button", textContent: "go on" });
    button.addEventListener("click", async () => {
      const values = Object.fromEntries([...this.box.querySelectorAll("[data-answer]")].map((one) => [one.dataset.answer, one.dataset.answer === "topology" ? one.value : Number(one.value.replace(/\D/g, ""))]).filter(([, value]) => value));
      try { await this.texts(files, { ...answers, ...values }); } catch (error) { notice(error.message); }
    });
    input.dataset.answer = name;
    return make("p", { className: "asked" }, make("label", { htmlFor: id, textContent: question.text }), " ", input, " ", button);
  }

  async run(file) {
    const fields = { values: this.state.job, files: this.state.files, name: plain_name(file.name), content: await base64(file) };
    const found = await ask("measured", fields);
    Object.assign(this.state, { marks: found.marks, curve: found.curve });
    const away = make("button", { type: "button", textContent: "put the run away" });
    fill(found);
    away.addEventListener("click", () => { Object.assign(this.state, { marks: [], curve: [] }); clear("measured"); this.measured(); });
    document.querySelector("[data-part=measured]").append(away);
    this.measured();
  }
}
