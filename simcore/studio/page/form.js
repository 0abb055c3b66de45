/* The job as a form: fields that most people change, steppers of degrees, and every other key found by search. */
import { AXES, mesh_words, short, whole_mesh } from "./mesh.js";
import { also_words, offers, say_changes } from "./offers.js";
import { make, notice } from "./panels.js";
import { leaves, value_of } from "./state.js";
import { Steppers } from "./steppers.js";
import { GUESS, decimal, machine_words, plain_value, whole } from "./values.js";
import { count } from "./wording.js";

const METHODS = ["full", "lora", "qlora"];
/* Settings of adapters and of weights in 4 bits, which mean nothing with a method that has none. */
const NOT_WITH = { full: ["training.lora", "training.quantization"], lora: ["training.quantization"], qlora: [] };
export class Form {
  constructor(root, catalogue, change, options_of, price, apply, is_unread) {
    this.root = root;
    this.catalogue = catalogue;
    this.change = change; /* called with {key: value}; undefined removes a key */
    this.options_of = options_of; /* of a framework: a promise of its options */
    this.apply = apply; /* called with changes that the page offers, keys to leave out, and true where the layout in view is refused */
    this.price = price; /* called with USD for an hour of a GPU, null for the machine's */
    this.is_unread = is_unread; /* called when a text in a field became no value, or one again */
    this.unread = new Map(); /* keys whose text is no value: what is told there; the job has the value before */
    this.options = new Map();
    this.kept = new Set(); /* keys that a user asked for, which stay without a value */
    this.lacking = new Set(); /* keys that the job lacks, as its problems say: they have a field too */
    this.job = {};
    this.fields = new Map();
    this.steppers = new Steppers((changes) => change(changes), (key) => this.label(key));
    this.build();
  }

  build() {
    const { models, machines, frameworks } = this.catalogue;
    const list = make("datalist", { id: "models" }, ...models.flatMap((one) => [one.name, ...one.other_names]).map((name) => make("option", { value: name })));
    this.root.append(list,
      this.text("model", "model", { list: "models" }),
      this.select("training.method", "method", METHODS, (method) => Object.fromEntries([["training.method", method], ...NOT_WITH[method].map((key) => [key, undefined])])),
      this.select("framework", "framework", frameworks.map((one) => one.name), (name) => ({
        framework: name, framework_version: undefined, framework_options: undefined, implementation: undefined })),
      this.select("topology", "machine", machines.map((one) => one.name), null, Object.fromEntries(machines.map((one) => [one.name, machine_words(one)]))));
    this.root.append(this.steppers.box,
      this.number("training.micro_batch_size", "micro batch"),
      this.number("training.global_batch_size", "global batch"),
      this.number("training.seq_len", "sequence length"),
      this.select("training.recompute", "recompute", ["none", "full"]),
      this.own_price(), this.others());
  }

  own_price() {
    const input = make("input", { type: "text", inputMode: "decimal", autocomplete: "off" });
    input.addEventListener("change", () => {
      const value = decimal(input.value);
      if (input.value.trim() !== "" && value === null) this.refuse("price", `expected a number of USD, got ${input.value}`);
      else {
        this.read("price");
        this.price(value);
      }
    });
    return this.row("price", "USD per GPU-hour", input);
  }

  /* The price that a user gave; else that of the machine stands in its place, paler. */
  show_price(usd, listed) {
    const { input } = this.fields.get("price");
    if (this.unread.has("price")) return;
    input.value = usd === null ? "" : String(usd);
    input.placeholder = listed ? `${listed} (${this.machine()})` : "no price known";
  }

  machine() {
    const { topology } = this.job;
    return topology && typeof topology === "object" ? topology.file : topology;
  }

  row(key, label, input) {
    const id = `field-${key.replaceAll(".", "-")}`;
    input.id = id;
    const told = make("p", { className: "told", id: `${id}-told`, hidden: true });
    input.setAttribute("aria-describedby", told.id);
    const row = make("div", { className: "field" }, make("label", { htmlFor: id }, ...broken(label)), input, told);
    row.dataset.key = key;
    this.fields.set(key, { input, told, row });
    const { default: usual, says } = this.catalogue.keys.find((one) => one.key === key) || {};
    if (usual && usual.startsWith("`") && input.tagName === "INPUT") input.placeholder = usual === "`null`" ? left_out(says) : usual.replaceAll("`", "");
    return row;
  }

  text(key, label, attributes) {
    const input = make("input", { type: "text", autocomplete: "off", spellcheck: false });
    Object.entries(attributes || {}).forEach(([name, value]) => input.setAttribute(name, value));
    input.addEventListener("change", () => {
      this.is_other_model = key === "model"; /* until its legal values are there */
      this.change({ [key]: input.value.trim() });
    });
    return this.row(key, label, input);
  }

