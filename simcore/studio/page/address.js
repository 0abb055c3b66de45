/* The state of the page in its address, and the steps of the browser's way back. */
import { decoded, encoded } from "./state.js";

export class Address {
  constructor(packed) {
    this.packed = packed; /* the state as it is now */
    this.written = "";
    this.writes = 0;
    this.writing = Promise.resolve();
    this.is_going = false; /* on the way back, until the browser is there */
    addEventListener("popstate", () => {
      this.is_going = false;
      show_undo();
    });
  }

  /* One step back, never out of the page: a job that was changed and changed again has the address of the one before. */
  async back() {
    await this.writing;
    if (this.is_going || !steps()) return;
    this.is_going = true;
    history.back();
  }

  /* Puts the state as it is now into the address, after those before it. `is_step`: as a step that the way back leads to. */
  write(is_step = false) {
    const now = this.packed();
    const number = this.writes += 1;
    this.writing = this.writing.then(async () => {
      if (!is_step && number !== this.writes) return; /* a newer one is on its way */
      this.written = `#${await encoded(now)}`;
      if (location.hash !== this.written) history.replaceState(history.state, "", this.written);
      if (is_step) history.pushState({ steps: steps() + 1 }, "", this.written);
      show_undo();
    });
  }

  /* The state of the address, an Error that says why it cannot be read, or null where it is the one in view. */
  async read() {
    await this.writing;
    show_undo();
    if (location.hash.length < 2 || location.hash === this.written) return null;
    try { return await decoded(location.hash.slice(1)); } catch (error) { return error; }
  }
}

/* Steps of the way back that lead to another job of this page. */
const steps = () => (history.state && history.state.steps) || 0;
const show_undo = () => { document.getElementById("undo").hidden = !steps(); };
