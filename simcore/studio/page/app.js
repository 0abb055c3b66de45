/* The studio: one job, its address, and the questions that a change asks, the newest only. */
import { Address } from "./address.js";
import { Copies } from "./copies.js";
import { Away, Problems, Superseded, ask } from "./door.js";
import { Files } from "./files.js";
import { Form, said } from "./form.js";
import { NOTHING, left_in_link, left_of_link, said_again, show_left, without_key } from "./left.js";
import { Limits } from "./limits.js";
import { clear, fill, make, notice, old, stale, wait } from "./panels.js";
import { Search } from "./search.js";
import { leaves, value_of, with_value } from "./state.js";
import { tree } from "./steps.js";
import { Versus } from "./versus.js";

const IDLE_MS = 400;
const AGAIN_MS = 1500;
const APART_MS = 200; /* changes further apart than this are single clicks, not a slider in motion */
const STEP_MS = 1000; /* changes further apart than this are undone one by one */
const LATER = ["memory", "streams", "placement"]; /* pictures that come after the first */
const FIT = { kind: "advice", title: "What would make it fit", none: "No single change or pair of changes that was tried makes it fit." };
const HELPS = { oom: FIT, unsure: FIT, fits: { kind: "faster", title: "What would make it faster", none: "No single change of layout, micro batch, recomputation or memory options makes it faster by 1 % or more. Kernels of attention were not tried; the search below tries every layout that is modelled." } };
const WITH = { "training.lengths": ["training.packed_length"] }; /* keys that mean nothing without another */
const remedies = document.getElementById("remedies");
const recipe_card = document.getElementById("recipe");
const busy = document.getElementById("busy");
const state = { job: {}, files: {}, left: NOTHING, pins: [], marks: [], curve: [], price: null };
const opened = new Set(); /* pictures that are drawn on demand */
let catalogue;
let form;
let versus;
let search;
let limits;
let files;
let copies;
let wanted = 0;
let is_asking = false;
let is_apart = true;
let has_failed = false;
let changed_at = 0;
let stepped_at = -Infinity; /* when a person last changed a key */
let early = null; /* the question about memory that goes with that about the first picture */

const priced = () => (state.price === null ? {} : { price: state.price });
const measured = () => (state.marks.length || state.curve.length ? { marks: state.marks, curve: state.curve } : {});
const question = () => ({ values: state.job, files: state.files });

const told = (error) => {
  if (error instanceof Superseded) return;
  has_failed = true;
  busy.textContent = "";
  ready();
  notice(error instanceof Problems || error instanceof Away ? error.message : `The page has a fault: ${error.message}`);
};

/* The page can be used once it shows its first answer, or why there is none. */
const ready = () => {
  const main = document.querySelector("main");
  main.inert = false;
  main.removeAttribute("aria-busy");
};

/* Asks until the answer in view is that of the newest job. */
const refresh = async () => {
  if (is_asking) return;
  is_asking = true;
  try {
    for (let number = 0; number !== wanted;) {
      number = wanted;
      ask_early(number);
      try { shown(await ask("view", { ...question(), marks: state.marks, ...priced() }), number); } catch (error) {
        if (number !== wanted) continue;
        told(error);
        if (error instanceof Away) setTimeout(() => { if (number === wanted) again(); }, AGAIN_MS);
        return;
      }
    }
  } finally {
    is_asking = false;
    ready();
  }
  later(wanted);
};

/* After a single click memory is asked for beside the first picture, by another process; while a slider moves it is not. */
const ask_early = (number) => {
  early = is_apart && !opened.has("memory") ? { number, answer: ask("memory", { ...question(), ...measured() }) } : null;
  if (early) early.answer.catch(() => {}); /* told where it is awaited */
};

const measure = (name, number) => requestAnimationFrame(() => setTimeout(() => {
  if (number === wanted) performance.measure(name, { start: changed_at, end: performance.now() });
}));

