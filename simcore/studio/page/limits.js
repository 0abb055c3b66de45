/* How far the job goes: limits with all other keys as they are, and the fewest GPUs with any layout of its framework. */
import { Superseded, ask, stream } from "./door.js";
import { make } from "./panels.js";
import { value_of } from "./state.js";
import { FREE, TRIED, count, fewest_words, limit_words, nearest_words } from "./wording.js";

const MOST = 12; /* jobs whose answers are kept */

export class Limits {
  constructor(question, apply, everywhere) {
    this.question = question; /* the job and its files */
    this.apply = apply; /* called with changes that are taken over */
    this.everywhere = everywhere; /* called to ask the same of every framework */
    this.box = document.getElementById("limit");
    this.answers = new Map(); /* to questions about jobs before, by job */
    this.asked = new Map(); /* by quantity: what is asked now, and where its answer stands */
    this.before = Promise.resolve(); /* the question that is asked first: a newer one of the same kind would replace it */
  }

  /* Ends what is asked about the job before; answers that are there come back with their job. */
  clear() {
    const { answers } = this;
    if (this.job && this.asked.size && ![...this.asked.values()].some((one) => one.is_open)) answers.set(this.job, { asked: new Map(this.asked), parts: [...this.box.children] });
    if (answers.size > MOST) answers.delete(answers.keys().next().value);
    for (const { running } of this.asked.values()) running.abort();
    this.job = JSON.stringify(this.question());
    const known = answers.get(this.job);
    this.asked = known ? known.asked : new Map();
    this.box.replaceChildren(...(known ? known.parts : []));
  }

  /* The newest answer stands first, those to other questions about the same job stay below it. */
  async ask(quantity) {
    const last = this.asked.get(quantity);
    if (last) {
      last.running.abort();
      last.box.remove();
    }
    const running = new AbortController();
    const kept = make("div", {}, make("p", { textContent: "searching \u2026" }));
    const free = make("div", quantity === "gpus" ? { id: "least" } : {});
    const box = make("div", { className: "limit" }, free, kept);
    const one = { running, box, is_open: true };
    this.asked.set(quantity, one);
    this.box.prepend(box);
    const least = quantity === "gpus" ? this.least(free, running) : null;
    const { before } = this;
    let found;
    try {
      const answer = before.then(() => (running.signal.aborted ? null : ask("limit", { ...this.question(), quantity }, running.signal)));
      this.before = answer.catch(() => {});
      found = await answer;
    } catch (error) {
      if (!(error instanceof Superseded)) kept.textContent = error.name === "AbortError" ? "" : error.message;
      return;
    }
    if (found === null) return;
    Promise.resolve(least).then(() => { one.is_open = false; });
    kept.replaceChildren(make("p", { textContent: `${quantity === "gpus" ? "With all other keys of this job as they are, only data parallel changed: " : ""}${limit_words(found)}` }));
    const batch = found.keys && found.keys["training.global_batch_size"];
    const own = value_of(this.question().values, "training.global_batch_size");
    if (quantity === "gpus" && batch && batch !== own) kept.append(make("p", { className: "note warning", textContent: `With a global batch of ${count(batch)}${own ? `, not ${count(own)}` : ""}: the job's is no multiple of its data-parallel ranks there.` }));
    const { rows } = found;
    if (rows.length) kept.append(make("p", { className: "note", textContent: "That is a row of packed samples. What your recipe can say of it, each simulated:" }),
      ...rows.map((one) => make("p", {}, this.button("apply", () => this.apply(one.keys)), ` ${count(one.samples)} sample${one.samples === 1 ? "" : "s"} of ${count(one.length)} tokens a row (micro batch ${count(one.samples)}, sequence length ${count(one.length)}): ${one.peak}`)));
    else if (found.value !== null) kept.append(this.button("apply", () => this.apply(found.keys)));
  }

