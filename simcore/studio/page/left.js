/* What the answer leaves out: keys of the job's recipe, and keys that were left out on the page. */
import { make } from "./panels.js";
import { value_of } from "./state.js";

const SHOWN = 10; /* keys that are named; of more the number is told */
const MOST = 40;
export const NOTHING = { missed: [], dropped: {}, layout: [] }; /* `layout`: keys without which the layout is another one */

const texts = (found) => (Array.isArray(found) ? found.filter((one) => typeof one === "string").slice(0, MOST) : []);

/* Of a link's state; what it has of another type is left away. */
export const left_of_link = ({ missed, dropped, layout }) => ({ missed: texts(missed), layout: texts(layout),
  dropped: Object.fromEntries(Object.entries(dropped && typeof dropped === "object" ? dropped : {}).filter(([, words]) => typeof words === "string").slice(0, MOST)) });

/* For the address: lists that have something. */
export const left_in_link = ({ missed, dropped, layout }) => ({ ...(missed.length ? { missed } : {}), ...(layout.length ? { layout } : {}), ...(Object.keys(dropped).length ? { dropped } : {}) });

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

/* Sentences about what is left out, the heaviest first: keys without which the layout is another one, then the others;
   "" where there are none. */
export const left_words = (left) => {
  const names = [...Object.values(left.dropped), ...left.missed];
  const named = names.length > SHOWN ? [...names.slice(0, SHOWN - 1), `${names.length - SHOWN + 1} more keys`] : names;
  return [left.layout.length ? `The answer is of another layout: without ${listed(left.layout)} of the recipe. It does not say whether the recipe fits.` : "",
    names.length ? `Without ${listed(named)}${is_of_recipe(left) ? " of the recipe" : ""}, which may change the answer.` : ""];
};

/* Shows these sentences beside the verdict, with the way to the reasons. */
export const show_left = (left, has_reasons) => {
  const [other, box] = ["other-layout", "missed"].map((id) => document.getElementById(id));
  const words = left_words(left);
  [other, box].forEach((one, n) => {
    one.textContent = `${words[n]} `;
    one.hidden = !words[n];
  });
  if (has_reasons && left.missed.length) box.append(make("button", { type: "button", id: "why-missed", textContent: "why" }));
  document.body.classList.toggle("other-layout", !other.hidden);
};
