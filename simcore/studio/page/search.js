/* Search: free keys, the frontier as it fills in, and a point taken over into the form. */
import { Problems, refused, request } from "./door.js";
import { make } from "./panels.js";

const FREE = { mesh: "degrees", "training.micro_batch_size": "micro batch", "training.recompute": "recompute", options: "memory options" };
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
const seconds = (s) => (s >= 1 ? `${s.toFixed(2)} s` : `${(1000 * s).toFixed(0)} ms`);
const WIDTH = 720;
const HEIGHT = 300;
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 16, 16, 40];

const svg = (name, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
};

export class Search {
  constructor(root, catalogue, question, take) {
    this.question = question; /* the job and its files */
    this.take = take; /* called with the keys of a layout */
    this.progress = document.getElementById("progress");
    this.frontier = document.getElementById("frontier");
    this.running = null;
    const gpus = make("input", { type: "text", id: "search-gpus", inputMode: "numeric", placeholder: "as in the job" });
    const free = Object.entries(FREE).map(([key, label]) => make("label", { className: "check" },
      make("input", { type: "checkbox", name: "free", value: key, checked: key !== "options" }), ` ${label}`));
    const frameworks = catalogue.frameworks.map((one) => make("label", { className: "check" },
      make("input", { type: "checkbox", name: "framework", value: one.name }), ` ${one.name}`));
    const by = make("select", { id: "search-by" }, ...["tokens", "step", "cost", "peak", "gpus"].map((value) => make("option", { value, textContent: value })));
    this.start = make("button", { type: "submit", textContent: "search" });
    this.stop = make("button", { type: "button", textContent: "stop", disabled: true });
    root.append(make("fieldset", {}, make("legend", { textContent: "free" }), ...free),
      make("fieldset", {}, make("legend", { textContent: "frameworks (none: that of the job)" }), ...frameworks),
      make("p", { className: "buttons" }, make("label", { htmlFor: "search-gpus", textContent: "GPUs " }), gpus,
        make("label", { htmlFor: "search-by", textContent: " best by " }), by, this.start, this.stop));
    root.addEventListener("submit", (event) => {
      event.preventDefault();
      const chosen = (name) => [...root.querySelectorAll(`[name=${name}]:checked`)].map((input) => input.value);
      const numbers = (gpus.value.match(/\d+/g) || []).map(Number);
      this.run({ gpus: numbers, frameworks: chosen("framework"), free: Object.fromEntries(chosen("free").map((key) => [key, []])),
        objectives: [...new Set([by.value, "peak"])] });
    });
    this.stop.addEventListener("click", () => this.running && this.running.abort());
  }

  async run(asked) {
    if (this.running) this.running.abort();
    const running = this.running = new AbortController();
    this.start.disabled = true;
    this.stop.disabled = false;
    this.progress.textContent = "starting \u2026";
    this.frontier.replaceChildren();
    this.sized = [];
    this.layouts = [];
    try {
      const answer = await request("search", { ...this.question(), ...asked }, running.signal);
      if (!answer.ok) throw await refused(answer);
      await this.read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch (error) {
      this.progress.textContent = error.name === "AbortError" ? `stopped; ${this.progress.textContent}` : error.message;
    } finally {
      if (this.running === running) {
        this.running = null;
        this.start.disabled = false;
        this.stop.disabled = true;
      }
    }
  }

  async read(reader) {
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.filter(Boolean).forEach((line) => this.show(JSON.parse(line)));
    }
  }

