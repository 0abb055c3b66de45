/* What the answer leaves out: keys of the job's recipe, and keys that were left out on the page. */
import { AXES, layout_changes, layout_of } from "./mesh.js";
import { make } from "./panels.js";
import { value_of } from "./state.js";

const SHOWN = 10; /* keys that are named; of more the number is told */
const MOST = 40;
const LONG = 80; /* letters of a name beyond which what it has in brackets is left out */
/* `layout`: keys without which the layout is another one; `asked`: the recipe's layout; `is_taken`: another was taken in its place. */
export const NOTHING = { missed: [], dropped: {}, layout: [], asked: null, is_taken: false };

const texts = (found) => (Array.isArray(found) ? found.filter((one) => typeof one === "string").slice(0, MOST) : []);

const layout_in_link = (found) => {
  const { framework, mesh, batch, recompute, loss } = found && typeof found === "object" ? found : {};
  if (![framework, recompute, loss].every((one) => typeof one === "string") || !mesh || typeof mesh !== "object") return null;
  return { framework, recompute, loss, mesh: Object.fromEntries(Object.entries(mesh).filter(([axis, n]) => (axis in AXES || axis === "dp_shard") && Number.isInteger(n))), ...(Number.isInteger(batch) ? { batch } : {}) };
};

/* Of a link's state; what it has of another type is left away. */
export const left_of_link = ({ missed, dropped, layout, asked, is_taken }) => ({ missed: texts(missed), layout: texts(layout), asked: layout_in_link(asked), is_taken: is_taken === true,
  dropped: Object.fromEntries(Object.entries(dropped && typeof dropped === "object" ? dropped : {}).filter(([, words]) => typeof words === "string").slice(0, MOST)) });

/* For the address: lists that have something. */
export const left_in_link = ({ missed, dropped, layout, asked, is_taken }) => ({ ...(asked ? { asked } : {}), ...(is_taken ? { is_taken } : {}), ...(missed.length ? { missed } : {}), ...(layout.length ? { layout } : {}), ...(Object.keys(dropped).length ? { dropped } : {}) });

/* With a key of the job that is left out, by the name that its recipe has for it. */
export const without_key = (left, job, key, name) => {
  const value = value_of(job, key);
  const shown = value === null || typeof value !== "object" ? ` ${value}` : "";
  return { ...left, dropped: { ...left.dropped, [key]: name || `${key}${shown}` } };
};

/* Without what changes of the job say again. */
export const said_again = (left, changes) => ({ ...left,
  dropped: Object.fromEntries(Object.entries(left.dropped).filter(([key]) => !(key in changes) || changes[key] === undefined)) });

/* True if a name among them is one of a recipe. */
const is_of_recipe = ({ missed, dropped }) => missed.length > 0 || Object.entries(dropped).some(([key, words]) => !words.startsWith(key));

const listed = (names) => names.join(", ").replace(/, ([^,]*)$/, " and $1");

/* What the layout of the job in view has otherwise than the recipe's, in whose place it was taken. */
const taken_words = ({ asked, is_taken }, job) => (asked && is_taken ? layout_changes(asked, layout_of(job)) : []);

/* Sentences about what is left out, the heaviest first: that the layout is another one, then keys; "" without any. */
export const left_words = (left, job) => {
  const others = [...(left.layout.length ? [`without ${listed(left.layout)} of the recipe`] : []), ...taken_words(left, job)];
  const names = [...Object.values(left.dropped), ...left.missed].map((name) => (name.length > LONG ? name.replace(/ \(.*$/s, "") : name)); /* sources stand on the card */
  const named = names.length > SHOWN ? [...names.slice(0, SHOWN - 1), `${names.length - SHOWN + 1} more keys`] : names;
  return [others.length ? `The answer is of another layout${left.layout.length ? "" : " than the recipe's"}: ${others.join(", ")}. It does not say whether the recipe fits.` : "",
    names.length ? `Without ${listed(named)}${is_of_recipe(left) ? " of the recipe" : ""}, which may change the answer.` : ""];
};

/* Shows these sentences beside the verdict, with the way to the reasons. */
export const show_left = (left, job, has_reasons) => {
  const [other, box] = ["other-layout", "missed"].map((id) => document.getElementById(id));
  const words = left_words(left, job);
  [other, box].forEach((one, n) => {
    one.textContent = `${words[n]} `;
    one.hidden = !words[n];
  });
  if (has_reasons && left.missed.length) box.append(make("button", { type: "button", id: "why-missed", textContent: "why" }));
  document.body.classList.toggle("other-layout", !other.hidden);
};
