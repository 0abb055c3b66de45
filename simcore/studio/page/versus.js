/* Side by side: up to four pinned jobs and the one in view. */
import { Problems, Superseded, ask } from "./door.js";
import { gpus_of } from "./mesh.js";
import { clear, fill, make, notice } from "./panels.js";
import { gpus_words } from "./wording.js";

const MOST = 4;
const letter_of = (n) => String.fromCharCode(65 + n);
const signed = (number, digits) => `${number < 0 ? "\u2212" : "+"}${Math.abs(number).toFixed(digits)}`;
const gpus = ({ mesh }) => gpus_of(mesh || {});
/* Words for a job, where several stand beside each other. */
const name_of = (job) => `${typeof job.model === "string" ? job.model : "model"} ${(job.training || {}).method || ""}, ${job.framework || ""}, ${gpus_words(gpus(job))}`.replace(/[^\w .,:/-]/g, "_").slice(0, 90);

export class Versus {
  constructor(state, take, write, beside) {
    this.state = state;
    this.take = take;
    this.write = write;
    this.numbers = new Map(); /* numbers and verdict of pinned jobs, by their JSON */
    document.getElementById("pinned").addEventListener("click", () => document.getElementById("side").scrollIntoView({ block: "start" }));
    this.beside = beside; /* what a question has beside the jobs: files, a price */
    document.getElementById("pin").addEventListener("click", () => this.pin());
  }

  pin() {
    const { pins, job, answer } = this.state;
    const same = pins.findIndex((one) => JSON.stringify(one) === JSON.stringify(job));
    if (same >= 0) return notice(`This job is ${letter_of(same)} already. Change something: the difference stands at the verdict, and in full under "Side by side".`, true);
    if (pins.length >= MOST) return notice(`Up to ${MOST} jobs can be pinned: let one go first.`);
    pins.push(job);
    if (answer && answer.status === "ok") this.numbers.set(JSON.stringify(job), { numbers: answer.numbers, verdict: answer.verdict });
    this.write();
    return this.show();
  }

  /* The answer in view against the last pin, at the verdict; nothing where one of them is not known. */
  against() {
    const { pins, job, answer } = this.state;
    const last = pins.length - 1;
    const { numbers: then } = (last >= 0 && this.numbers.get(JSON.stringify(pins[last]))) || {};
    const now = answer && answer.status === "ok" && answer.numbers;
    const box = document.getElementById("against");
    box.hidden = !then || !now;
    if (box.hidden) return;
    const gib = (now.peak_bytes - then.peak_bytes) / 2 ** 30;
    const share = now.step_s && then.step_s ? `, step ${signed(100 * (now.step_s / then.step_s - 1), 0)} %` : "";
    box.textContent = JSON.stringify(pins[last]) === JSON.stringify(job) ? `Kept as ${letter_of(last)} to compare with: change something.` : `Against the kept job ${letter_of(last)} (${pins[last].framework}, ${gpus_words(gpus(pins[last]))}): ${signed(gib, 2)} GiB${share}`;
  }

  /* Draws the pins beside the job in view, by one question. */
  async show() {
    const { pins, job } = this.state;
    document.getElementById("side").hidden = !pins.length;
    const button = document.getElementById("pinned");
    button.hidden = !pins.length;
    button.textContent = `${pins.length} kept: see below`;
    this.against();
    document.getElementById("pins").replaceChildren(...pins.map((pin, n) => {
      const letter = letter_of(n);
      const back = make("button", { type: "button", textContent: `${letter}: back to it`, title: name_of(pin) });
      const away = make("button", { type: "button", textContent: "\u00d7", ariaLabel: `let ${letter} go` });
      back.addEventListener("click", () => this.take(pin));
      away.addEventListener("click", () => {
        pins.splice(n, 1);
        this.write();
        this.show();
      });
      return make("span", { className: "pin" }, back, away);
    }));
    if (!pins.length) return clear("versus");
    try { fill(await ask("compare", { jobs: [...pins.map((one) => ({ ...one, name: name_of(one) })), { ...job, name: `in view: ${name_of(job)}` }], ...this.beside() })); } catch (error) {
      if (error instanceof Problems) notice(error.message);
      else if (!(error instanceof Superseded)) throw error;
    }
    return null;
  }
}
