/* What a search found, drawn: layouts as points of memory and speed, and tables that take them over. */
import { make } from "./panels.js";
import { batch_words, below_words, count, device_words, gpus_words, key_words, mesh_of, none_words, why_not } from "./wording.js";

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

/* What the first row of a framework has: fewer GPUs with several options at once, or its fewest; null without either. */
export const first_of = ({ value, layout, together }) => together || (layout ? { gpus: value, layout } : null);

/* Order of frameworks: fewest GPUs, then the fastest layout there; last those of which no layout fits. */
export const by_fewest = (a, b) => {
  const [one, other] = [first_of(a), first_of(b)];
  if (!one || !other) return Number(!one) - Number(!other);
  return one.gpus - other.gpus || other.layout.tokens_per_s_per_gpu - one.layout.tokens_per_s_per_gpu;
};

/* What `by` asks for, across; peak memory upwards. `of`: the quantity of a layout; null: not known of it. */
const across = (layouts, { by, price }) => {
  const is_known = layouts.every((one) => !one.is_bound && (by !== "cost" || Number.isFinite(Number(money(one, price)))));
  if (by === "gpus") return { of: (one) => one.num_gpus, words: "GPUs" };
  if (by === "step" && is_known) return { of: (one) => one.step_s, words: "step, s" };
  if (by === "cost" && is_known) return { of: (one) => Number(money(one, price)), words: "USD per M tokens" };
  return { of: (one) => one.tokens_per_s_per_gpu, words: layouts.some((one) => one.is_bound) ? "tokens/s per GPU, at most" : "tokens/s per GPU" };
};

/* Layouts as points, each of which is taken over by a click. `how`: `width` in pixels, `by`, `price`, the job's own
   `framework`, and `take`, called with the keys of a layout. */
export const picture = (layouts, how) => {
  const width = Math.max(280, Math.min(860, how.width || 720));
  const { of, words } = across(layouts, how);
  const most = 1.05 * Math.max(...layouts.map((one) => one.peak_bytes)) / 2 ** 30;
  const fastest = 1.05 * Math.max(...layouts.map(of));
  const x = (value) => LEFT + (width - LEFT - RIGHT) * value / fastest;
  const y = (size) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / most;
  const text = (shown, at) => { const made = svg("text", at); made.textContent = shown; return made; };
  const named = (one) => one.framework || one.keys.framework || how.framework;
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
    point.addEventListener("click", () => how.take(one.keys));
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
};

/* Fewest GPUs of each framework, as they are found. */
export const fewest_table = (counted, { job, price, take, is_stopped }) => {
  const head = ["", "framework", "fewest GPUs", "layout", "other keys", "peak", "step", "tokens/s per GPU", "USD per M"];
  const cells = (layout, is_best) => (layout ? [`${layout.layout}${is_best ? "" : " (first that fits)"}`, others(layout.keys), gib(layout.peak_bytes), seconds(layout.step_s), whole(layout.tokens_per_s_per_gpu), money(layout, price)] : ["\u2013", "", "", "", "", ""]);
  const open = is_stopped ? "Fewer were not all tried." : "Trying fewer \u2026";
  const number = (one) => (one.value === null ? (one.is_refused ? "not answered" : one.is_fewest ? none_words(one.nearest) : is_stopped ? "not known" : "looking \u2026") : `${one.is_fewest ? "" : "at most "}${one.value.toLocaleString("en")}`);
  const taken = (layout) => layout && { ...layout, is_pareto: false };
  /* fewer GPUs that share a larger batch, then those that fit where several options are added to one layout: rows of their own, taken over like any */
  const shared = ({ other }, name) => (other ? [[{ ...taken(other.layout), keys: { ...other.layout.keys, "training.global_batch_size": other.batch } }, [`${name}, global batch ${count(other.batch)}`, count(other.gpus), ...cells(other.layout, true)], ""]] : []);
  const several = ({ together }, name) => (together ? [...shared(together, `${name}, several options at once`), [taken(together.layout), [`${name}, several options at once`, together.gpus.toLocaleString("en"), ...cells(together.layout, true)], batch_words(together, job)]] : []);
  const rows = [...counted].sort(by_fewest).flatMap((one) => {
    const { on_device: device } = one;
    const own = [taken(one.layout), [`${one.framework}${device ? ", with states on the host" : ""}`, number(one), ...cells(one.layout, one.is_best)], below_words(one, job, open)];
    const fewest = [...several(one, one.framework), ...shared(one, one.framework), own];
    if (!device) return fewest;
    const [n] = device_words(device, job);
    const fewer = device.beyond ? `with fewer: ${gpus_words(device.beyond)}: ${why_not(device.why)}${device.nearest_bytes ? `; its best layout with one option needs ${gib(device.nearest_bytes)}` : ""}${semicolon(batch_words(device, job, false))}` : why_not(device.why);
    return [...fewest, ...several(device, `${one.framework}, all on the device`), [taken(device.layout), [`${one.framework}, all on the device`, n, ...cells(device.layout, true)], fewer]];
  });
  return sheet("Fewest GPUs of each framework", head, rows, take);
};

/* Layouts whose step time is not known, with the most that they can reach. */
export const bounds_table = (rows, { framework, take }) => {
  const head = ["", "framework", "layout", "other keys", "GPUs", "peak", "tokens/s per GPU, at most"];
  return sheet("Layouts that fit", head, rows.map((one) => [{ ...one, framework: one.keys.framework, layout: mesh_of(one.keys) }, [one.keys.framework || framework, mesh_of(one.keys), others(one.keys), String(one.num_gpus), gib(one.peak_bytes), whole(one.tokens_per_s_per_gpu)]]), take);
};

/* Layouts with their times, those on the frontier in bold. */
export const frontier_table = (rows, { price, take }) => {
  const head = ["", "framework", "layout", "other keys", "GPUs", "peak", "step", "tokens/s per GPU", "USD per M"];
  return sheet("Frontier", head, rows.map((one) => [one, [one.framework, one.layout, others(one.keys), String(one.num_gpus), gib(one.peak_bytes), seconds(one.step_s), whole(one.tokens_per_s_per_gpu), money(one, price)]]), take);
};

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
