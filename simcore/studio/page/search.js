/* Search: free keys, the frontier as it fills in, and a point taken over into the form. */
import { stream } from "./door.js";
import { bounds_table, fewest_table, first_of, frontier_table, picture } from "./frontier.js";
import { make } from "./panels.js";
import { FREE as FEWEST, NOT_TRIED, TRIED, nearest_words } from "./wording.js";

const FREE = { mesh: "degrees", "training.micro_batch_size": "micro batch", "training.recompute": "recompute", options: "memory options" };

/* What the framework refused most often, and how often. */
const why_refused = (refused) => (refused.length ? [make("p", { className: "note", textContent: "Refused most often:" }),
  make("ul", {}, ...refused.map((one) => make("li", { textContent: `${one.count.toLocaleString("en")} times: ${one.message}` })))] : []);

export class Search {
  constructor(root, catalogue, question, take) {
    this.question = question; /* the job and its files */
    this.take = take; /* called with the keys of a layout */
    this.progress = document.getElementById("progress");
    this.frontier = document.getElementById("frontier");
    this.price = { own: null };
    this.running = null;
    this.refused = [];
    const gpus = make("input", { type: "text", id: "search-gpus", inputMode: "numeric", placeholder: "such as 16, 32" });
    const keys = Object.entries(FREE).map(([key, label]) => make("label", { className: "check" },
      make("input", { type: "checkbox", name: "free", value: key, checked: key !== "options" }), ` ${label}`));
    const frameworks = catalogue.frameworks.map((one) => make("label", { className: "check" },
      make("input", { type: "checkbox", name: "framework", value: one.name }), ` ${one.name}`));
    const by = make("select", { id: "search-by" }, ...["tokens", "step", "cost", "peak", "gpus"].map((value) => make("option", { value, textContent: value })));
    this.start = make("button", { type: "submit", textContent: "search" });
    this.fewest = make("button", { type: "button", id: "search-fewest", textContent: "fewest GPUs of each framework" });
    const every = make("button", { type: "button", id: "search-every", textContent: "all" });
    this.stop = make("button", { type: "button", id: "search-stop", textContent: "stop", disabled: true });
    root.append(make("fieldset", {}, make("legend", { textContent: "free" }), ...keys),
      make("fieldset", {}, make("legend", { textContent: "frameworks (none: that of the job)" }), ...frameworks, every),
      make("p", { className: "buttons" }, make("span", { className: "together" }, make("label", { htmlFor: "search-gpus", textContent: "GPUs " }), gpus),
        make("span", { className: "together" }, make("label", { htmlFor: "search-by", textContent: "best by " }), by), this.start, this.stop),
      make("p", { className: "buttons" }, this.fewest, make("span", { className: "note", textContent: `over ${TRIED}; whole hosts beyond one, unless numbers are given, all frameworks unless some are chosen. ${NOT_TRIED}` })));
    const chosen = (name) => [...root.querySelectorAll(`[name=${name}]:checked`)].map((input) => input.value);
    const free = () => Object.fromEntries(chosen("free").map((key) => [key, []]));
    const numbers = () => (gpus.value.match(/\d+/g) || []).map(Number);
    root.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run({ gpus: numbers(), frameworks: chosen("framework"), free: free(), objectives: [...new Set([by.value, "peak"])] });
    });
    this.fewest.addEventListener("click", () => this.run({ gpus: numbers(), frameworks: chosen("framework"), free: "mesh" in free() ? { options: [], ...free() } : free(), fewest: true }));
    /* Asks every framework; `row`: the answer of one of them that is there already. */
    this.every = (row) => this.run({ gpus: [], frameworks: catalogue.frameworks.map((one) => one.name).filter((name) => !row || !row.is_fewest || name !== row.framework), free: FEWEST, fewest: true }, row && row.is_fewest ? [row] : []);
    every.addEventListener("click", () => {
      const boxes = [...root.querySelectorAll("[name=framework]")];
      const is_on = boxes.some((box) => !box.checked);
      boxes.forEach((box) => { box.checked = is_on; });
    });
    addEventListener("resize", () => {
      clearTimeout(this.resized);
      if (this.frontier.querySelector("svg")) this.resized = setTimeout(() => this.draw(), 250);
    });
    this.stop.addEventListener("click", () => this.running && this.running.abort());
  }

  async run(asked, counted = []) {
    if (this.running) this.running.abort();
    const running = this.running = new AbortController();
    this.start.disabled = this.fewest.disabled = true;
    this.stop.disabled = false;
    const begun = Date.now();
    this.doing = "starting";
    this.progress.classList.remove("wrong");
    const tell = () => { this.progress.textContent = `${this.doing}, ${Math.round((Date.now() - begun) / 1000)} s \u2026`; };
    const clock = setInterval(tell, 1000);
    tell();
    this.stop.closest("p").scrollIntoView({ block: "start" }); /* what the answer is about stays above it */
    this.frontier.replaceChildren();
    this.over = "";
    this.missed = {};
    this.nearest = null;
    this.is_stopped = false;
    this.sized = [];
    this.layouts = [];
    this.refused = [];
    this.counted = counted;
    if (counted.length) this.count();
    try {
      await stream({ ...this.question(), ...asked }, running.signal, (line) => this.show(line));
      if (this.running === running) this.progress.textContent = this.over || "The search ended without an answer.";
    } catch (error) {
      running.abort(); /* of an answer that cannot be read, too: the studio stops where nobody listens */
      if (this.running === running) this.progress.textContent = error.name === "AbortError" ? `stopped at: ${this.doing}` : error.message;
      if (this.running === running && error.name === "AbortError") this.stopped();
      this.progress.classList.toggle("wrong", error.name !== "AbortError");
    } finally {
      clearInterval(clock);
      if (this.running === running) {
        this.running = null;
        this.start.disabled = this.fewest.disabled = false;
        this.stop.disabled = true;
      }
    }
  }

  /* What is there when a search was stopped: layouts that fit, rows of frameworks, or else the nearest to fitting. */
  stopped() {
    this.is_stopped = true;
    if (this.counted.length) this.count();
    else if (!this.layouts.length && this.sized.length) this.draw(true);
    if (!this.layouts.length && !this.sized.length && !this.counted.some(first_of)) this.none(this.doing === "starting" ? "No layout was tried yet" : "No layout that was tried fits so far");
  }

  /* Why nothing fits: what became of the layouts, and the one that is nearest to fitting. */
  none(head, refused = []) {
    const tried = [["refused", "refused by the framework"], ["at_rest", "with more at rest on a rank than fits"], ["oom", "that do not fit"], ["unsure", "too close to tell"]]
      .filter(([what]) => this.missed[what]).map(([what, words]) => `${this.missed[what].toLocaleString("en")} ${words}`).join(", ");
    const { nearest } = this;
    const own = nearest && make("button", { type: "button", textContent: "take it over", ariaLabel: "take over the layout nearest to fitting" });
    if (own) own.addEventListener("click", () => this.take(nearest.keys));
    this.frontier.append(make("p", { id: "none", textContent: `${head}${tried ? `: ${tried}` : ""}.` }),
      ...(nearest ? [make("p", {}, make("b", { textContent: "Nearest to fitting: " }), `${nearest.keys.framework || this.question().values.framework}, ${nearest_words(nearest, this.question().values)} `, own)] : []),
      ...why_refused(refused));
  }

  show(line) {
    if (line.missed) this.missed = line.missed;
    if (line.nearest) this.nearest = line.nearest;
    if (line.stage) this.doing = `${line.stage}: ${line.done.toLocaleString("en")} of ${line.all_of.toLocaleString("en")} layouts${line.fits ? `, ${line.fits.toLocaleString("en")} fit` : ""}`;
    if (line.stage === "memory" && line.done === line.all_of && line.fits) this.doing = `memory of all ${line.all_of.toLocaleString("en")} layouts is known, ${line.fits.toLocaleString("en")} fit; now the step times of the most promising`;
    if (line.trying) this.doing = line.together ? `trying several options at once of ${line.trying} on ${line.together.toLocaleString("en")} GPUs` : line.on_device ? `trying ${line.trying} without states on the host; the fewest with any layout are known` : line.ranks ? `looking for the fastest layout of ${line.trying}; all numbers are known` : `trying ${line.trying}${line.gpus ? ` on ${line.gpus.toLocaleString("en")} GPUs, ${line.layouts.toLocaleString("en")} layouts` : ""}; ${line.done} of ${line.all_of} frameworks done`;
    if (line.fitting) {
      this.sized.push(line.fitting);
      this.soon();
    }
    if (line.layouts) {
      this.layouts = line.layouts;
      this.draw();
    }
    if (line.fewest) {
      this.counted = [...this.counted.filter((one) => one.framework !== line.fewest.framework), line.fewest];
      this.count();
    }
    if (line.over && this.counted.length) this.over = `${this.counted.length} framework${this.counted.length === 1 ? "" : "s"}: ${this.counted.filter(first_of).length} fit${this.counted.some((one) => one.value === null && one.together) ? ", some only with several options at once" : ""}.`;
    else if (line.over) {
      const { counts } = line;
      this.over = `${counts.candidates.toLocaleString("en")} layouts: ${counts.refused.toLocaleString("en")} refused, ${(counts.oom + counts.at_rest).toLocaleString("en")} do not fit, ${counts.unsure.toLocaleString("en")} are unsure, ${counts.ranked.toLocaleString("en")} ranked${[[counts.alike, "equal one of these"], [counts.slower, "fit but are slower for certain"], [counts.excluded, "are excluded"]].filter(([n]) => n).map(([n, words]) => `, ${n.toLocaleString("en")} ${words}`).join("")}.`;
      this.refused = line.refused;
      if (line.layouts.length) this.draw();
      else {
        this.frontier.replaceChildren();
        this.none("No layout fits", line.refused);
      }
    }
  }

  /* Layouts whose memory fits come by the hundred: they are drawn a few times a second. */
  soon() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      if (!this.layouts.length) this.draw();
    }, 250);
  }

  /* `is_over`: the search was stopped before it timed the layouts that fit. */
  draw(is_over = false) {
    const { layouts } = this;
    if (!layouts.length) {
      const points = this.sized.filter((one) => one.tokens_per_s_per_gpu_at_most).slice(-1500).map((one) => ({ ...one, tokens_per_s_per_gpu: one.tokens_per_s_per_gpu_at_most, is_bound: true }));
      const best = [...points].sort((a, b) => b.tokens_per_s_per_gpu - a.tokens_per_s_per_gpu).slice(0, 8);
      const words = `${this.sized.length} layouts fit so far, drawn hollow at the most tokens/s that they can reach; ${is_over ? "the search was stopped before their times were known. Below are those that can reach most" : "times come next"}. A row or point is taken over by a click.`;
      if (points.length) this.frontier.replaceChildren(picture(points, this.how()), make("p", { className: "note", textContent: words }), ...(is_over ? [bounds_table(best, this.how())] : []));
      return;
    }
    const edge = layouts.filter((one) => one.is_pareto);
    const best = layouts.filter((one, n) => layouts.findIndex((other) => other.framework === one.framework) === n); /* of each framework */
    const rows = [...new Set([...best, ...edge, ...layouts.slice(0, 8)])].slice(0, 40);
    const others = best.length > 1 ? " First the best layout of each framework; of one that is not listed no layout is among the best." : "";
    this.frontier.replaceChildren(picture(layouts, this.how()), make("p", { className: "note", textContent: `${edge.length} layout${edge.length === 1 ? "" : "s"} on the frontier of memory and tokens/s (bold); a row or point is taken over by a click.${others}` }),
      frontier_table(rows, this.how()), ...why_refused(this.refused));
  }

  /* Fewest GPUs of each framework, as they are found. */
  count() {
    this.frontier.replaceChildren(fewest_table(this.counted, this.how()));
  }

  /* What the picture and the tables are drawn with. */
  how() {
    const job = this.question().values;
    return { job, framework: job.framework, price: this.price, take: this.take, is_stopped: this.is_stopped,
      width: this.frontier.clientWidth, by: document.getElementById("search-by").value };
  }
}
