/* Search: free keys, the frontier as it fills in, and a point taken over into the form. */
import { stream } from "./door.js";
import { FREE as FEWEST, NOT_TRIED, TRIED, batch_words, device_words, gpus_words, key_words, mesh_of, nearest_words, none_words, why_not } from "./limits.js";
import { make } from "./panels.js";

const FREE = { mesh: "degrees", "training.micro_batch_size": "micro batch", "training.recompute": "recompute", options: "memory options" };
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
const whole = (number) => Math.round(number).toLocaleString("en");
const rate = (one) => `${whole(one.tokens_per_s_per_gpu)} tokens/s per GPU`;
/* USD for a million tokens, at a price of one's own where there is one. */
const money = (one, { own, listed }) => {
  const usd = one.usd_per_million_tokens;
  if (own === null) return usd === null ? "\u2013" : usd.toPrecision(3);
  return (usd === null || !listed ? own * 1e6 / 3600 / one.tokens_per_s_per_gpu : usd * own / listed).toPrecision(3);
};
const seconds = (s) => (s >= 1 ? `${s.toFixed(2)} s` : `${(1000 * s).toFixed(0)} ms`);
/* Number of colours of frameworks in the picture (studio.css has them, for light and for dark paper). */
const HUES = 9;
const HEIGHT = 320;
const [LEFT, RIGHT, TOP, BOTTOM] = [48, 20, 28, 44];

/* Round numbers from zero to the most, about so many. */
const ticks = (most, about) => {
  const rough = most / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, n) => n * step);
};

const svg = (name, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
};

/* What the first row of a framework has: its fewest GPUs, or those with several options at once; null without either. */
const first_of = ({ value, layout, together }) => (layout ? { gpus: value, layout } : together || null);

/* Order of frameworks: fewest GPUs, then the fastest layout there; last those of which no layout fits. */
export const by_fewest = (a, b) => {
  const [one, other] = [first_of(a), first_of(b)];
  if (!one || !other) return Number(!one) - Number(!other);
  return one.gpus - other.gpus || other.layout.tokens_per_s_per_gpu - one.layout.tokens_per_s_per_gpu;
};