  number(key, label) {
    const input = make("input", { type: "text", inputMode: "numeric", autocomplete: "off" });
    const commit = (value) => {
      this.read(key);
      this.change({ [key]: value });
    };
    input.addEventListener("change", () => {
      const value = whole(input.value);
      if (input.value.trim() === "") commit(undefined);
      else if (value === null) this.refuse(key, `expected a whole number from 1 on, without a unit, got ${input.value}`);
      else commit(value);
    });
    input.addEventListener("keydown", (event) => {
      const factor = { ArrowUp: 2, ArrowDown: 0.5 }[event.key];
      const value = whole(input.value);
      if (!factor || !value || (factor < 1 && value % 2)) return;
      event.preventDefault();
      commit(value * factor);
    });
    return this.row(key, label, input);
  }

  select(key, label, values, changes, words = {}) {
    const input = make("select", {}, ...values.map((value) => make("option", { value, textContent: words[value] || value })));
    input.addEventListener("change", () => this.change(changes ? changes(input.value) : { [key]: input.value }));
    return this.row(key, label, input);
  }

  others() {
    const search = make("input", { type: "search", id: "find", autocomplete: "off", placeholder: "find any other key \u2026" });
    search.setAttribute("aria-label", "Find any other key");
    const found = make("ul", { className: "found-keys" });
    const added = make("div", { id: "added" });
    search.addEventListener("input", () => this.find(search, found));
    this.added = added;
    return make("fieldset", { className: "others" }, make("legend", { textContent: "Every other key" }), search, found, added);
  }

  find(search, list) {
    const text = search.value;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const framework = this.job.framework;
    if (words.length && !this.options.has(framework)) {
      this.options.set(framework, []);
      this.options_of(framework).then((rows) => {
        this.options.set(framework, rows.map((one) => ({ key: `framework_options.${one.name}`, says: `${one.says} (${one.values.join(", ")})` })));
        if (search.value === text) this.find(search, list);
      });
    }
    const keys = [...this.catalogue.keys, ...(this.options.get(framework) || [])];
    const hits = words.length ? keys.filter((one) => words.every((word) => `${one.key} ${one.says}`.toLowerCase().includes(word))).slice(0, 12) : [];
    list.replaceChildren(...hits.map((one) => {
      const button = make("button", { type: "button" }, make("code", { textContent: one.key }), make("span", { className: "note", textContent: one.says }));
      button.addEventListener("click", () => {
        this.kept.add(one.key);
        this.add(one.key);
        list.replaceChildren();
        this.fields.get(one.key).input.focus();
      });
      return make("li", {}, button);
    }));
  }

  /* A field for any key, with the value that it has. */
  add(key) {
    if (this.fields.has(key)) return;
    const input = make("input", { type: "text", autocomplete: "off", spellcheck: false });
    input.addEventListener("change", () => this.change({ [key]: input.value.trim() === "" ? undefined : plain_value(input.value) }));
    const row = this.row(key, key, input);
    const away = make("button", { type: "button", textContent: "\u00d7", ariaLabel: `leave out ${key}` });
    away.addEventListener("click", () => {
      this.fields.delete(key);
      this.kept.delete(key);
      row.remove();
      this.change({ [key]: undefined });
    });
    input.after(away);
    this.added.append(row);
    this.show_value(key);
  }

  /* A text that is no value: the job keeps the value before, and the field its text, until it is one. */
  refuse(key, message) {
    this.unread.set(key, message);
    this.tell(key, message);
    this.is_unread();
  }

  /* Forgets that a field's text was no value; without a key of all fields. */
  read(key) {
    for (const one of key ? [key] : [...this.unread.keys()]) {
      if (!this.unread.delete(one)) continue;
      this.untell(this.fields.get(one));
      if (one !== "price") this.show_value(one);
    }
    this.is_unread();
  }

  /* What the job in view has in place of texts that are no values. */
  unread_words() {
    return [...this.unread.keys()].map((key) => {
      const value = key === "price" ? null : value_of(this.job, key);
      const { input } = this.fields.get(key);
      return `${this.label(key)} ${value ?? (input.placeholder || "left out")}, not “${input.value.trim().slice(0, 40)}”`;
    }).join("; ");
  }

  /* Shows a job: the fields get its values, and keys without a field get one. */
  show(job) {
    for (const key of this.unread.keys()) if (value_of(job, key) !== value_of(this.job, key)) this.unread.delete(key);
    this.job = job;
    const there = new Set(leaves(job));
    for (const [key, { row }] of this.fields) {
      if (!this.added.contains(row) || there.has(key) || this.kept.has(key) || this.lacking.has(key)) continue;
      this.fields.delete(key);
      row.remove();
    }
    for (const key of there) if (!this.fields.has(key) && !key.startsWith("mesh.") && key !== "mesh" && key !== "name") this.add(key);
    for (const key of this.fields.keys()) if (key !== "price") this.show_value(key);
    this.show_batch(job);
    this.steppers.show(job);
    this.is_unread();
  }