const shown = (answer, number) => {
  if (number !== wanted) return;
  if (has_failed) notice("");
  has_failed = false;
  fill({ parts: { ...answer.parts, advice: "" } });
  told_at(form.problems(answer.problems), answer.problems);
  stale(false);
  busy.textContent = "";
  state.answer = answer;
  document.body.classList.toggle("unanswered", answer.status !== "ok");
  versus.against();
  remedies.hidden = !HELPS[answer.verdict];
  if (HELPS[answer.verdict]) remedies.querySelector("h3").textContent = HELPS[answer.verdict].title;
  document.getElementById("looking").hidden = false;
  document.querySelector("[data-part=advice]").replaceChildren(); /* also words that no answer brought */
  if (answer.status === "ok") document.getElementById("plain").hidden = true; /* offers of the refused job before */
  if (answer.status !== "ok") {
    clear(...LATER);
    if (state.pins.length) document.querySelector("[data-part=versus]").replaceChildren(make("p", { className: "note", textContent: "The job in view has no answer: there is nothing to compare until it has one." }));
    fill({ parts: { versus: null } });
  }
  measure("first picture", number);
};

/* While a field's text is no value, the answer is that of the job before it, and says so. */
const unread = () => {
  const box = document.getElementById("unread");
  const words = form.unread_words();
  box.textContent = words && `The answer has the last values that could be read: ${words}.`;
  box.hidden = !words;
  document.body.classList.toggle("unread", Boolean(words));
};

/* Problems that are told at their fields are named beside the verdict, with a way there; the others stand there in full. */
const told_at = (others, all) => {
  if (others.length || !all.length) return;
  const names = [...form.told];
  document.querySelector("[data-part=problems]").replaceChildren(make("p", { className: "note", textContent: names.length > 1 ? `${names.length} problems, told at their fields too:` : "Told at its field too:" }),
    make("ul", { className: "told-list" }, ...names.map((name) => {
      const there = make("button", { type: "button", textContent: form.label(name) });
      there.addEventListener("click", () => form.focus(name));
      const why = (all.find((one) => one.where.split(" ")[0] === name) || all[0]).message;
      const out = make("button", { type: "button", textContent: "leave it out" });
      out.addEventListener("click", () => apply({}, [name, ...(WITH[name] || []).filter((key) => value_of(state.job, key) !== undefined)]));
      return make("li", {}, there, ` ${said(why, name)} `, ...(form.is_added(name) && why.includes("not yet") ? [out] : []));
    })));
  fill({ parts: { problems: null } });
};

/* What may come after the first picture: memory, legal values, streams, pins, changes that make it fit. Until then the
   pictures of the job before are marked as old. */
const later = async (number) => {
  const when = async (asked, then, ...names) => {
    if (number !== wanted) return;
    try {
      const answer = await asked();
      if (number === wanted) then(answer);
    } catch (error) {
      if (number !== wanted) return;
      if (error instanceof Problems) clear(...names); /* why is said at the verdict */
      else if (!(error instanceof Away)) told(error);
    }
  };
  const asks = (kind, fields = {}) => () => ask(kind, { ...question(), ...fields });
  const drawn = (name) => (answer) => {
    fill(answer);
    old(Object.keys(answer.parts), false);
    measure(name, number);
  };
  const is_drawn = state.answer && state.answer.status === "ok";
  if (is_drawn && !opened.has("memory")) await when(early && early.number === number ? () => early.answer : asks("memory", measured()), drawn("memory"), "memory");
  when(asks("legal"), (answer) => form.degrees({ ...answer, is_unknown: state.answer && state.answer.problems.some((one) => one.message.startsWith("not yet")) }));
  if (!is_drawn) return beside_again(number, false);
  await when(asks("pictures", { opened: [...opened], ...measured() }), drawn("all pictures"), "streams");
  if (state.pins.length && number === wanted) versus.show().catch(told);
  await new Promise((done) => { setTimeout(done, IDLE_MS); }); /* dozens of simulations: only for a job that stays */
  if (number === wanted) copies.refresh(); /* the list of formats is there when it is opened */
  beside_again(number, true);
  const help = HELPS[state.answer.verdict];
  if (help) when(asks(help.kind), (answer) => {
    fill(answer);
    form.say_changes(document.querySelectorAll("[data-part=advice] [data-changes]"));
    document.getElementById("looking").hidden = true;
    if (!answer.parts.advice) document.querySelector("[data-part=advice]").textContent = help.none;
  });
};

