/* Side by side: up to four pinned jobs and the one in view. */
import { Problems, Superseded, ask } from "./door.js";
import { clear, fill, make, notice } from "./panels.js";

const MOST = 4;

export class Versus {
  constructor(state, take, write, beside) {
    this.state = state;
    this.take = take;
    this.write = write;
    this.beside = beside; /* what a question has beside the jobs: files, a price */
    document.getElementById("pin").addEventListener("click", () => this.pin());
  }

  pin() {
    const { pins, job } = this.state;
    if (pins.length >= MOST) return notice(`Up to ${MOST} jobs can be pinned: let one go first.`);
    pins.push(job);
    this.write();
    return this.show();
  }

  /* Draws the pins beside the job in view, by one question. */
  async show() {
    const { pins, job } = this.state;
    document.getElementById("side").hidden = !pins.length;
    document.getElementById("pins").replaceChildren(...pins.map((pin, n) => {
      const letter = String.fromCharCode(65 + n);
      const back = make("button", { type: "button", textContent: `${letter}: back to it` });
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
    try { fill(await ask("compare", { jobs: [...pins, job], ...this.beside() })); } catch (error) {
      if (error instanceof Problems) notice(error.message);
      else if (!(error instanceof Superseded)) throw error;
    }
    return null;
  }
}