  /* The fewest GPUs with any degrees, micro batch and recompute of the job's framework, as they are found. */
  async least(box, running) {
    const { framework } = this.question().values;
    const begun = Date.now();
    const number = make("b", { textContent: "looking \u2026" });
    const known = make("ul", { className: "known note" });
    const words = make("p", { className: "found" }, `Fewest of ${framework}, over ${TRIED}: `, number);
    const doing = make("p", { className: "note", role: "status" });
    const buttons = make("p", { className: "buttons" });
    box.replaceChildren(words, buttons, doing, known);
    const tell_known = (lines) => known.replaceChildren(...lines.filter(Boolean).map((textContent) => make("li", { textContent })));
    const stop = this.button("stop", () => running.abort());
    const all = this.button("ask every framework", () => this.everywhere(row));
    const take = this.button("apply", () => {});
    take.disabled = true;
    const fewer = this.button("", () => {});
    fewer.hidden = true;
    const device = this.button("", () => {});
    device.hidden = true;
    const several = this.button("", () => {});
    several.hidden = true;
    const shared = this.button("", () => {}); /* several options, and a larger batch */
    shared.hidden = true;
    buttons.append(take, device, fewer, several, shared, stop, all);
    let trying = "";
    let row = null;
    let nearest = null;
    const tell = () => { doing.textContent = `trying ${trying} ${Math.round((Date.now() - begun) / 1000)} s \u2026`; };
    const clock = setInterval(tell, 1000);
    const show = (line) => {
      if (line.gpus) trying = `layouts on ${count(line.gpus)} GPUs: ${count(line.layouts)} so far,`;
      if (line.on_device) trying = "layouts without states on the host,";
      if (line.together) trying = `several options at once on ${count(line.together)} GPUs,`;
      if (line.nearest) nearest = line.nearest;
      if (line.ranks) trying = "other batches on fewer, and which layout is the fastest,";
      if (line.fewest) {
        row = line.fewest;
        const [head, lines] = fewest_words(line.fewest, this.question().values);
        number.textContent = head;
        tell_known(lines);
        const { layout, other, on_device: without } = line.fewest;
        const together = line.fewest.together || (without && without.together);
        take.disabled = !layout;
        take.onclick = () => this.apply(layout.keys);
        fewer.hidden = !other;
        device.hidden = !without || !without.layout;
        several.hidden = !together;
        if (together) {
          several.textContent = `apply ${count(together.gpus)} with several options`;
          several.onclick = () => this.apply(together.layout.keys);
        }
        shared.hidden = !together || !together.other;
        if (!shared.hidden) this.offer_shared(shared, together.other, ", several options");
        if (other || together || !device.hidden) take.textContent = line.fewest.value ? `apply ${count(line.fewest.value)}` : "apply";
        if (!device.hidden) {
          device.textContent = without.value === line.fewest.value ? "apply it without states on the host" : `apply ${count(without.value)} without states on the host`;
          device.onclick = () => this.apply(without.layout.keys);
        }
        if (other) this.offer_shared(fewer, other);
      }
      tell();
    };
    tell();
    try {
      await stream({ ...this.question(), frameworks: [framework], free: FREE, fewest: true }, running.signal, show);
      doing.textContent = `done in ${Math.round((Date.now() - begun) / 1000)} s`;
    } catch (error) {
      doing.textContent = error.name === "AbortError" ? `stopped${trying && ` while trying ${trying.replace(/,$/, "")}`}` : error.message;
      if (error.name === "AbortError" && !row) {
        number.textContent = "none so far";
        tell_known([nearest ? `Nearest to fitting: ${nearest_words(nearest, this.question().values)}` : trying ? "Of each layout that was tried more rests on a rank than fits, or the framework refuses it." : "No layout was tried yet."]);
      }
    } finally {
      clearInterval(clock);
      stop.disabled = true;
    }
  }

  /* Makes a button take fewer GPUs with a larger batch. */
  offer_shared(button, { gpus, batch, layout }, more = "") {
    button.textContent = `apply ${count(gpus)} with a global batch of ${count(batch)}${more}`;
    button.onclick = () => this.apply({ ...layout.keys, "training.global_batch_size": batch });
  }

  button(textContent, then) {
    const made = make("button", { type: "button", textContent });
    made.addEventListener("click", then);
    return made;
  }
}
