/* Panels: parts of the page that the engine's answers fill. Their markup is made by the studio, which escapes all text. */
const parts = new Map([...document.querySelectorAll("[data-part]")].map((panel) => [panel.dataset.part, panel]));
const shown = new Map();

export const fill = (answer) => {
  for (const [name, text] of Object.entries(answer.parts)) {
    const panel = parts.get(name);
    if (!panel || shown.get(name) === text) continue;
    shown.set(name, text);
    if (text === null) continue; /* drawn by a script: the next answer is put there in any case */
    const open = new Set([...panel.querySelectorAll("details")].map((one, n) => [one.open, n]).filter(([is_open]) => is_open).map(([, n]) => n));
    panel.innerHTML = text;
    [...panel.querySelectorAll("details")].forEach((one, n) => { if (open.has(n)) one.open = true; });
    panel.classList.toggle("empty", !text);
    enliven(panel); /* of pages.js */
  }
};

export const clear = (...names) => {
  fill({ parts: Object.fromEntries(names.map((name) => [name, ""])) });
  old(names, false);
};

export const make = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

/* Words above the page, which stays where it is under the pointer. `is_fine`: they tell what was done, and nothing failed. */
export const notice = (text, is_fine = false) => {
  const box = document.getElementById("notice");
  const page = document.querySelector("main");
  const before = page.getBoundingClientRect().top;
  box.textContent = text;
  box.hidden = !text;
  box.classList.toggle("fine", is_fine);
  scrollBy({ top: page.getBoundingClientRect().top - before, behavior: "instant" });
};

/* Old answers stay in view while a new one is computed, paler; what they offer about the job before is out of reach. */
export const stale = (is_stale) => {
  document.body.classList.toggle("stale", is_stale);
  for (const name of ["advice", "problems"]) parts.get(name).inert = is_stale;
  document.getElementById("plain").inert = is_stale;
};

/* Pictures of the job before, while those of the job in view are drawn. */
export const old = (names, is_old) => names.forEach((name) => {
  const panel = parts.get(name);
  const is_shown = is_old && Boolean(shown.get(name));
  panel.classList.toggle("old", is_shown);
  panel.setAttribute("aria-busy", String(is_shown));
});

const TOP = 64; /* of the verdict in view, in pixels, as in studio.css */
const LEAST_ROOM = 240;
/* The verdict stays in view and scrolls by itself: where its row of the page ends, it ends too, so that none of it is covered. */
const keep_in_row = () => {
  const row_end = Math.max(...["job", "ranks"].map((id) => document.getElementById(id).getBoundingClientRect().bottom));
  document.getElementById("result").style.setProperty("--room", `${Math.max(LEAST_ROOM, Math.floor(row_end - TOP))}px`);
};
addEventListener("scroll", () => requestAnimationFrame(keep_in_row), { passive: true });
const sizes = new ResizeObserver(keep_in_row);
for (const id of ["job", "ranks"]) sizes.observe(document.getElementById(id));

/* While a dropped recipe is not the job yet: says so, and puts the job before and its answer out of sight and reach. */
export const wait = (text) => {
  const box = document.getElementById("waiting");
  box.textContent = text;
  box.hidden = !text;
  document.body.classList.toggle("waiting", Boolean(text));
  for (const id of ["job", "side", "search"]) document.getElementById(id).inert = Boolean(text);
};
