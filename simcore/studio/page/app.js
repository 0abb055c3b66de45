/* The studio: one job, its address, and the questions that a change asks, the newest only. */
import { Problems, Superseded, ask } from "./door.js";
import { Form } from "./form.js";
import { clear, fill, notice, stale } from "./panels.js";
import { decoded, encoded, with_value } from "./state.js";

const busy = document.getElementById("busy");
const state = { job: {} };
let form;
let wanted = 0;
let is_asking = false;
let changed_at = 0;
let written = "";

const question = () => ({ values: state.job });

const told = (error) => {
  if (error instanceof Superseded) return;
  notice(error instanceof Problems ? error.message : `The page has a fault: ${error.message}`);
};

/* Asks until the answer in view is that of the newest job. */
const refresh = async () => {
  if (is_asking) return;
  is_asking = true;
  try {
    for (let number = 0; number !== wanted;) {
      number = wanted;
      try { shown(await ask("view", question()), number); } catch (error) { if (number === wanted) told(error); }
    }
  } finally { is_asking = false; }
  later(wanted);
};

const shown = (answer, number) => {
  if (number !== wanted) return;
  notice("");
  fill(answer);
  form.problems(answer.problems);
  stale(false);
  busy.textContent = "";
  state.answer = answer;
  document.getElementById("remedies").hidden = !answer.parts.advice;
  if (answer.status !== "ok") clear("memory", "streams", "placement");
  requestAnimationFrame(() => setTimeout(() => {
    if (number === wanted) performance.measure("first picture", { start: changed_at, end: performance.now() });
  }));
};

/* What may come after the first picture: legal values, memory and streams, changes that make it fit. */
const later = (number) => {
  const when = (kind, fields, then) => ask(kind, { ...question(), ...fields }).then((answer) => { if (number === wanted) then(answer); }).catch((error) => { if (number === wanted && !(error instanceof Problems)) told(error); });
  if (number !== wanted) return;
  when("legal", {}, (answer) => form.degrees(answer));
  if (!state.answer || state.answer.status !== "ok") return;
  when("pictures", {}, (answer) => {
    fill(answer);
    requestAnimationFrame(() => setTimeout(() => { if (number === wanted) performance.measure("all pictures", { start: changed_at, end: performance.now() }); }));
  });
};

/* Takes changes of keys, {dotted key: value}; undefined leaves a key out. */
const change = (changes) => {
  let job = state.job;
  for (const [key, value] of Object.entries(changes)) job = with_value(job, key, value);
  take(job);
};

const take = (job) => {
  state.job = job;
  wanted += 1;
  changed_at = performance.now();
  stale(true);
  form.show(job);
  busy.textContent = "simulating \u2026";
  refresh();
  write();
};

const write = async () => {
  const text = await encoded({ job: state.job });
  written = `#${text}`;
  if (location.hash !== written) history.replaceState(null, "", written);
};

/* The job of the address; a link that cannot be read is told, and the job in view stays. */
const read = async () => {
  if (location.hash.length < 2 || location.hash === written) return null;
  try { return (await decoded(location.hash.slice(1))).job; } catch (error) { return error; }
};

const follow = async () => {
  const found = await read();
  if (found instanceof Error) notice(found.message);
  else if (found) take(found);
};

document.getElementById("remedies").addEventListener("click", (event) => {
  const button = event.target.closest("[data-changes]");
  if (button) change(JSON.parse(button.dataset.changes));
});
addEventListener("hashchange", follow);

const start = async () => {
  const [catalogue, found] = [await ask("catalogue", {}), await read()];
  form = new Form(document.getElementById("form"), catalogue, change,
    async (framework) => (await ask("options", { framework })).options);
  take(found && !(found instanceof Error) ? found : catalogue.start);
  if (found instanceof Error) notice(found.message);
};
start().catch(told);
