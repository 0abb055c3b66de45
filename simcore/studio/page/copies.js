/* The job to take away: as scenario, recipe, command, Markdown table, picture, link. */
import { ask } from "./door.js";
import { left_words } from "./left.js";
import { make, notice } from "./panels.js";
import { leaves, value_of } from "./state.js";

const gib = (bytes) => (bytes === null ? "\u2013" : `${(bytes / 2 ** 30).toFixed(2)} GiB`);
const dialog = document.getElementById("dialog");
const by_id = (name) => document.getElementById(`dialog-${name}`);
let saved = "";

const show = (title, note, text, file, type = "text/plain") => {
  by_id("title").textContent = title;
  by_id("note").textContent = note;
  by_id("text").value = text;
  by_id("text").rows = Math.min(30, text.split("\n").length + 1);
  if (saved) URL.revokeObjectURL(saved);
  saved = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(by_id("save"), { href: saved, download: file });
  by_id("copy").textContent = "copy";
  dialog.showModal();
  by_id("text").setSelectionRange(0, 0);
  by_id("text").scrollTop = dialog.scrollTop = 0;
};

by_id("close").addEventListener("click", () => dialog.close());
by_id("copy").addEventListener("click", async () => {
  by_id("text").select();
  try { await navigator.clipboard.writeText(by_id("text").value); by_id("copy").textContent = "copied"; } catch {
    by_id("copy").textContent = document.execCommand("copy") ? "copied" : "selected";
  }
});

const IS_HERE = /^(localhost|127\.|\[::1\])/.test(location.host);
const link_note = () => `The whole job is in the part from # on${IS_HERE ? ". The address before it is this machine's: a colleague who runs `rankscope studio` puts the part from # on behind their own address, or opens the scenario" : "; a token of the studio is not in it"}.`;

const IN_COLUMNS = /^(name|model|framework|topology|mesh|mesh\..*|training\.(method|seq_len|micro_batch_size|global_batch_size|recompute))$/;

/* Names and values of a row of the table: a job, its numbers and its verdict. */
const cells_of = (job, numbers, verdict) => {
  const rest = [...leaves(job)].filter((key) => !IN_COLUMNS.test(key));
  const said = (key, usual) => value_of(job, key) ?? usual;
  return [["model", job.model], ["method", said("training.method", "full")], ["framework", job.framework], ["machine", job.topology], ["GPUs", numbers.num_ranks], ["degrees", Object.entries(job.mesh || {}).map(([axis, n]) => `${axis} ${n}`).join(" ")],
    ["sequence", said("training.seq_len", "\u2013")], ["micro batch", said("training.micro_batch_size", 1)], ["global batch", said("training.global_batch_size", "\u2013")], ["recompute", said("training.recompute", "none")],
    ["other keys", rest.map((key) => `${key} ${JSON.stringify(value_of(job, key))}`).join(", ") || "\u2013"], ["verdict", verdict], ["peak", `${gib(numbers.peak_bytes)} of ${gib(numbers.capacity_bytes)}`],
    ["step", numbers.step_s === null ? "\u2013" : `${numbers.step_s.toPrecision(3)} s`], ["tokens/s per GPU", numbers.tokens_per_s_per_gpu === null ? "\u2013" : Math.round(numbers.tokens_per_s_per_gpu)],
    ["USD per M tokens", numbers.usd_per_million_tokens === null ? "\u2013" : numbers.usd_per_million_tokens.toPrecision(3)]];
};

/* The job in view, after those that are kept to compare with, as rows of a table. */
const markdown = ({ job, answer, pins, left }, numbers_of) => {
  const jobs = [...pins.filter((pin) => JSON.stringify(pin) !== JSON.stringify(job)).map((pin) => [pin, numbers_of(pin)]).filter(([, known]) => known), [job, { numbers: answer.numbers, verdict: answer.verdict || answer.status }]]
    .map(([one, known]) => cells_of(one, known.numbers, known.verdict));
  const row = (values) => `| ${values.map((value) => String(typeof value === "object" ? JSON.stringify(value) : value).replaceAll("|", "\\|").replaceAll("\n", " ")).join(" | ")} |`;
  const [first] = jobs;
  return `${row(first.map(([name]) => name))}\n${row(first.map(() => "---"))}\n${jobs.map((cells) => row(cells.map(([, value]) => value))).join("\n")}\n${left_words(left, job).filter(Boolean).map((words) => `\n${words}\n`).join("")}\n[the job in rankscope studio](${location.href})\n`;
};