/* A measured run that was dropped stands beside each job that stays in view. */
const beside_again = async (number, is_answered) => {
  if (!files.dropped || number !== wanted) return;
  try { await files.beside_another(is_answered); } catch (error) {
    if (number === wanted && !(error instanceof Away)) told(error);
    return;
  }
  if (number === wanted) old(["measured"], false);
};

/* Values that a layout sets to what a scenario without the key has. */
const is_usual = (key, value) => (value === null && key !== "mesh.etp") || (["framework_version", "implementation"].includes(key) && value === "auto")
  || (["framework_options", "training.pipeline"].includes(key) && value && !Object.keys(value).length);

/* Keeps the job in view as a step of the browser's way back, before another takes its place. */
const keep = () => address.write(true);

/* Takes changes of keys, {dotted key: value}; undefined leaves a key out. A change on its own is a step of the way back.
   `left`: what the answer then leaves out. */
const change = (changes, is_step = performance.now() - stepped_at > STEP_MS, left = said_again(state.left, changes)) => {
  notice("");
  stepped_at = performance.now();
  if (is_step) keep();
  const { framework, framework_options: own } = state.job;
  let { job } = state;
  for (const [key, value] of Object.entries(changes)) job = with_value(job, key, is_usual(key, value) ? undefined : value);
  take(job, state.files, left);
  if (own && !job.framework_options && job.framework !== framework) notice(`Options of ${framework} alone, left out with ${job.framework}: ${[...leaves(own)].map((key) => `${key} ${JSON.stringify(own[key] ?? value_of(own, key))}`).join(", ")}. "undo" brings them back.`, true);
};

/* Takes changes that the page offers; the browser's way back undoes them, and the keyboard stays at the verdict.
   `dropped`: keys that are left out, which the verdict then names; `is_taken`: in the place of a refused layout. */
const apply = (changes, dropped = [], is_taken = state.left.is_taken) => {
  const { job } = state;
  const left = dropped.reduce((found, key) => without_key(found, job, key, files.name_of(key, (one) => form.label(one))), said_again({ ...state.left, is_taken }, changes));
  change({ ...changes, ...Object.fromEntries(dropped.map((key) => [key, undefined])) }, true, left);
  const place = document.querySelector("[data-part=verdict]");
  place.tabIndex = -1;
  place.focus({ preventScroll: true });
  place.scrollIntoView({ block: "nearest" });
};

/* Sets the keys of a layout that a search found, and shows what became of the job. */
const taken_over = (keys) => {
  apply(keys);
  scrollTo({ top: 0 });
};

/* Asks for the same job once more. */
const again = () => {
  wanted += 1;
  changed_at = performance.now();
  refresh();
};

/* Shows a job. `left`: what the answer leaves out of it. */
const take = (job, texts = state.files, left = state.left) => {
  Object.assign(state, { job, files: texts, left });
  wait("");
  document.getElementById("example").hidden = JSON.stringify(job) !== JSON.stringify(catalogue.start);
  show_left(left, job, recipe_card.childElementCount > 0);
  if (files) files.say_since(job, (key) => form.label(key));
  wanted += 1;
  const now = performance.now();
  is_apart = now - changed_at > APART_MS;
  changed_at = now;
  stale(true);
  old(LATER, true);
  if (files && files.dropped) old(["measured"], true); /* until it is asked about this job */
  form.show(job);
  show_price();
  busy.textContent = "simulating \u2026";
  document.getElementById("steps").replaceChildren();
  limits.clear();
  refresh();
  address.write();
};