export class Search {
  constructor(root, catalogue, question, take) {
    this.question = question; /* the job and its files */
    this.take = take; /* called with the keys of a layout */
    this.progress = document.getElementById("progress");
    this.frontier = document.getElementById("frontier");
    this.price = { own: null };
    this.running = null;
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
    if (!this.layouts.length && !this.sized.length && !this.counted.some((one) => one.layout)) this.none(this.doing === "starting" ? "No layout was tried yet" : "No layout that was tried fits so far");
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
      ...(refused.length ? [make("p", { className: "note", textContent: "Refused most often:" }), make("ul", {}, ...refused.map((one) => make("li", { textContent: `${one.count.toLocaleString("en")} times: ${one.message}` })))] : []));
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
      if (!line.layouts.length) {
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
      if (points.length) this.frontier.replaceChildren(this.picture(points), make("p", { className: "note", textContent: words }), ...(is_over ? [this.bounds(best)] : []));
      return;
    }
    const edge = layouts.filter((one) => one.is_pareto);
    const best = layouts.filter((one, n) => layouts.findIndex((other) => other.framework === one.framework) === n); /* of each framework */
    const rows = [...new Set([...best, ...edge, ...layouts.slice(0, 8)])].slice(0, 40);
    const others = best.length > 1 ? " First the best layout of each framework; of one that is not listed no layout is among the best." : "";
    this.frontier.replaceChildren(this.picture(layouts), make("p", { className: "note", textContent: `${edge.length} layout${edge.length === 1 ? "" : "s"} on the frontier of memory and tokens/s (bold); a row or point is taken over by a click.${others}` }),
      this.table(rows));
  }

  /* What "best by" asks for, across; peak memory upwards. `of`: the quantity of a layout; null: not known of it. */
  across(layouts) {
    const by = document.getElementById("search-by").value;
    const is_known = layouts.every((one) => !one.is_bound && (by !== "cost" || Number.isFinite(Number(money(one, this.price)))));
    if (by === "gpus") return { of: (one) => one.num_gpus, words: "GPUs" };
    if (by === "step" && is_known) return { of: (one) => one.step_s, words: "step, s" };
    if (by === "cost" && is_known) return { of: (one) => Number(money(one, this.price)), words: "USD per M tokens" };
    return { of: (one) => one.tokens_per_s_per_gpu, words: layouts.some((one) => one.is_bound) ? "tokens/s per GPU, at most" : "tokens/s per GPU" };
  }

  picture(layouts) {
    const width = Math.max(280, Math.min(860, this.frontier.clientWidth || 720));
    const { of, words } = this.across(layouts);
    const most = 1.05 * Math.max(...layouts.map((one) => one.peak_bytes)) / 2 ** 30;
    const fastest = 1.05 * Math.max(...layouts.map(of));
    const x = (value) => LEFT + (width - LEFT - RIGHT) * value / fastest;
    const y = (size) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / most;
    const text = (shown, at) => { const made = svg("text", at); made.textContent = shown; return made; };
    const named = (one) => one.framework || one.keys.framework || this.question().values.framework;
    const names = [...new Set(layouts.map(named))].sort();
    const color = (point, name, is_bound) => {
      const hue = `var(--hue-${names.indexOf(name) % HUES + 1})`;
      Object.assign(point.style, is_bound ? { stroke: hue, fill: "none" } : { fill: hue });
      return point;
    };
    const points = layouts.map((one) => {
      const point = svg("circle", { cx: x(of(one)).toFixed(1), cy: y(one.peak_bytes / 2 ** 30).toFixed(1), r: one.is_pareto ? 6 : 4, class: `point ${one.is_bound ? "unsure" : "fits"}${one.is_pareto ? " on-edge" : ""}` });
      color(point, named(one), one.is_bound);
      const title = svg("title", {});
      const what = one.is_bound ? `${layout_of({ ...one.keys, framework: named(one) })}` : [one.framework, one.layout, others(one.keys)].filter(Boolean).join(", ");
      title.textContent = `${what.replaceAll("_", " ")}, ${one.num_gpus} GPU${one.num_gpus === 1 ? "" : "s"}: ${gib(one.peak_bytes)}, ${one.is_bound ? "at most " : `${seconds(one.step_s)}, `}${rate(one)}; a click takes it over`;
      point.append(title);
      point.addEventListener("click", () => this.take(one.keys));
      return point;
    });
    const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": `Peak memory against ${words} of ${layouts.length} layouts; the table below has the frontier` },
      ...ticks(most, 5).flatMap((size) => [svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(size), y2: y(size), class: size ? "grid" : "base" }), text(String(size), { x: LEFT - 8, y: y(size) + 4, "text-anchor": "end", class: "tick" })]),
      ...ticks(fastest, width / 110).map((one) => text(Number(one.toPrecision(6)).toLocaleString("en"), { x: x(one), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle", class: "tick" })),
      text("peak memory, GiB", { x: 4, y: 14, class: "tick" }), text(words, { x: width - RIGHT, y: HEIGHT - 8, "text-anchor": "end", class: "tick" }),
      ...points);
    const legend = make("p", { className: "note", id: "search-legend" }, ...names.map((name) => {
      const key = svg("svg", { width: 14, height: 12, "aria-hidden": "true" }, color(svg("circle", { cx: 6, cy: 6, r: 5 }), name, false));
      return make("span", { className: "together" }, key, `${name}  `);
    }));
    return make("div", {}, legend, chart);
  }

  /* Fewest GPUs of each framework, as they are found. */
  count() {
    const head = ["", "framework", "fewest GPUs", "layout", "other keys", "peak", "step", "tokens/s per GPU", "USD per M"];
    const job = this.question().values;
    const cells = (layout, is_best) => (layout ? [`${layout.layout}${is_best ? "" : " (first that fits)"}`, others(layout.keys), gib(layout.peak_bytes), seconds(layout.step_s), whole(layout.tokens_per_s_per_gpu), money(layout, this.price)] : ["\u2013", "", "", "", "", ""]);
    const open = this.is_stopped ? "fewer were not all tried" : "trying fewer \u2026";
    const below = (one) => `${one.value !== null && one.why ? "with fewer: " : ""}${one.is_fewest || one.is_refused ? "" : open}${one.value !== null && one.beyond ? `${gpus_words(one.beyond)}: ` : ""}${why_not(one.why)}${one.nearest ? `; nearest: ${nearest_words(one.nearest, job).replace(/\.$/, "")}` : ""}${one.untried ? `; ${one.untried} numbers were not tried` : ""}${semicolon(batch_words(one, job))}`;
    const number = (one) => (one.value === null ? (one.is_refused ? "not answered" : one.is_fewest ? none_words(one.nearest) : this.is_stopped ? "not known" : "looking \u2026") : `${one.is_fewest ? "" : "at most "}${one.value.toLocaleString("en")}`);
    const taken = (layout) => layout && { ...layout, is_pareto: false };
    /* fewer GPUs that fit where several options are added to one layout: a row of its own, to be taken over like any */
    const several = ({ together }, name) => (together ? [[taken(together.layout), [`${name}, several options at once`, together.gpus.toLocaleString("en"), ...cells(together.layout, true)], ""]] : []);
    const rows = [...this.counted].sort(by_fewest).flatMap((one) => {
      const { on_device: device } = one;
      const own = [taken(one.layout), [`${one.framework}${device ? ", with states on the host" : ""}`, number(one), ...cells(one.layout, one.is_best)], below(one)];
      if (!device) return one.value === null && one.together ? [...several(one, one.framework), own] : [own, ...several(one, one.framework)];
      const [n] = device_words(device, job);
      const fewer = device.beyond ? `with fewer: ${gpus_words(device.beyond)}: ${why_not(device.why)}${device.nearest_bytes ? `; its best layout with one option needs ${gib(device.nearest_bytes)}` : ""}${semicolon(batch_words(device, job, false))}` : why_not(device.why);
      return [own, ...several(one, one.framework), [taken(device.layout), [`${one.framework}, all on the device`, n, ...cells(device.layout, true)], fewer], ...several(device, `${one.framework}, all on the device`)];
    });
    this.frontier.replaceChildren(sheet("Fewest GPUs of each framework", head, rows, this.take));
  }

  /* Layouts whose step time is not known, with the most that they can reach. */
  bounds(rows) {
    const head = ["", "framework", "layout", "other keys", "GPUs", "peak", "tokens/s per GPU, at most"];
    return sheet("Layouts that fit", head, rows.map((one) => [{ ...one, framework: one.keys.framework, layout: mesh_of(one.keys) }, [one.keys.framework || this.question().values.framework, mesh_of(one.keys), others(one.keys), String(one.num_gpus), gib(one.peak_bytes), whole(one.tokens_per_s_per_gpu)]]), this.take);
  }

  table(rows) {
    const head = ["", "framework", "layout", "other keys", "GPUs", "peak", "step", "tokens/s per GPU", "USD per M"];
    return sheet("Frontier", head, rows.map((one) => [one, [one.framework, one.layout, others(one.keys), String(one.num_gpus), gib(one.peak_bytes), seconds(one.step_s), whole(one.tokens_per_s_per_gpu), money(one, this.price)]]), this.take);
  }
}