/* The bars as a PNG image, drawn from their SVG text. */
const picture = async (text) => {
  const image = new Image();
  image.src = `data:image/svg+xml;base64,${btoa(String.fromCharCode(...new TextEncoder().encode(text)))}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
};

export class Copies {
  constructor(state, question, numbers_of) {
    this.state = state;
    this.numbers_of = numbers_of; /* of a kept job: its numbers and verdict, where they are known */
    this.question = question;
    this.select = document.getElementById("copy");
    const kinds = { link: "link", scenario: "scenario", command: "command", gate: "gate for CI", markdown: "Markdown table", svg: "picture (SVG)", png: "picture (PNG)" };
    this.select.append(...Object.entries(kinds).map(([value, textContent]) => make("option", { value, textContent })),
      ...[...this.formats()].map((name) => make("option", { value: `recipe ${name}`, textContent: `recipe of ${name}` })));
    this.select.addEventListener("focus", () => this.refresh());
    this.select.addEventListener("change", () => {
      const { value } = this.select;
      this.select.value = "";
      this.copy(value).catch((error) => notice(error.message));
    });
  }

  formats() { return this.known || []; }

  /* The formats that can say this job are asked when the list is opened. */
  async refresh() {
    if (!this.known) this.select.append(make("option", { value: "", disabled: true, className: "asking", textContent: "recipes: asking \u2026" }));
    try { ({ formats: this.known, refused: this.refused } = await ask("formats", this.question())); } catch { return; }
    finally { this.select.querySelectorAll(".asking").forEach((option) => option.remove()); }
    this.select.querySelectorAll("option[value^=recipe], option[value^=why]").forEach((option) => option.remove());
    this.select.append(...this.known.map((name) => make("option", { value: `recipe ${name}`, textContent: `recipe of ${name}` })),
      ...Object.keys(this.refused).map((name) => make("option", { value: `why ${name}`, textContent: `why no recipe of ${name}` })));
  }

  async copy(kind) {
    if (kind === "link") return show("Link", link_note(), location.href, "link.txt");
    if (kind === "markdown") return show("Markdown", "For an issue or a pull request.", markdown(this.state, this.numbers_of), "job.md");
    const left = left_words(this.state.left).filter(Boolean);
    if (kind.startsWith("why ")) return notice(`No recipe of ${kind.slice(4)} says this job: ${this.refused[kind.slice(4)]}`, true);
    if (kind.startsWith("recipe ")) {
      const made = await ask("convert", { ...this.question(), format: kind.slice(7) });
      const note = [...left, made.launch && `Launch: ${made.launch}`, ...made.left.map((line) => `Not in it: ${line}`)].filter(Boolean).join("\n");
      return show(`Recipe of ${kind.slice(7)}`, note, made.text, made.file);
    }
    if (["scenario", "command", "gate"].includes(kind)) {
      const { text } = await ask("scenario", this.question());
      if (kind === "gate") return show("Gate for CI", [...left, "A step of a workflow: it fails where the job takes more than 92 % of a card, or is unsure."].join("\n"), `# scenario.yaml\n${text}\n# step of the workflow\nrankscope run scenario.yaml --max-fill 92% --format github\n`, "gate.txt");
      return kind === "scenario" ? show("Scenario", [...left, "rankscope run scenario.yaml gives the same answer."].join("\n"), text, "scenario.yaml")
        : show("Command", [...left, "For a shell."].join("\n"), `cat > scenario.yaml <<'END'\n${text}END\nrankscope run scenario.yaml\n`, "run.sh");
    }
    const { svg } = await ask("figure", this.question());
    if (kind === "svg") return show("Picture", "SVG, for light paper.", svg, "ranks.svg", "image/svg+xml");
    const link = make("a", { href: URL.createObjectURL(await picture(svg)), download: "ranks.png" });
    link.click();
    return setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}
