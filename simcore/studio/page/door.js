/* The one door to the engine: every question is a POST of JSON. */
const KEPT = "rankscope-token";
const tab = crypto.randomUUID ? crypto.randomUUID() : String(Math.random());

/* The token of the link is kept for this tab, and leaves the address, which people share. */
const given = new URLSearchParams(location.search).get("token");
if (given) {
  sessionStorage.setItem(KEPT, given);
  history.replaceState(null, "", location.pathname + location.hash);
}

export class Superseded extends Error {}

/* Raised where the studio cannot be reached: it may come back. */
export class Away extends Error {}

export class Problems extends Error {
  constructor(problems) {
    super(problems.map((one) => one.message).join("; "));
    this.problems = problems;
  }
}

const request = async (kind, fields, signal) => {
  const token = sessionStorage.getItem(KEPT);
  const headers = { "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) };
  try {
    return await fetch(`/api/${kind}`, { method: "POST", headers, body: JSON.stringify({ tab, ...fields }), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Away("The studio does not answer. Is it still running? Your job is in the address, nothing is lost; the page asks again until it answers.");
  }
};

const refused = async (answer) => {
  if (answer.status === 409) return new Superseded();
  try { return new Problems((await answer.json()).problems); } catch { return new Problems([{ where: "", message: `The studio answered ${answer.status}.`, rule: "" }]); }
};

/* A search: its lines are given to `show` as they come. Ends with an error where one cannot be shown. */
export const stream = async (fields, signal, show) => {
  const answer = await request("search", fields, signal);
  if (!answer.ok) throw await refused(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.filter(Boolean).map((text) => JSON.parse(text))) {
        if (line.problems) throw new Problems(line.problems);
        show(line);
      }
    }
  } finally { reader.cancel().catch(() => {}); } /* the studio stops where nobody listens */
};

export const ask = async (kind, fields, signal) => {
  const answer = await request(kind, fields, signal);
  if (!answer.ok) throw await refused(answer);
  return answer.json();
};
