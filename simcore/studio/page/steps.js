/* Explanations: a number, and opened below it what it is made of, by which formula and rule. */
import { make } from "./panels.js";

const words = (step) => [make("b", { textContent: step.amount }), ` ${step.words}`,
  ...(step.how ? [make("span", { className: "note", textContent: step.how.startsWith("of ") ? ` ${step.how}` : ` = ${step.how}` })] : []),
  ...(step.source ? [make("code", { className: "note", textContent: ` ${step.source}` })] : [])];

export const tree = (step, is_open = true) => {
  if (!step.inside.length) return make("p", { className: "leaf" }, ...words(step));
  return make("details", { className: "step", open: is_open }, make("summary", {}, ...words(step)),
    ...step.inside.map((inner) => tree(inner, false)));
};
