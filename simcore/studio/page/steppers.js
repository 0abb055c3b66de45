/* Steppers of the number of GPUs and of each degree: legal values only, and why others are not. */
import { AXES, gpus_of, short, whole_mesh } from "./mesh.js";
import { make, notice } from "./panels.js";
import { value_of } from "./state.js";

const TYPED_MS = 1200; /* a number that is typed is taken so long after its last digit */

const BATCH = "training.global_batch_size";
/* What goes along with a number of GPUs beside its mesh. */
const apart = (also = {}) => Object.fromEntries(Object.entries(also).filter(([key]) => !key.startsWith("mesh.")));

export class Steppers {
  constructor(change, label) {
    this.change = change; /* called with {key: value}; undefined removes a key */
    this.label = label; /* words for a key */
    this.rows = new Map(); /* by axis: its row, buttons, value, reasons, and the values that the engine found */
    this.job = {};
    this.mesh = whole_mesh();
    this.rest = make("p", { className: "note", id: "rest" });
    this.box = make("fieldset", { className: "degrees" }, make("legend", { textContent: "GPUs and degrees" }), ...Object.keys(AXES).map((axis) => this.row(axis)), this.rest);
  }

  row(axis) {
    const name = AXES[axis];
    const down = make("button", { type: "button", textContent: "\u2212", tabIndex: -1, ariaLabel: `less: ${name}` });
    const up = make("button", { type: "button", textContent: "+", tabIndex: -1, ariaLabel: `more: ${name}` });
    const value = make("span", { className: "value", tabIndex: 0, role: "spinbutton" });
    value.setAttribute("aria-label", name);
    const why = make("details", { className: "why", hidden: true }, make("summary"), make("ul"));
    down.addEventListener("click", () => this.step(axis, -1));
    up.addEventListener("click", () => this.step(axis, 1));
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
    this.rows.set(axis, { row, down, up, value, why, values: [] });
    return row;
  }

  now(axis) {
    return axis === "gpus" ? gpus_of(this.mesh) : this.mesh[axis];
  }

  /* The legal values on each side of the present one; null without one. */
  next(axis, by) {
    const { values } = this.rows.get(axis);
    const at = values.findIndex((one) => one.value === this.now(axis));
    if (at < 0) return null;
    const beside = [];
    for (let n = at + by; n >= 0 && n < values.length; n += by) if (values[n].mesh) beside.push(values[n]);
    /* from a job that is refused as it is, a step may lead to another one that is: else some could not be left */
    return beside.find((one) => !one.why) || (values[at].why && beside[0]) || null;
  }

  step(axis, by) {
    const next = this.next(axis, by);
    if (next && !this.is_fresh(axis)) this.put(axis, next.value, next.also); /* quicker than the answer about the change before */
    else if (next) {
      const words = this.also_words(next.also);
      this.change({ mesh: short(next.mesh), ...apart(next.also), ...Object.fromEntries((next.drops || []).map((key) => [key, undefined])) });
      if (words) notice(`Also changed: ${words}${BATCH in next.also ? ", a multiple of the data-parallel ranks" : ""}.`, true);
    }
    else this.rows.get(axis).row.animate([{ background: "var(--bad-wash)" }, {}], 700); /* the line below says why not */
  }

  /* A number that is typed at a degree, taken by Enter or after a while; data parallelism takes what is left. */
  type(axis, key) {
    clearTimeout(this.typing);
    if (key !== "Enter") {
      this.typed = `${this.typed || ""}${key}`.slice(0, 6);
      this.rows.get(axis).value.textContent = this.typed;
      this.typing = setTimeout(() => this.type(axis, "Enter"), TYPED_MS);
      return;
    }
    const number = Number(this.typed);
    this.typed = "";
    this.put(axis, number);
  }

  /* True if the values of an axis are those of the job in view. */
  is_fresh(axis) {
    const own = this.rows.get(axis).values.find((one) => one.value === this.now(axis));
    return Boolean(own && own.mesh && Object.entries(own.mesh).every(([name, degree]) => degree === this.mesh[name]));
  }

  /* Takes a degree; the number of GPUs stays, data parallelism takes what is left. */
  put(axis, number, also = {}) {
    const gpus = axis === "gpus" ? number : this.now("gpus");
    const degrees = Object.fromEntries(Object.entries(also).filter(([key]) => key.startsWith("mesh.")).map(([key, value]) => [key.slice(5), value]));
    const mesh = { ...this.mesh, ...degrees, ...(axis === "gpus" ? {} : { [axis]: number }) };
    const others = gpus_of({ ...mesh, dp_shard: 1 });
    if (number !== 0 && gpus % others === 0) this.change({ mesh: short({ ...mesh, dp_shard: gpus / others }), ...apart(also) });
    else {
      this.draw();
      notice(`${AXES[axis]} ${number}: ${gpus} GPUs are no multiple of the degrees' product.`);
    }
  }

  also_words(changes = {}) {
    return Object.entries(changes).map(([key, one]) => `${this.label(key)} ${value_of(this.job, key)} \u2192 ${one}`).join(", ");
  }

  /* Takes the legal values that the engine found for this job. */
  take({ values, says, idle }) {
    for (const [axis, stepper] of this.rows) {
      stepper.values = values[axis];
      stepper.row.title = says[axis] || "";
      const own = stepper.values.find((one) => one.value === this.now(axis));
      const has_none = idle.includes(axis) || (axis === "etp" && stepper.values.length === 1);
      stepper.row.hidden = has_none && [null, 1].includes(this.now(axis) ?? null);
      /* of a job that is refused as it is, only values that have another reason: its own is told beside the verdict */
      const refused = stepper.values.filter((one) => one.why && one.why !== (own || {}).why);
      stepper.why.hidden = !refused.length;
      stepper.why.querySelector("summary").textContent = `why not ${refused.map((one) => one.value ?? "auto").join(", ")}`;
      stepper.why.querySelector("ul").replaceChildren(...refused.map((one) => make("li", {}, make("b", { textContent: String(one.value ?? "auto") }), ` ${one.why}`)));
    }
    this.draw();
  }

  /* Shows the degrees of a job. */
  show(job) {
    this.job = job;
    this.mesh = whole_mesh(job.mesh || {});
    this.draw();
  }

  draw() {
    for (const [axis, { down, up, value }] of this.rows) {
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
    const { dp_shard: shards = 1, dp_replicate: copies = 1 } = this.mesh;
    const ranks = [shards > 1 && `${shards} sharded`, copies > 1 && `${copies} replicas`].filter(Boolean).join(" \u00d7 ") || "one rank";
    this.rest.textContent = `data parallel takes the rest: ${ranks}`;
  }

  /* Marks the degrees that problems are about, and no others. */
  mark(axes) {
    for (const [axis, { row }] of this.rows) row.classList.toggle("wrong", axes.includes(axis));
  }
}
