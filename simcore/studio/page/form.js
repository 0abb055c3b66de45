/* The job as a form: fields that most people change, steppers of degrees, and every other key found by search. */
import { make, notice } from "./panels.js";
import { leaves, value_of } from "./state.js";

const AXES = { gpus: "GPUs", tp: "tensor parallel", pp: "pipeline stages", cp: "context parallel", ep: "expert parallel",
  etp: "expert tensor parallel", dp_replicate: "replicas" };
const METHODS = ["full", "lora", "qlora"];
/* Settings of adapters and of weights in 4 bits, which mean nothing with a method that has none. */
const NOT_WITH = { full: ["training.lora", "training.quantization"], lora: ["training.quantization"], qlora: [] };
/* What a message takes a name for: a model built in, and its id where an id was asked for. */
export const GUESS = /unknown model '([^']+)' \(did you mean '([\w.-]+)'(?:, ([\w./-]+))?\?/;
const GROUPED = /^\d{1,3}([.,'\u2019\u00a0\u202f _]\d{3})+$/;

/* A whole number as people write it in English, German, French or Swiss; null for anything else. */
export const whole = (text) => {
  const plain = text.trim();
  if (/^\d+$/.test(plain)) return Number(plain);
  return GROUPED.test(plain) ? Number(plain.replace(/\D/g, "")) : null;
};

/* A number with decimals, which a point or a comma begins; null for anything else. */
export const decimal = (text) => (/^\d+([.,]\d+)?$/.test(text.trim()) ? Number(text.trim().replace(",", ".")) : null);

export const machine_words = ({ name, gpu, usable_gib: usable }) => {
  const short = gpu.replace(/NVIDIA |GeForce | HBM.*/g, "");
  return `${name} (${short}${/\d ?GB/.test(short) ? "" : `, ${usable.toFixed(1)} GiB`})`;
};

/* A value as YAML would read it: numbers, true, false, null, JSON lists; else text. */
export const plain_value = (text) => {
  const trimmed = text.trim();
  if (/^(true|false|null|-?\d+(\.\d+)?([eE][+-]?\d+)?|[[{"].*)$/s.test(trimmed)) {
    try { return JSON.parse(trimmed); } catch { return trimmed; }
  }
  return trimmed;
};

export class Form {
  constructor(root, catalogue, change, options_of, price, apply, is_unread) {
    this.root = root;
    this.catalogue = catalogue;
    this.change = change; /* called with {key: value}; undefined removes a key */
    this.options_of = options_of; /* of a framework: a promise of its options */
    this.apply = apply; /* called with changes that the page offers */
    this.price = price; /* called with USD for an hour of a GPU, null for the machine's */
    this.is_unread = is_unread; /* called when a text in a field became no value, or one again */
    this.unread = new Map(); /* keys whose text is no value: what is told there; the job has the value before */
    this.options = new Map();
    this.kept = new Set(); /* keys that a user asked for, which stay without a value */
    this.job = {};
    this.fields = new Map();
    this.steppers = new Map();
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
    const degrees = make("fieldset", { className: "degrees" }, make("legend", { textContent: "GPUs and degrees" }));
    for (const axis of Object.keys(AXES)) degrees.append(this.stepper(axis));
    degrees.append(make("p", { className: "note", id: "rest" }));
    this.root.append(degrees,
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
    const { default: usual } = this.catalogue.keys.find((one) => one.key === key) || {};
    if (usual && usual.startsWith("`") && input.tagName === "INPUT") input.placeholder = usual.replaceAll("`", "");
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

  stepper(axis) {
    const name = AXES[axis];
    const down = make("button", { type: "button", textContent: "\u2212", tabIndex: -1, ariaLabel: `less: ${name}` });
    const up = make("button", { type: "button", textContent: "+", tabIndex: -1, ariaLabel: `more: ${name}` });
    const value = make("span", { className: "value", tabIndex: 0, role: "spinbutton" });
    value.setAttribute("aria-label", name);
    const why = make("details", { className: "why", hidden: true }, make("summary"), make("ul"));
    const step = (by) => () => this.step(axis, by);
    down.addEventListener("click", step(-1));
    up.addEventListener("click", step(1));
    value.addEventListener("keydown", (event) => {
      if (/^\d$/.test(event.key) || (event.key === "Enter" && this.typed)) {
        event.preventDefault();
        this.type(axis, event.key);
        return;
      }
      const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.step(axis, by);
    });
    const row = make("div", { className: "stepper" }, make("span", { className: "name", textContent: name }), down, value, up, why);
    row.dataset.axis = axis;
    this.steppers.set(axis, { row, down, up, value, why, values: [] });
    return row;
  }

  /* The legal values on each side of the present one; null without one. */
  next(axis, by) {
    const { values } = this.steppers.get(axis);
    const now = this.now(axis);
    const at = values.findIndex((one) => one.value === now);
    if (at < 0) return null;
    const beside = [];
    for (let n = at + by; n >= 0 && n < values.length; n += by) if (values[n].mesh) beside.push(values[n]);
    /* from a job that is refused as it is, a step may lead to another one that is: else some could not be left */
    return beside.find((one) => !one.why) || (values[at].why && beside[0]) || null;
  }

  now(axis) {
    if (axis !== "gpus") return this.mesh ? this.mesh[axis] : null;
    return this.mesh ? ["pp", "dp_replicate", "dp_shard", "cp", "tp"].reduce((all, one) => all * (this.mesh[one] || 1), 1) : null;
  }

  step(axis, by) {
    const next = this.next(axis, by);
    if (next && !this.is_fresh(axis)) this.put(axis, next.value, next.also); /* quicker than the answer about the change before */
    else if (next) {
      const words = this.also_words(next.also);
      this.change({ mesh: short(next.mesh), ...next.also, ...Object.fromEntries((next.drops || []).map((key) => [key, undefined])) });
      if (words) notice(`Also changed: ${words}, a multiple of the data-parallel ranks.`, true);
    }
    else this.steppers.get(axis).row.animate([{ background: "var(--bad-wash)" }, {}], 700); /* the line below says why not */
  }

  /* A number that is typed at a degree, taken by Enter or after a while; data parallelism takes what is left. */
  type(axis, key) {
    clearTimeout(this.typing);
    if (key !== "Enter") {
      this.typed = `${this.typed || ""}${key}`.slice(0, 6);
      this.steppers.get(axis).value.textContent = this.typed;
      this.typing = setTimeout(() => this.type(axis, "Enter"), 1200);
      return;
    }
    const number = Number(this.typed);
    this.typed = "";
    this.put(axis, number);
  }

  /* True if the values of an axis are those of the job in view. */
  is_fresh(axis) {
    const own = this.steppers.get(axis).values.find((one) => one.value === this.now(axis));
    return Boolean(own && own.mesh && Object.entries(own.mesh).every(([name, degree]) => degree === this.mesh[name]));
  }

  /* Takes a degree; the number of GPUs stays, data parallelism takes what is left. */
  put(axis, number, also = {}) {
    const gpus = axis === "gpus" ? number : this.now("gpus");
    const mesh = axis === "gpus" ? { ...this.mesh } : { ...this.mesh, [axis]: number };
    const others = ["pp", "dp_replicate", "cp", "tp"].reduce((all, one) => all * mesh[one], 1);
    if (number !== 0 && gpus % others === 0) this.change({ mesh: short({ ...mesh, dp_shard: gpus / others }), ...also });
    else {
      this.show_steppers();
      notice(`${AXES[axis]} ${number}: ${gpus} GPUs are no multiple of the degrees' product.`);
    }
  }

  /* Takes the legal values that the engine found for this job. */
  degrees(answer) {
    this.says = answer.says;
    for (const [axis, stepper] of this.steppers) {
      stepper.values = answer.values[axis];
      stepper.row.title = answer.says[axis] || "";
      const own = stepper.values.find((one) => one.value === this.now(axis));
      const has_none = answer.idle.includes(axis) || (axis === "etp" && stepper.values.length === 1);
      stepper.row.hidden = has_none && [null, 1].includes(this.now(axis) ?? null);
      /* of a job that is refused as it is, only values that have another reason: its own is told beside the verdict */
      const refused = stepper.values.filter((one) => one.why && one.why !== (own || {}).why);
      stepper.why.hidden = !refused.length;
      stepper.why.querySelector("summary").textContent = `why not ${refused.map((one) => one.value ?? "auto").join(", ")}`;
      stepper.why.querySelector("ul").replaceChildren(...refused.map((one) => make("li", {}, make("b", { textContent: String(one.value ?? "auto") }), ` ${one.why}`)));
    }
    const box = document.getElementById("plain");
    box.hidden = !answer.plain && !answer.frameworks.length;
    if (answer.plain && this.is_other_model && !answer.is_unknown) {
      this.is_other_model = false;
      this.change({ mesh: short(answer.plain), ...Object.fromEntries(answer.drops.map((key) => [key, undefined])) }, false);
      notice(`${this.job.model} cannot have the degrees of the model before: ${this.layout_words()} instead. "undo" goes back.`, true);
      return;
    }
    this.is_other_model = false;
    if (!box.hidden) {
      box.replaceChildren(...(answer.is_unknown ? [make("span", { className: "note", textContent: "rankscope does not model this yet; your job may be right. What it can answer:" })] : []),
        ...alone([...(answer.plain ? [answer, ...answer.others].map((one) => this.plain(one)) : []), ...answer.frameworks.map((one) => this.other(one))]));
    }
    this.show_steppers();
  }

  /* A button that takes a legal layout in the place of one that is refused. */
  plain({ plain, drops }) {
    const degrees = Object.entries(short(plain)).map(([axis, n]) => `${axis} ${n}`).join(" ") || "one GPU";
    const gone = Object.entries(this.job.mesh || {}).filter(([axis, n]) => n > 1 && !(axis in short(plain))).map(([axis, n]) => `, ${axis} ${n} \u2192 1`).join("");
    const button = make("button", { type: "button", textContent: `take ${degrees}${gone}${drops.length ? `, without ${drops.join(", ")}` : ""}` });
    button.addEventListener("click", () => this.apply({ mesh: short(plain) }, drops));
    return button;
  }

  /* A button that gives the job to another framework, with that one's own defaults. */
  other({ keys, says }) {
    const { framework, mesh, framework_options: options, ...others } = keys;
    const degrees = Object.entries(short(mesh)).map(([axis, n]) => `${axis} ${n}`).join(" ") || "one GPU";
    const own = Object.entries(others).filter(([key, value]) => value !== value_of(this.job, key)).map(([key, value]) => `, ${is_empty(value) ? "without " : ""}${key.split(".").pop().replaceAll("_", " ")} ${is_empty(value) ? "" : Array.isArray(value) && value.length > 2 ? `as ${value.length} names` : [value].flat().join(" ")}`).join("");
    const button = make("button", { type: "button", textContent: `take ${framework || this.job.framework}, ${degrees}${own}: ${says}` });
    button.addEventListener("click", () => this.apply({ ...(framework ? { framework, framework_options: options } : {}), mesh: short(mesh), ...others }));
    return button;
  }

  also_words(changes = {}) {
    return Object.entries(changes).map(([key, one]) => `${this.label(key)} ${value_of(this.job, key)} \u2192 ${one}`).join(", ");
  }

  layout_words() {
    return Object.entries(short(this.mesh)).map(([axis, n]) => `${axis} ${n}`).join(" ") || "one GPU";
  }

  show_steppers() {
    for (const [axis, { down, up, value }] of this.steppers) {
      const now = this.now(axis);
      value.textContent = now === null || now === undefined ? "auto" : now.toLocaleString("en");
      value.setAttribute("aria-valuetext", value.textContent);
      if (typeof now === "number") value.setAttribute("aria-valuenow", now);
      else value.removeAttribute("aria-valuenow");
      for (const [button, by] of [[down, -1], [up, 1]]) {
        const next = this.next(axis, by);
        button.disabled = !next;
        button.title = next ? this.also_words(next.also) : "";
      }
    }
    const rest = document.getElementById("rest");
    const { dp_shard: shards = 1, dp_replicate: copies = 1 } = this.mesh || {};
    const ranks = [shards > 1 && `${shards} sharded`, copies > 1 && `${copies} replicas`].filter(Boolean).join(" \u00d7 ") || "one rank";
    rest.textContent = this.mesh ? `data parallel takes the rest: ${ranks}` : "";
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
    const mesh = job.mesh || {};
    this.mesh = { pp: 1, dp_replicate: 1, dp_shard: 1, cp: 1, tp: 1, ep: 1, etp: null, ...mesh };
    const there = new Set(leaves(job));
    for (const [key, { row }] of this.fields) {
      if (!this.added.contains(row) || there.has(key) || this.kept.has(key)) continue;
      this.fields.delete(key);
      row.remove();
    }
    for (const key of there) if (!this.fields.has(key) && !key.startsWith("mesh.") && key !== "mesh" && key !== "name") this.add(key);
    for (const key of this.fields.keys()) if (key !== "price") this.show_value(key);
    this.show_steppers();
    this.is_unread();
  }

  /* Puts what a change means in the form's words before its keys: old and new value; keys that stay are left out. */
  say_changes(buttons) {
    for (const button of buttons) {
      const changes = JSON.parse(button.dataset.changes);
      const mesh = { ...this.mesh };
      for (const [key, value] of Object.entries(changes)) if (key.startsWith("mesh.")) mesh[key.slice(5)] = value;
      const gpus = (one) => ["pp", "dp_replicate", "dp_shard", "cp", "tp"].reduce((all, axis) => all * (one[axis] || 1), 1);
      const rows = Object.entries(changes).map(([key, value]) => [this.label(key), key.startsWith("mesh.") ? this.mesh[key.slice(5)] : value_of(this.job, key), value, key]);
      /* options that are left out with their framework are told below */
      const said = [["GPUs", gpus(this.mesh), gpus(mesh)], ...rows].filter(([, before, after, key]) => JSON.stringify(before) !== JSON.stringify(after) && !(key === "framework_options" && is_empty(after)))
        .map(([name, before, after]) => `${name} ${before === undefined || before === null ? "" : `${words_of(before)} `}\u2192 ${words_of(after)}`).join(", ");
      const place = button.nextElementSibling;
      const stay = rows.filter(([, before, after]) => JSON.stringify(before) === JSON.stringify(after)).map(([, , , key]) => `${key}=`);
      place.querySelectorAll("code").forEach((one) => { if (stay.some((key) => one.textContent.startsWith(key))) one.remove(); });
      if (said && !place.querySelector("b")) place.prepend(make("b", { textContent: said }), " ");
    }
  }

  label(key) {
    if (key === "mesh.dp_shard") return "data parallel (sharded)";
    const field = this.fields.get(key);
    return AXES[key.replace("mesh.", "")] || (field && field.row.querySelector("label").textContent) || key.split(".").pop().replaceAll("_", " ");
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
    input.title = text; /* long ones are cut */
  }

  /* Problems where they were made: at their fields; those of no field are returned. */
  problems(rows) {
    for (const [key, field] of this.fields) if (!this.unread.has(key)) this.untell(field);
    this.steppers.forEach(({ row }) => row.classList.remove("wrong"));
    this.told = new Set(); /* keys of the fields that tell a problem */
    return rows.filter((one) => {
      const key = one.where.split(" ")[0];
      const axis = key.startsWith("mesh.") && this.steppers.get(key.slice(5));
      if (axis) axis.row.classList.add("wrong");
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
    const guess = message.match(GUESS);
    if (guess && key === "model") {
      const take = make("button", { type: "button", textContent: `take ${guess[2]}` });
      take.addEventListener("click", () => this.change({ model: guess[2] }));
      told.append(" ", take);
    }
    told.hidden = false;
    row.classList.add("wrong");
    input.setAttribute("aria-invalid", "true");
  }
}

/* A problem in words for the page: without the key that it is told at, and without commands. */
export const said = (message, key) => (message.startsWith(`${key}: `) ? message.slice(key.length + 2) : message)
  .replace(/`rankscope models`[^]*$/, "the list of the field has those that are built in; drop another's config.json on the page");

/* Buttons without those that say the same as one before. */
const alone = (buttons) => buttons.filter((one, n) => buttons.findIndex((other) => other.textContent === one.textContent) === n);

/* A dotted name that may be cut into lines behind its dots and underscores. */
const broken = (name) => name.split(/(?<=[._])/).flatMap((part, n) => (n ? [make("wbr"), part] : [part]));

const is_empty = (value) => value !== null && typeof value === "object" && !Array.isArray(value) && !Object.keys(value).length;

const words_of = (value) => {
  if (value === null || typeof value !== "object") return String(value);
  if (Array.isArray(value)) return JSON.stringify(value);
  return Object.entries(value).map(([name, one]) => `${name} ${typeof one === "object" ? JSON.stringify(one) : one}`).join(", ") || "as usual";
};

/* A mesh as a person writes it: degrees of one are left out. */
const short = (mesh) => Object.fromEntries(Object.entries(mesh).filter(([name, value]) => value !== null && (value !== 1 || name === "etp")));