/* The price in its field, and what a search multiplies costs by. */
const show_price = () => {
  const { usd_per_gpu_hour: listed } = catalogue.machines.find((one) => one.name === form.machine()) || {};
  form.show_price(state.price, listed);
  search.price = { own: state.price, listed };
};

const packed = () => {
  const { job, files, left, pins, price } = state;
  return { job, ...(Object.keys(files).length ? { files } : {}), ...left_in_link(left), ...(pins.length ? { pins } : {}), ...(price === null ? {} : { price }) };
};
const address = new Address(packed);

/* Shows another job in the place of the one in view, texts that are no values included. */
const replace = (...opened) => {
  form.read();
  take(...opened);
};

const follow = (found) => {
  state.pins = Array.isArray(found.pins) ? found.pins.slice(0, 4).filter((pin) => pin && typeof pin === "object") : [];
  state.price = Number.isFinite(found.price) && found.price >= 0 ? found.price : null;
  replace(found.job, found.files && typeof found.files === "object" ? found.files : {}, left_of_link(found));
  versus.show().catch(told);
};

const explain = async (what) => {
  const box = document.getElementById("steps");
  box.textContent = "explaining \u2026";
  try { box.replaceChildren(tree(await ask("explain", { ...question(), what }))); } catch (error) {
    if (!(error instanceof Superseded)) box.textContent = error.message;
  }
};

document.querySelector("details.map").addEventListener("toggle", (event) => {
  opened[event.target.open ? "add" : "delete"]("placement");
  if (event.target.open) later(wanted);
});
for (const [id, name] of [["full", "memory"], ["kernels", "streams"]]) {
  document.getElementById(id).addEventListener("change", (event) => {
    opened[event.target.checked ? "add" : "delete"](name);
    later(wanted);
  });
}
document.addEventListener("click", (event) => {
  if (event.target.id === "why-missed") {
    recipe_card.hidden = false;
    recipe_card.scrollIntoView({ block: "nearest" });
  }
  const button = event.target.closest("[data-changes], [data-limit], [data-explain]");
  if (!button) return;
  if (button.dataset.changes) apply(JSON.parse(button.dataset.changes));
  else if (button.dataset.limit) limits.ask(button.dataset.limit);
  else explain(button.dataset.explain);
});
document.getElementById("open-mine").addEventListener("click", () => document.getElementById("file").click());
document.getElementById("to-search").addEventListener("click", () => document.getElementById("search").scrollIntoView({ block: "start" }));
document.getElementById("undo").addEventListener("click", () => address.back());
addEventListener("hashchange", async () => {
  const found = await address.read();
  form.read();
  if (found instanceof Error) notice(found.message);
  else if (found) follow(found);
});
addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof Superseded) event.preventDefault(); /* a newer question has taken its place: no error */
  told(event.reason);
});

const start = async () => {
  catalogue = await ask("catalogue", {});
  const found = await address.read();
  form = new Form(document.getElementById("form"), catalogue, change,
    async (framework) => (await ask("options", { framework })).options, (usd) => {
      state.price = usd;
      take(state.job);
    }, apply, unread);
  versus = new Versus(state, replace, () => address.write(), () => ({ files: state.files, ...priced() }));
  files = new Files(state, catalogue.machines, (...opened) => { keep(); replace(...opened); }, again);
  search = new Search(document.getElementById("searching"), catalogue, question, taken_over);
  limits = new Limits(question, apply, (row) => search.every(row));
  copies = new Copies(state, question, (job) => versus.numbers.get(JSON.stringify(job)));
  if (found && !(found instanceof Error)) follow(found);
  else take(catalogue.start);
  if (found instanceof Error) notice(found.message);
};
start().catch(told);
