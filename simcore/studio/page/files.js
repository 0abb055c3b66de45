/* Files that are dropped or opened: scenarios, recipes, a model's config.json, measured runs. */
import { Away, Problems, ask } from "./door.js";
import { NOTHING } from "./left.js";
import { layout_changes, layout_of } from "./mesh.js";
import { clear, fill, make, notice, wait } from "./panels.js";
import { leaves, value_of } from "./state.js";
import { GUESS, machine_words } from "./values.js";

const LARGEST = 45 * 2 ** 20;
const TEXT = 2 ** 18;
const RECIPES = /\.(ya?ml|json|toml|sh|py)$/i;
const ASKED = { "--gpus": "gpus", "--seq-len": "seq_len", "--topology": "topology" };
const NEVER = /\.(png|jpe?g|gif|webp|svg|pdf|zip|gz|tar|safetensors|ckpt|pt|pth|mp4|docx?|xlsx?)$/i;
const BINARY = /[\u0000-\u0008\u000e-\u001a\u001c-\u001f]/;
const READ = "a recipe, a scenario, a model's config.json, a memory snapshot (.pickle), a log, the text of an error";
const plain_name = (name) => (name.replace(/[^A-Za-z0-9._-]/g, "_").replace(/^[._-]+/, "") || "file").slice(-100);

const base64 = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.split(",")[1] || "");
  reader.onerror = () => failed(new Problems([{ where: "", message: "The file cannot be read.", rule: "" }]));
  reader.readAsDataURL(blob);
});

const WITH = "drop that file too"; /* in the message of a recipe that names a file which is not there */
const NOT_YET = "not yet: "; /* begins what is of rankscope, not of the recipe */
const SQUARE = " unless training.image_width is set too"; /* in a question: a page asks one side */
const OTHER_LAYOUT = "of another layout"; /* in the message of a key that --loose does not leave out either */
/* What helps where a recipe does not say how long its samples are. */
const LENGTHS = "It is the longest sample of your data after the tokenizer, in tokens. Not known yet? Take a length to begin with: \u201clongest sequence\u201d then says up to which one the job fits.";
const USUAL = [512, 1024, 2048, 4096, 8192];

/* A row of packed samples in the words of its recipe. */
const packed_words = ({ values: { training: { packed_length: one, seq_len: row } } }) => `Samples are packed into rows: ${row / one} of ${one} tokens make one row of ${row}, which the form shows as a micro batch of 1 with sequence length ${row}. A recipe with fewer samples a row has a shorter sequence length here.`;

/* "machine, the model and the number of GPUs" */
const listed = (names) => names.join(", the ").replace(/, the (?=[^,]*$)/, " and the ");

const counted = (n, one, more) => `${n} ${n === 1 ? one : more}`;

const left_of = ({ key, value, why }) => [`${key} ${value}`.trim(), why];

/* What another job has otherwise: its layout, then other keys. */
const changes_of = (before, after, label) => {
  const keys = [...new Set([...leaves(before), ...leaves(after)])].filter((key) => !/^(mesh(\..*)?|framework|training\.(global_batch_size|recompute(\..*)?|loss))$/.test(key));
  const said = (job, key) => { const value = value_of(job, key); return value === undefined || value === null ? "not said" : typeof value === "object" ? JSON.stringify(value) : value; };
  return [...layout_changes(layout_of(before), layout_of(after)),
    ...keys.filter((key) => said(before, key) !== said(after, key)).map((key) => `${label(key)} ${said(before, key)} \u2192 ${said(after, key)}`)];
};

/* Keys with a sentence each as a table that opens. */
const keys_of = (rows, title, open) => (rows.length ? [make("details", { open, className: "keys" }, make("summary", { textContent: title(rows.length) }),
  make("dl", {}, ...rows.flatMap(([key, words]) => [make("dt", {}, ...key.split(/(?<=[._])/).flatMap((part) => [part, make("wbr")])), make("dd", { textContent: words })])))] : []);