  show(line) {
    if (line.problems) throw new Problems(line.problems);
    if (line.stage) this.progress.textContent = `${line.stage}: ${line.done.toLocaleString("en")} of ${line.all_of.toLocaleString("en")} layouts${line.fits ? `, ${line.fits.toLocaleString("en")} fit` : ""}`;
    if (line.fitting) {
      this.sized.push(line.fitting);
      this.soon();
    }
    if (line.layouts) {
      this.layouts = line.layouts;
      this.draw();
    }
    if (line.over) {
      const { counts } = line;
      this.progress.textContent = `${counts.candidates.toLocaleString("en")} layouts: ${counts.refused.toLocaleString("en")} refused, ${(counts.oom + counts.at_rest).toLocaleString("en")} do not fit, ${counts.unsure.toLocaleString("en")} are unsure, ${counts.ranked.toLocaleString("en")} ranked.`;
      if (!line.layouts.length) this.frontier.replaceChildren(make("p", { textContent: "No layout fits. Refused most often:" }),
        make("ul", {}, ...line.refused.map((one) => make("li", { textContent: `${one.count.toLocaleString("en")} times: ${one.message}` }))));
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

  draw() {
    const { layouts } = this;
    if (!layouts.length) {
      const points = this.sized.filter((one) => one.tokens_per_s_per_gpu_at_most).slice(-1500).map((one) => ({ ...one, tokens_per_s_per_gpu: one.tokens_per_s_per_gpu_at_most, is_bound: true }));
      if (points.length) this.frontier.replaceChildren(this.picture(points), make("p", { className: "note", textContent: `${this.sized.length} layouts fit so far, drawn hollow at the most tokens/s that they can reach; times come next.` }));
      return;
    }
    const edge = layouts.filter((one) => one.is_pareto);
    const rows = [...new Set([...edge, ...layouts.slice(0, 8)])].slice(0, 40);
    this.frontier.replaceChildren(this.picture(layouts), make("p", { className: "note", textContent: `${edge.length} layouts on the frontier of memory and tokens/s; a row or point is taken over by a click.` }),
      this.table(rows));
  }

  picture(layouts) {
    const most = Math.max(...layouts.map((one) => one.peak_bytes));
    const fastest = Math.max(...layouts.map((one) => one.tokens_per_s_per_gpu));
    const x = (one) => LEFT + (WIDTH - LEFT - RIGHT) * one.tokens_per_s_per_gpu / fastest;
    const y = (one) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * one.peak_bytes / (1.05 * most);
    const text = (words, at) => { const made = svg("text", at); made.textContent = words; return made; };
    const points = layouts.map((one) => {
      const point = svg("circle", { cx: x(one).toFixed(1), cy: y(one).toFixed(1), r: one.is_pareto ? 6 : 4, class: `point ${one.is_bound ? "unsure" : "fits"}${one.is_pareto ? " on-edge" : ""}` });
      const title = svg("title", {});
      title.textContent = one.is_bound ? `${Object.entries(one.keys).map(([key, value]) => `${key} ${JSON.stringify(value)}`).join(", ")}: ${gib(one.peak_bytes)}, at most ${Math.round(one.tokens_per_s_per_gpu).toLocaleString("en")} tokens/s per GPU` : `${one.framework} ${one.layout}: ${gib(one.peak_bytes)}, ${seconds(one.step_s)}, ${Math.round(one.tokens_per_s_per_gpu).toLocaleString("en")} tokens/s per GPU`;
      point.append(title);
      point.addEventListener("click", () => this.take(one.keys));
      return point;
    });
    return svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", role: "img", "aria-label": `Peak memory against throughput of ${layouts.length} layouts; the table below has the frontier` },
      svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM, class: "base" }),
      svg("line", { x1: LEFT, x2: LEFT, y1: TOP, y2: HEIGHT - BOTTOM, class: "base" }),
      text(`${Math.round(fastest).toLocaleString("en")} tokens/s per GPU`, { x: WIDTH - RIGHT, y: HEIGHT - 18, "text-anchor": "end", class: "tick" }),
      text("0", { x: LEFT, y: HEIGHT - 18, class: "tick" }), text(gib(most), { x: LEFT - 6, y: y({ peak_bytes: most }) + 4, "text-anchor": "end", class: "tick" }),
      ...points);
  }

  table(rows) {
    const head = ["", "framework", "layout", "other keys", "GPUs", "peak", "step", "tokens/s per GPU", "USD per M"];
    const cells = (one) => [one.framework, one.layout, others(one.keys), String(one.num_gpus), gib(one.peak_bytes), seconds(one.step_s), Math.round(one.tokens_per_s_per_gpu).toLocaleString("en"),
      one.usd_per_million_tokens === null ? "\u2013" : one.usd_per_million_tokens.toPrecision(3)];
    return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Frontier" }, make("table", {},
      make("thead", {}, make("tr", {}, ...head.map((name) => (name ? make("th", { textContent: name, scope: "col" }) : make("td"))))),
      make("tbody", {}, ...rows.map((one) => {
        const button = make("button", { type: "button", textContent: "take over", ariaLabel: `take over ${one.framework} ${one.layout}` });
        button.addEventListener("click", () => this.take(one.keys));
        return make("tr", { className: one.is_pareto ? "on-frontier" : "" }, make("td", {}, button), ...cells(one).map((cell) => make("td", { textContent: cell })));
      }))));
  }
}

const others = (keys) => Object.entries(keys).filter(([key]) => !/^(mesh\.|framework|topology|implementation)/.test(key)).map(([key, value]) => `${key.split(".").pop()} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
