/* What the page offers in the place of a job: legal layouts of one that is refused, other frameworks; changes in words. */
import { gpus_of, mesh_words, short, whole_mesh } from "./mesh.js";
import { make } from "./panels.js";
import { value_of } from "./state.js";

const is_empty = (value) => value !== null && typeof value === "object" && !Array.isArray(value) && !Object.keys(value).length;

const words_of = (value) => {
  if (value === null || typeof value !== "object") return String(value);
  if (Array.isArray(value)) return JSON.stringify(value);
  return Object.entries(value).map(([name, one]) => `${name} ${typeof one === "object" ? JSON.stringify(one) : one}`).join(", ") || "as usual";
};

/* "loss auto", "without pipeline", "target modules as 7 names" */
const key_words = (key, value) => {
  const name = key.split(".").pop().replaceAll("_", " ");
  if (is_empty(value)) return `without ${name}`;
  return `${name} ${Array.isArray(value) && value.length > 2 ? `as ${value.length} names` : [value].flat().join(" ")}`;
};

/* ", global batch size 8 \u2192 9" */
export const also_words = (also, job) => Object.entries(also).map(([key, value]) => `, ${key.split(".").pop().replaceAll("_", " ")} ${value_of(job, key)} \u2192 ${value}`).join("");

const offer = (textContent, then) => {
  const button = make("button", { type: "button", textContent });
  button.addEventListener("click", then);
  return button;
};

/* A button that takes a legal layout in the place of one that is refused. `apply`: takes changes, and keys to leave out. */
const layout = ({ plain, drops, also, fixed }, job, apply) => {
  const [own, gpus] = [job.mesh || {}, plain].map(gpus_of);
  const gone = Object.entries(job.mesh || {}).filter(([axis, n]) => n > 1 && !(axis in short(plain))).map(([axis, n]) => `, ${axis} ${n} \u2192 1`).join("");
  const other = own === gpus ? "" : `${own} \u2192 ${gpus} GPUs: `;
  const words = `take ${other}${mesh_words(plain)}${gone}${also_words(also, job)}${drops.length ? `, without ${drops.join(", ")}` : ""}${other && fixed ? ` (${fixed})` : ""}`;
  return offer(words, () => apply({ mesh: short(plain), ...also }, drops));
};

/* A button that gives the job to another framework, with that one's own defaults. */
const other = ({ keys, says }, job, apply) => {
  const { framework, mesh, framework_options: options, ...others } = keys;
  const own = Object.entries(others).filter(([key, value]) => value !== value_of(job, key)).map(([key, value]) => `, ${key_words(key, value)}`).join("");
  return offer(`take ${framework || job.framework}, ${mesh_words(mesh)}${own}: ${says}`,
    () => apply({ ...(framework ? { framework, framework_options: options } : {}), mesh: short(mesh), ...others }));
};

/* Buttons without those that say the same as one before. */
const alone = (buttons) => buttons.filter((one, n) => buttons.findIndex((each) => each.textContent === one.textContent) === n);

/* Offers that go with the values of each degree, of a job that is refused; none of another. */
export const offers = ({ plain, drops, also, fixed, others, frameworks, is_unknown }, job, apply) => {
  const layouts = plain ? [{ plain, drops, also, fixed }, ...others].map((one, n, all) => layout({ ...one, fixed: all.slice(0, n).some((each) => each.fixed) ? "" : one.fixed }, job, apply)) : []; /* why is said once */
  const found = alone([...layouts, ...frameworks.map((one) => other(one, job, apply))]);
  return found.length && is_unknown ? [make("span", { className: "note", textContent: "rankscope does not model this yet; your job may be right. What it can answer:" }), ...found] : found;
};

/* Puts what a change means in the form's words before its keys: old and new value; keys that stay are left out. */
export const say_changes = (buttons, job, label) => {
  const own = whole_mesh(job.mesh);
  for (const button of buttons) {
    const changes = JSON.parse(button.dataset.changes);
    const mesh = { ...own };
    for (const [key, value] of Object.entries(changes)) if (key.startsWith("mesh.")) mesh[key.slice(5)] = value;
    const rows = Object.entries(changes).map(([key, value]) => [label(key), key.startsWith("mesh.") ? own[key.slice(5)] : value_of(job, key), value, key]);
    const stays = ([, before, after]) => JSON.stringify(before) === JSON.stringify(after);
    /* options that are left out with their framework are told below */
    const said = [["GPUs", gpus_of(own), gpus_of(mesh)], ...rows].filter((row) => !stays(row) && !(row[3] === "framework_options" && is_empty(row[2])))
      .map(([name, before, after]) => `${name} ${before === undefined || before === null ? "" : `${words_of(before)} `}\u2192 ${words_of(after)}`).join(", ");
    if (said) button.ariaLabel = `apply ${said}`; /* several buttons have the same text */
    const place = button.nextElementSibling;
    const kept = rows.filter(stays).map(([, , , key]) => `${key}=`);
    place.querySelectorAll("code").forEach((one) => { if (kept.some((key) => one.textContent.startsWith(key))) one.remove(); });
    if (said && !place.querySelector("b")) place.prepend(make("b", { textContent: said }), " ");
  }
};