export class Files {
  constructor(state, machines, open, measured) {
    this.state = state;
    this.machines = machines; /* rows of the catalogue */
    this.dropped = null; /* name and content of a measured run */
    this.layout = []; /* keys that were taken out of the recipe, without which its layout is another one */
    this.waiting = null; /* texts of a recipe that names another file, and what was told about it */
    this.values = null; /* keys of the job that the card's recipe became */
    this.names = { job: "", keys: {} }; /* of the newest recipe: its own keys by those of its job */
    this.open = open; /* called with the keys of a job, its files, and what the answer leaves out */
    this.measured = measured; /* called when marks of a measured run are there */
    this.box = document.getElementById("recipe");
    const input = document.getElementById("file");
    document.getElementById("open").addEventListener("click", () => input.click());
    input.addEventListener("change", () => { this.read([...input.files]); input.value = ""; });
    addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
    addEventListener("dragleave", () => document.body.classList.remove("dropping"));
    addEventListener("paste", (event) => this.paste(event));
    addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("dropping");
      this.read([...event.dataTransfer.files]);
    });
  }

  /* A text that is pasted outside of a field is read as a file of it. */
  paste(event) {
    const text = event.clipboardData.getData("text");
    if (!text.trim() || event.target.closest("input, textarea")) return;
    const ending = /^\s*\{/.test(text) ? "json" : /^(#!|\s*(torchrun|accelerate|deepspeed|python) )/m.test(text) ? "sh" : "yaml";
    this.read([new File([text], `pasted.${ending}`)]);
  }

  async read(list) {
    if (!list.length) return;
    if (!this.waiting) this.layout = [];
    notice("");
    try {
      const large = list.find((file) => file.size > LARGEST);
      if (large) throw new Problems([{ message: `${list.length > 1 ? `${large.name} ` : ""}has ${(large.size / 2 ** 20).toFixed(0)} MiB; files of up to ${LARGEST / 2 ** 20} MiB are read. Your job is unchanged.` }]);
      const other = list.find((file) => NEVER.test(file.name));
      if (other) throw new Problems([{ message: `not a file that rankscope reads: ${READ}. Your job is unchanged.` }]);
      const are_texts = list.every((file) => RECIPES.test(file.name) && file.size <= TEXT);
      if (are_texts) {
        const texts = await Promise.all(list.map(async (file) => [plain_name(file.name), await file.text()]));
        if (texts.some(([, text]) => BINARY.test(text))) throw new Problems([{ message: `not a text file. Your job is unchanged.` }]);
        await this.more(Object.fromEntries(texts));
      }
      else if (list.length === 1) await this.run(list[0]);
      else throw new Problems([{ message: "A measured run is one file: a snapshot, a log, or the text of an error." }]);
    } catch (error) {
      if (!(error instanceof Problems) && !(error instanceof Away)) throw error;
      const names = list.map((file) => file.name).join(", ");
      const said = (error.problems || [error]).map((one) => `${names}${/:\d+$/.test(one.where || "") ? ` line ${one.where.split(":").pop()}` : ""}: ${one.message}`).join("; ");
      notice(/unchanged\.$/.test(said) || error instanceof Away ? said : `${said}. Your job is unchanged.`);
    }
  }

  /* Texts that are dropped while a recipe waits for a file that it names are that file, where the two go together. */
  async more(texts) {
    const { waiting } = this;
    if (waiting) {
      const both = { ...waiting.texts, ...texts };
      const found = await this.of(both, waiting.answers).catch((error) => { if (error instanceof Problems) return error; throw error; });
      const lacks = (found.problems || []).map((one) => one.message).find((words) => words.includes(WITH));
      if (found instanceof Problems && lacks && lacks !== waiting.words) { /* it takes a further file */
        this.waiting = { ...waiting, texts: both, words: lacks };
        throw found;
      }
      if (found.kind === "recipe" && !found.problems.length) {
        this.recipe(found, both, waiting.answers);
        return;
      }
    }
    await this.texts(texts);
  }

  /* A scenario, a recipe or a model; a text that is none of these may be a log. */
  async texts(files, answers = {}) {
    let found;
    try { found = await this.of(files, answers); } catch (error) {
      const lacks = error instanceof Problems && error.problems.find((one) => one.message.includes(WITH));
      if (lacks) this.waiting = { texts: files, words: lacks.message, answers };
      throw error;
    }
    this.waiting = null;
    if (found.kind !== "recipe") { this.box.hidden = true; wait(""); }
    if (found.kind === "model") this.open({ ...this.state.job, ...found.values }, files);
    else if (found.kind === "scenario") this.open(found.values, {}, NOTHING);
    else this.recipe(found, files, answers);
  }

  /* The recipe's own key that a key of the job comes from; "" where the job is of no recipe that is known here. Of a key
     that other keys of the job come from too, the part that is meant: `label` has words for it. */
  name_of(key, label) {
    const name = (this.names.job === this.state.job.name && this.names.keys[key]) || "";
    const is_part = name && Object.entries(this.names.keys).some(([other, its]) => its === name && other !== key && value_of(this.state.job, other) !== undefined);
    return is_part ? `${label(key)} (of ${name})` : name;
  }

  /* Says on the card of a recipe what the job in view has otherwise. */
  say_since(job, label) {
    const box = this.box.querySelector(".since");
    if (!box) return;
    const { values } = this;
    const changes = !values ? [] : values.name !== job.name ? ["another job"] : changes_of(values, job, label);
    box.textContent = `The job in view is no longer this recipe: ${changes.join(", ")}.`;
    box.hidden = !changes.length;
  }

  of(files, answers = {}) {
    return ask("import", { files, ...answers });
  }

  /* The card of a recipe: what it leaves open as one form, and what became of its keys. Until the recipe is the job, the
     answer of the job before is out of sight. */
  recipe(found, files, answers) {
    const names = Object.keys(files).join(", ");
    const lacks = found.problems.find((one) => one.message.includes(WITH));
    const is_refused = found.problems.some((one) => one.message.startsWith(NOT_YET));
    const asks = found.questions.length > 0 && !lacks && !is_refused; /* a file that is not there may answer them; where a part is not modelled no answer helps */
    const is_job = !asks && !found.problems.length;
    const away = make("button", { type: "button", textContent: "close" });
    away.addEventListener("click", () => { this.box.hidden = true; wait(""); });
    this.box.hidden = false;
    this.waiting = lacks ? { texts: files, words: lacks.message, answers } : null;
    const answered = !asks && Object.keys(answers).length ? this.box.querySelector("form.asked") : null; /* to be corrected there */
    this.values = null;
    this.box.replaceChildren(make("h3", { textContent: `Recipe of ${found.format}: ${names}` }), make("p", { className: "caveat since", hidden: true }),
      ...found.problems.map((one) => make("p", { className: "wrong", textContent: `${one.where.replace("--gpus", "number of GPUs")}: ${one.message.replace(NOT_YET, "not modelled yet: ")} ` }, ...this.guessed(one.message, files, answers), ...this.without(one, files, answers))),
      ...(found.values.training && found.values.training.packed_length && found.values.training.seq_len !== found.values.training.packed_length ? [make("p", { className: "note", textContent: packed_words(found) })] : []),
      ...(found.early || []).map((why) => make("p", { className: "wrong", textContent: `Whatever you answer below, rankscope does not model this yet: ${why}. The page then offers to go on without it, or with another layout, where that can be answered.` })),
      ...(asks ? [this.asks(found.questions, files, answers)] : answered ? [answered] : []),
      ...keys_of(found.missed.map(left_of), (n) => `${counted(n, "key of the recipe is", "keys of the recipe are")} not in the answer`, true),
      ...keys_of(found.unsaid.map(left_of), (n) => `${counted(n, "default", "defaults")} of the tool, which the recipe does not say`, false),
      ...keys_of(found.left.filter((one) => one.kind === "no effect" && one.key).map(left_of), (n) => `${counted(n, "key of the recipe changes", "keys of the recipe change")} nothing here`, false),
      ...keys_of(Object.entries(found.origins), (n) => `${counted(n, "key", "keys")}, and where each comes from`, false),
      make("p", { className: "buttons" }, away));
    if (is_job) {
      this.names = { job: found.values.name, keys: found.names };
      this.values = found.values;
      this.open(found.values, Object.fromEntries(Object.entries(files).filter(([name]) => JSON.stringify(found.values).includes(name))), { ...NOTHING, layout: this.layout, missed: found.missed.map((one) => one.key), asked: layout_of(found.values) });
    } else {
      const open = [...this.box.querySelectorAll("[data-answer]")].filter((one) => !one.value).map((one) => one.labels[0].textContent.split(/:|, which /)[0]);
      const several = Object.keys(files).length > 1;
      const is_part = found.questions.some((one) => one.key === "model");
      const lacking = is_part ? `${several ? "they are" : "it is"} a part of a recipe and ${several ? "do" : "does"} not say the ${listed(open)}` : open.length ? `${several ? "they do" : "it does"} not say the ${listed(open)}` : "is this its machine?";
      const part = `${several ? "they are" : "it is"} a part of a recipe`;
      wait(`${names} ${several ? "are" : "is"} not the job${asks && !found.problems.length ? ` yet: ${this.box.querySelector("form.asked") ? lacking : part}` : lacks ? " yet: a file that it names is missing" : is_refused ? ": rankscope does not model a part of it yet" : `: ${counted(found.problems.length, "problem", "problems")}`}.`);
      this.box.scrollIntoView({ block: "nearest" });
      const empty = [...this.box.querySelectorAll("[data-answer]")].find((one) => !one.value) || this.box.querySelector("[data-answer]") || away;
      empty.focus();
    }
  }

  /* A button that reads the recipe with the model that its unknown one is taken for. */
  guessed(message, files, answers) {
    const [, unknown, name, id] = message.match(GUESS) || [];
    if (!name || !Object.values(files).some((text) => text.includes(unknown))) return [];
    const take = make("button", { type: "button", className: "guess", textContent: `take ${id || name}` });
    take.addEventListener("click", () => {
      const texts = Object.fromEntries(Object.entries(files).map(([file, text]) => [file, text.replaceAll(unknown, id || name)]));
      this.texts(texts, answers).catch((error) => notice(error.message));
    });
    return [take];
  }

  /* A button that reads the recipe without a key of which it has another layout, where that stands on a line of its own. */
  without({ where, message }, files, answers) {
    const [, file, line] = where.match(/^(.*):(\d+)$/) || [];
    const [key] = message.replace(NOT_YET, "").split(": ");
    const rows = (files[file] || "").split("\n");
    const at = Number(line) - 1;
    if (!message.includes(OTHER_LAYOUT) || !rows[at] || !new RegExp(`^\\s*${key.split(".").pop()}:\\s*[\\w.]+\\s*(#.*)?$`).test(rows[at])) return [];
    const take = make("button", { type: "button", textContent: `answer another layout, without ${key}` });
    take.addEventListener("click", () => {
      this.layout = [...this.layout, rows[at].split("#")[0].trim().replace(":", "")];
      this.texts({ ...files, [file]: rows.with(at, "").join("\n") }, answers).catch((error) => notice(error.message));
    });
    return [take];
  }

  /* One form of what a recipe leaves open; its answers import again. */
  asks(questions, files, answers) {
    const own = questions.filter((one) => ASKED[one.option.split(" ")[0]]);
    const keyed = questions.filter((one) => !own.includes(one) && one.option.startsWith("--set "));
    const others = questions.filter((one) => !own.includes(one) && !keyed.includes(one));
    const rows = own.flatMap((one) => {
      const name = ASKED[one.option.split(" ")[0]];
      const id = `asked-${name}`;
      const input = name === "topology" ? this.machine(id) : make("input", { id, type: "text", autocomplete: "off", inputMode: "numeric", required: true });
      input.dataset.answer = name;
      const row = make("p", {}, make("label", { htmlFor: id, textContent: one.text }), " ", input);
      if (name !== "seq_len") return [row];
      input.setAttribute("list", "usual-lengths");
      input.placeholder = `such as ${USUAL[1]}`;
      return [row, make("p", { className: "note" }, LENGTHS, make("datalist", { id: "usual-lengths" }, ...USUAL.map((value) => make("option", { value }))))];
    });
    rows.push(...keyed.map((one) => {
      const id = `asked-${one.key.replaceAll(".", "-")}`;
      const [, such = ""] = one.option.match(/=([a-z0-9]\w*)$/) || [];
      const input = make("input", { id, type: "text", autocomplete: "off", required: true, placeholder: such && `such as ${such}` });
      if (one.key === "model") input.setAttribute("list", "models"); /* of the form of the job */
      input.dataset.answer = one.key;
      input.dataset.key = one.key;
      return make("p", {}, make("label", { htmlFor: id, textContent: one.text.replace(SQUARE, "") }), " ", input);
    }));
    const is_part = keyed.some((one) => one.key === "model");
    if (is_part) rows.unshift(make("p", { className: "wrong", textContent: "This file is a part of a recipe. Drop it together with the files that say the rest (the trainer's recipe, or the script that starts the job), or answer here:" }));
    else if (keyed.length) rows.push(make("p", { className: "note", textContent: "Does another file say it (the trainer's recipe, or the script that starts the job)? Then drop both at once." }));
    const said = others.map((one) => make("li", { textContent: one.text }));
    if (others.length) return make("div", {}, make("p", { className: "wrong", textContent: "This file is a part of a recipe. It does not say:" }), make("ul", {}, ...said),
      make("p", { className: "note", textContent: "Drop it together with the files that say it: the trainer's recipe, or the script that starts the job." }));
    const form = make("form", { className: "asked" }, ...rows, make("button", { type: "submit", textContent: "use this recipe" }));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const own_of = (one) => [one.dataset.answer, one.dataset.answer === "topology" ? one.value.trim() : Number(one.value.replace(/\D/g, ""))];
      const given = [...form.querySelectorAll("[data-answer]:not([data-key])")].map(own_of);
      const settings = Object.fromEntries([...form.querySelectorAll("[data-key]")].map((one) => [one.dataset.key, /^\s*\d+\s*$/.test(one.value) ? Number(one.value) : one.value.trim()]));
      notice("");
      try { await this.texts(files, { ...answers, settings: { ...answers.settings, ...settings }, ...Object.fromEntries(given.filter(([, value]) => value)) }); } catch (error) { notice(error.message); }
    });
    return form;
  }

  /* The list of machines; that of the job before is no answer about another recipe. */
  machine(id) {
    return make("select", { id, required: true }, make("option", { value: "", textContent: "choose \u2026" }),
      ...this.machines.map((one) => make("option", { value: one.name, textContent: machine_words(one) })));
  }

  /* A measured run beside the job, and its marks on the pictures. */
  async run(file) {
    const dropped = { name: plain_name(file.name), content: await base64(file) };
    const panel = document.querySelector("[data-part=measured]");
    const reading = make("p", { className: "note", textContent: `reading ${dropped.name} \u2026` });
    const was_empty = panel.classList.contains("empty");
    panel.classList.remove("empty");
    panel.prepend(reading);
    let found;
    try { found = await this.beside(dropped); } finally {
      reading.remove();
      panel.classList.toggle("empty", was_empty);
    }
    this.dropped = dropped;
    Object.assign(this.state, { marks: found.marks, curve: found.curve });
    this.show_run(found);
    this.measured();
  }

  beside(dropped) {
    return ask("measured", { values: this.state.job, files: this.state.files, ...dropped });
  }

  /* The numbers of a run beside those of the job that it was asked about. */
  show_run(found) {
    fill(found);
    const panel = document.querySelector("[data-part=measured]");
    if (panel.querySelector(".away")) return; /* the same numbers as before */
    const away = make("button", { type: "button", className: "away", textContent: "put the run away" });
    away.addEventListener("click", () => {
      this.dropped = null;
      Object.assign(this.state, { marks: [], curve: [] });
      clear("measured");
      this.measured();
    });
    panel.append(away);
  }

  /* The run beside another job than the one that it was dropped on; a job without an answer has nothing beside it. */
  async beside_another(is_answered) {
    const { dropped } = this;
    const none = (words) => {
      this.show_run({ parts: { measured: "<p class=note></p>" } });
      document.querySelector("[data-part=measured] > p").textContent = `${dropped.name}: ${words}`;
    };
    if (!is_answered) return none("the job in view has no answer that it could stand beside.");
    try { this.show_run(await this.beside(dropped)); } catch (error) {
      if (!(error instanceof Problems)) throw error;
      none(error.message);
    }
    return null;
  }
}