  /* The global batch that a job without one has, in its place, paler. */
  show_batch({ mesh, training }) {
    const { dp_shard: shards, dp_replicate: copies } = whole_mesh(mesh);
    const batch = shards * copies * ((training || {}).micro_batch_size || 1);
    this.fields.get("training.global_batch_size").input.placeholder = Number.isInteger(batch) ? count(batch) : "";
  }

  /* Takes the legal values that the engine found for this job, and what it offers in the place of one that is refused. */
  degrees(answer) {
    this.steppers.take(answer);
    const is_other_model = this.is_other_model && answer.plain && !answer.is_unknown;
    this.is_other_model = false;
    if (is_other_model) {
      const also = also_words(answer.also, this.job);
      this.change({ mesh: short(answer.plain), ...answer.also, ...Object.fromEntries(answer.drops.map((key) => [key, undefined])) }, false);
      notice(`${this.job.model} cannot have the degrees of the model before: ${mesh_words(this.job.mesh || {})}${also} instead. "undo" goes back.`, true);
      return;
    }
    const found = offers(answer, this.job, (changes, dropped) => this.apply(changes, dropped, true));
    const box = document.getElementById("plain");
    box.replaceChildren(...found);
    box.hidden = !found.length;
  }

  say_changes(buttons) {
    say_changes(buttons, this.job, (key) => this.label(key));
  }

  label(key) {
    if (key === "mesh.dp_shard") return "data parallel (sharded)";
    const field = this.fields.get(key);
    return AXES[key.replace("mesh.", "")] || (field && field.row.querySelector("label").textContent) || key.split(".").slice(1).slice(-2).join(" ").replaceAll("_", " ") || key.replaceAll("_", " ");
  }

  show_value(key) {
    const { input } = this.fields.get(key);
    const value = value_of(this.job, key);
    if (this.unread.has(key)) return;
    const text = value === undefined || value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    if (input.tagName === "SELECT") {
      const shown = text || (input.options[0] || {}).value || "";
      if (![...input.options].some((option) => option.value === shown)) input.append(make("option", { value: shown, textContent: shown }));
      input.value = shown;
    } else input.value = text;
    input.title = text || input.placeholder || ""; /* long ones are cut */
  }

  /* Problems where they were made: at their fields; those of no field are returned. */
  problems(rows) {
    for (const [key, field] of this.fields) if (!this.unread.has(key)) this.untell(field);
    this.steppers.mark(rows.map((one) => one.where.split(" ")[0].replace(/^mesh\./, "")));
    this.told = new Set(); /* keys of the fields that tell a problem */
    this.lacking = new Set(rows.map((one) => (one.message.match(/^([\w.]+): expected/) || [])[1]).filter((key) => this.catalogue.keys.some((one) => one.key === key)));
    for (const key of this.lacking) this.add(key);
    return rows.filter((one) => {
      const key = one.where.split(" ")[0];
      const field = [key, ...[...this.fields.keys()].filter((name) => one.message.startsWith(`${name}:`))].find((name) => this.fields.has(name));
      if (field) {
        if (!this.unread.has(field)) this.tell(field, one.message);
        this.told.add(field);
      }
      return !field;
    });
  }

  /* True for a key that has a field only because the job says it. */
  is_added(key) {
    const field = this.fields.get(key);
    return Boolean(field && this.added.contains(field.row));
  }

  /* Puts the cursor into the field of a key. */
  focus(key) {
    const field = this.fields.get(key);
    if (field) field.input.focus();
  }

  untell({ input, told, row }) {
    told.hidden = true;
    row.classList.remove("wrong");
    input.removeAttribute("aria-invalid");
  }

  tell(key, message) {
    const { input, told, row } = this.fields.get(key);
    told.textContent = said(message, key);
    const cure = cure_of(message, key);
    if (cure) {
      const take = make("button", { type: "button", textContent: `take ${cure}` });
      take.addEventListener("click", () => this.change({ [key]: cure }));
      told.append(" ", take);
    }
    told.hidden = false;
    row.classList.add("wrong");
    input.setAttribute("aria-invalid", "true");
  }
}

/* The value that a message takes a wrong one for, or the next that it allows; null without one. */
const cure_of = (message, key) => {
  const guess = key === "model" && message.match(GUESS);
  if (guess) return guess[2];
  const [, step, value] = message.match(/expected a multiple of (\d+)\b.*, got (\d+)$/) || [];
  return step && key === "training.global_batch_size" ? Math.ceil(Number(value) / Number(step)) * Number(step) : null;
};

/* A problem in words for the page: without the key that it is told at, and without commands. */
export const said = (message, key) => (message.startsWith(`${key}: `) ? message.slice(key.length + 2) : message)
  .replace(/`rankscope models`[^]*$/, "the list of the field has those that are built in; drop another's config.json on the page");

/* What a key without a value means, as its own sentence says; "" where it does not. */
const left_out = (says) => (says.match(/left out: ([^;]+)/) || ["", ""])[1];

/* A dotted name that may be cut into lines behind its dots and underscores. */
const broken = (name) => name.split(/(?<=[._])/).flatMap((part, n) => (n ? [make("wbr"), part] : [part]));