const semicolon = (words) => words && `; ${words.charAt(0).toLowerCase()}${words.slice(1)}`;
/* A layout whose time is not known, in words. */
const layout_of = (keys) => [keys.framework, mesh_of(keys), others(keys)].filter(Boolean).join(", ");

const WIDE = { framework: "name", layout: "name", "other keys": "keys" }; /* columns of words */
/* A table whose rows are layouts, with a button that takes each over. */
const sheet = (ariaLabel, head, rows, take) => make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel }, make("table", {},
  make("thead", {}, make("tr", {}, ...head.map((name) => (name ? make("th", { textContent: name, scope: "col" }) : make("td"))))),
  make("tbody", {}, ...rows.flatMap(([one, cells, below]) => {
    const button = one && make("button", { type: "button", textContent: "take over", ariaLabel: `take over ${one.framework} ${one.layout}` });
    if (one) button.addEventListener("click", () => take(one.keys));
    const row = make("tr", { className: one && one.is_pareto ? "on-frontier" : "" }, make("td", {}, ...(one ? [button] : [])), ...cells.map((cell, n) => make("td", { textContent: cell, className: WIDE[head[n + 1]] || "" })));
    if (!below) return [row];
    row.classList.add("has-below");
    return [row, make("tr", { className: "below" }, make("td", { colSpan: head.length }, make("div", { className: "note", textContent: below })))];
  }))));

const others = (keys) => key_words(keys).join(", ");
