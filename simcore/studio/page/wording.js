/* Layouts, limits and the fewest GPUs in the words of a reader. */
import { value_of } from "./state.js";

const BEYOND = { unsure: "is too close to tell, real runs may need more than the simulated", oom: "does not fit, it needs", fits: "fits in" };
export const FREE = { mesh: [], "training.micro_batch_size": [], "training.recompute": [], options: [] };
/* "in backward, opt_state 2 GiB" in the words of a reader. */
const mostly = (why) => why.replace(/^in ([^,]+), (.+)$/, "the fullest moment is in $1, most of it $2");
/* Why a number of GPUs does not do, in the words of a reader. */
export const why_not = (why) => [[/^oom, /, "does not fit, "], [/^unsure, /, "is too close to tell, "], [/^refused: /, "is refused: "]]
  .reduce((text, [word, said]) => (word.test(text) ? `${said}${mostly(text.replace(word, ""))}` : text), why);
export const count = (value) => Number(value).toLocaleString("en");
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(2)} GiB`;

/* Keys of a layout beside its degrees that are not those of the job. */
const USUAL = { "training.micro_batch_size": 1, "training.recompute": "none" };
const OFFLOADED = { params: "parameters", gradients: "gradients", optimizer: "optimizer states", activations: "activations" };
const SILENT = /^(mesh\.|(framework|framework_version|topology|implementation|training\.pipeline)$)/;
/* Keys with each option of the framework as one of them. */
const spread = (keys) => Object.fromEntries(Object.entries(keys).flatMap(([key, value]) => (key === "framework_options" ? Object.entries(value || {}).map(([name, one]) => [`${key}.${name}`, one]) : [[key, value]])));
/* Keys of a layout beside its degrees, in words. */
export const key_words = (keys) => {
  const rows = Object.entries(spread(keys)).filter(([key]) => !SILENT.test(key));
  const away = rows.filter(([key, value]) => key.startsWith("training.offload.") && typeof value === "string" && value !== "none");
  const plain = rows.filter((row) => !away.includes(row)).map(([key, value]) => (key === "training.optimizer.implementation" ? `${value} optimizer`
    : `${key.split(".").pop().replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : value}`));
  const places = [...new Set(away.map(([, value]) => value))];
  return [...plain, ...places.map((place) => `${away.filter(([, value]) => value === place).map(([key]) => OFFLOADED[key.split(".").pop()]).join(", ")} on ${place === "host" ? "the host" : place}`)];
};
const beside = (keys, job) => key_words(Object.fromEntries(Object.entries(spread(keys)).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(value_of(job, key) ?? USUAL[key]))));

/* "5, 6 and 7" */
const listed = (names) => names.join(", ").replace(/, (?=[^,]*$)/, " and ");

/* Numbers of GPUs that do not divide the batch of a step, and what is known of them with another batch. */
export const batch_words = ({ skipped = [], other, failed }, job, is_open = true) => {
  if (!skipped.length) return "";
  const own = value_of(job, "training.global_batch_size");
  const most = skipped[skipped.length - 1];
  const words = `${listed(skipped.map(count))} GPUs cannot share a global batch of ${count(own)} evenly by data parallelism alone, so few or no layouts of it were there to try.`;
  if (other) return `${words} With a global batch of ${count(other.batch)}, ${count(other.gpus)} GPUs do fit: ${[other.layout.layout, ...beside(other.layout.keys, job)].join(", ")}: ${gib(other.layout.peak_bytes)}.`;
  if (!is_open) return words;
  return `${words} ${failed ? `With a global batch of ${count(failed)}, ${count(most)} GPUs do not surely fit either` : "Another batch has not been tried yet"}.`;
};

/* What the fewest GPUs are looked for among, and what is not among it. */
export const TRIED = "degrees, micro batch, recompute, and one of the framework's own memory options, a fused optimizer, a loss that keeps fewer logits, or states on the host";
export const NOT_TRIED = "Several of these options at once, and activations on the host, were only tried on the layout nearest to fitting of each number of GPUs, if it needs at most twice what a GPU has. Not tried: optimizers in 8 bits, other formats.";
/* Of a framework without a number: what is known is that nothing that was tried surely fits. */
export const none_words = (nearest) => (nearest && nearest.verdict === "unsure" ? "too close to tell: none surely fits" : "none that was tried fits");

/* A layout in the words of a reader: degrees, other keys, memory, speed. */
const there_words = (layout, job) => (layout ? `${[layout.layout, ...beside(layout.keys, job)].join(", ")}: ${gib(layout.peak_bytes)} on the fullest, ${count(Math.round(layout.tokens_per_s_per_gpu))} tokens/s per GPU.` : "");

const space = (words) => words && ` ${words}`;

/* Fewest GPUs of layouts without states on the host, where the fewest have some there: number, and what is known of it. */
export const device_words = ({ value, layout, beyond, why, nearest_bytes, is_fewest, skipped, together }, job) => {
  const below = beyond ? ` ${gpus_words(beyond)}: ${why_not(why)}${nearest_bytes ? `; its best layout with one option needs ${gib(nearest_bytes)}` : ""}.` : value === null && why ? ` ${why_not(why)}.` : "";
  return [value === null ? "none that was tried surely fits" : `${is_fewest ? "" : "at most "}${count(value)}`, `${there_words(layout, job)}${below}${space(together_words(together, job)).trimEnd()}${space(batch_words({ skipped }, job, false))}`];
};

/* The layout nearest to fitting, where none fits yet. */
export const nearest_words = ({ keys, num_gpus, peak_bytes, usable_bytes, verdict }, job) => {
  const over = peak_bytes - usable_bytes;
  const said = verdict === "unsure" ? "too close to tell" : `${gib(over)} too much`;
  return `${[mesh_of(keys), ...beside(keys, job)].join(", ")}, on ${count(num_gpus)} GPU${num_gpus === 1 ? "" : "s"}: needs ${gib(peak_bytes)}, may use ${gib(usable_bytes)}, ${said}.`;
};

export const mesh_of = (keys) => Object.entries(keys).filter(([key, n]) => key.startsWith("mesh.") && n !== null && n !== 1).map(([key, n]) => `${key.slice(5)} ${n}`).join(" ") || "one GPU";

/* Layouts on fewer GPUs that the framework may run and that are not simulated yet, by what they have. */
const unserved_words = (unserved) => {
  const found = Object.entries(unserved || {}).sort((one, other) => other[1] - one[1]);
  const all = found.reduce((sum, [, number]) => sum + number, 0);
  return all ? `${count(all)} layouts that the framework may run are not simulated yet, so they were not tried: ${found.slice(0, 2).map(([what]) => what).join("; ")}.` : "";
};

export const gpus_words = (number) => `${count(number)} GPU${number === 1 ? "" : "s"}`;

/* Fewer GPUs that fit where several options at once are added to the layout nearest to fitting there. */
const together_words = (found, job) => (found ? `With several options at once ${gpus_words(found.gpus)} ${found.gpus === 1 ? "fits" : "fit"}: ${there_words(found.layout, job)} ${batch_words(found, job)} ` : "");

/* "; 3 with a global batch of 66" */
const shared_words = (found) => (found && found.other ? `; ${count(found.other.gpus)} with a global batch of ${count(found.other.batch)}` : "");

/* Options that are not simulated with the layout nearest to fitting. */
const unmodelled_words = (unmodelled) => (unmodelled && unmodelled.length ? `Not modelled with it yet, so not tried: ${unmodelled.join("; ")}.` : "");

/* True if the layout nearest to fitting has several options at once: what is told of its number of GPUs is of others. */
const is_several = ({ nearest, nearest_bytes, beyond }) => Boolean(nearest && nearest_bytes && nearest.num_gpus === beyond && nearest.peak_bytes < nearest_bytes);

/* Of a framework of which nothing surely fits with one option at a time: why, and the layout nearest to fitting. */
const never_words = (row, job) => {
  const { why, nearest, nearest_bytes, beyond, together } = row;
  const alone = together ? "With one of them alone none fits; " : is_several(row) ? "With one option at a time, " : "";
  return [`${alone}${beyond ? `${gpus_words(beyond)}, the most that were tried: ` : ""}${why_not(why)}${nearest_bytes ? `; its best layout${alone ? "" : " with one option"} needs ${gib(nearest_bytes)}` : ""}.`,
    nearest ? `Nearest to fitting${is_several(row) ? ", with several options at once" : ""}: ${nearest_words(nearest, job)}` : ""];
};

/* What a table says below a framework's row: of fewer GPUs, or of none. `open`: words while fewer are being tried. */
export const below_words = (row, job, open) => {
  const { value, beyond, why, nearest, untried, unserved, unmodelled, is_fewest, is_refused } = row;
  if (is_refused) return why_not(why);
  const doing = is_fewest ? "" : open;
  if (value === null) return [doing, ...(why ? never_words(row, job) : []), unserved_words(unserved), unmodelled_words(unmodelled)].filter(Boolean).join(" ");
  const fewer = why ? `With fewer: ${beyond ? `${gpus_words(beyond)}: ` : ""}${why_not(why)}${nearest ? `; nearest: ${nearest_words(nearest, job).replace(/\.$/, "")}` : ""}${untried ? `; ${untried} numbers were not tried` : ""}.` : "";
  return [doing, fewer, batch_words(row, job), ...(is_fewest && value > 1 ? [unserved_words(unserved), unmodelled_words(unmodelled)] : [])].filter(Boolean).join(" ");
};

/* Why no fewer do, where every layout there was tried. */
const fewer_words = ({ beyond, why, untried, nearest_bytes, nearest, unserved }, job) => {
  const batch = value_of(job, "training.global_batch_size");
  const tried = untried ? `${count(untried)} smaller numbers were not tried.` : `Every layout on fewer was tried${unserved_words(unserved) && ", but for those named below"} (${batch ? `global batch ${count(batch)}; ` : ""}of several hosts whole ones).`;
  const last = beyond ? ` ${gpus_words(beyond)}: ${why_not(why)}${nearest_bytes ? `; its best layout with one option needs ${gib(nearest_bytes)}` : ""}.` : "";
  return [`${tried}${last}`, nearest && (nearest.num_gpus !== beyond || nearest.peak_bytes !== nearest_bytes) ? `Nearest to fitting on fewer: ${nearest_words(nearest, job)}` : ""];
};

/* Headline, and lines of what is known of it: words for the fewest GPUs of a framework, as a search has found them so far. */
export const fewest_words = (row, job) => {
  const { value, is_fewest, is_refused, layout, why, nearest, on_device: device, unserved, unmodelled, together, other } = row;
  const rest = [unserved_words(unserved), unmodelled_words(unmodelled), NOT_TRIED];
  if (is_refused) return ["not answered", [why]];
  if (value === null && !is_fewest) return ["looking \u2026", []];
  const several = together_words(together, job);
  if (value === null) return [together ? `${gpus_words(together.gpus)}, with several options at once${shared_words(together)}` : none_words(nearest), [several, ...never_words(row, job), ...rest]];
  const [without, known] = device ? device_words(device, job) : [];
  const host = !device ? "" : device.value === value ? ", with or without states on the host" : `${other ? "; " : " with states on the host, "}${device.value === null ? "none" : without} without${device.together ? ` (${count(device.together.gpus)} with several options)` : ""}${other ? " states on the host" : ""}`;
  const head = `${is_fewest ? "" : "at most "}${gpus_words(value)}${other ? ` with this batch, ${count(other.gpus)} with ${count(other.batch)}` : ""}${host}${together ? `; ${count(together.gpus)} with several options at once${shared_words(together)}` : ""}${is_fewest && value > 1 && unserved_words(unserved) ? ", of layouts that are modelled" : ""}`;
  return [head, [there_words(layout, job), ...(is_fewest ? [several, ...(value === 1 ? [] : [...fewer_words(row, job), batch_words(row, job)]), ...rest] : []), known ? `Without states on the host: ${known}` : ""]];
};

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* A value of a limit with its unit. */
const value_words = ({ quantity }, value) => (quantity === "gpus" ? gpus_words(value) : quantity === "sequence" ? `${count(value)} tokens` : count(value));

/* A limit as a sentence. */
export const limit_words = (found) => {
  const batch = found.beyond_batch ? ` with a global batch of ${count(found.beyond_batch)}` : "";
  const tried = found.beyond === null || !found.beyond_peak ? "" : `${value_words(found, found.beyond)}${batch}, ${found.quantity === "gpus" ? "the most that were tried" : "the least that was tried"}: ${BEYOND[found.beyond_verdict]} ${found.beyond_peak}; `;
  if (found.value === null) return `${found.words}: none surely fits. ${sentence(found.problem || `${tried}${mostly(found.why)}`)}${found.words === "fewest GPUs" ? ". The answer above has other layouts too." : ""}`;
  const beyond = found.beyond_peak ? `${BEYOND[found.beyond_verdict]} ${found.beyond_peak}: ${mostly(found.why)}` : why_not(found.why);
  const steps = found.quantity === "sequence" ? " Tried in steps of 256 tokens, or more where ranks cut sequences." : "";
  return `${found.words}: ${count(found.value)} (${found.peak}).${steps}${found.beyond === null ? "" : ` ${count(found.beyond)}${batch} ${beyond}`}`;
};
