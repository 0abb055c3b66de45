/* The state of the page in its address: JSON, deflated, as base64url after the version. The part behind # is not sent
   to a server. */
export const VERSION = 1;

const through = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

export const encoded = async (state) => {
  const bytes = await through(new TextEncoder().encode(JSON.stringify(state)), new CompressionStream("deflate-raw"));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return `${VERSION}.${btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
};

/* The state of an address; an Error that says why there is none. */
export const decoded = async (text) => {
  const [version, packed] = text.split(".");
  if (version !== String(VERSION)) throw new Error(`This link is of version ${version.slice(0, 20)}; this studio reads version ${VERSION}.`);
  try {
    const binary = atob((packed || "").replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
    const state = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(await through(bytes, new DecompressionStream("deflate-raw"))));
    if (!state || typeof state.job !== "object" || state.job === null || Array.isArray(state.job)) throw new Error();
    return state;
  } catch { throw new Error("This link is cut or damaged, so its job cannot be read."); }
};

/* Parts of a dotted key; names of options of a framework may contain dots. */
const OPTIONS = "framework_options.";
const parts_of = (key) => (key.startsWith(OPTIONS) ? [OPTIONS.slice(0, -1), key.slice(OPTIONS.length)] : key.split("."));

/* Keys of a job by dotted names. */
export const value_of = (job, key) => parts_of(key).reduce((inner, part) => (inner && typeof inner === "object" ? inner[part] : undefined), job);

export const with_value = (job, key, value) => with_parts(job, parts_of(key), value);

const with_parts = (job, [first, ...rest], value) => {
  const made = { ...job };
  if (!rest.length) {
    if (value === undefined) delete made[first];
    else made[first] = value;
    return made;
  }
  const before = made[first];
  const inner = before && typeof before === "object" && !Array.isArray(before) ? before : {};
  made[first] = with_parts(inner, rest, value);
  if (value === undefined && !Object.keys(made[first]).length) delete made[first];
  return made;
};

/* Dotted names of the values of a job; lists are values, and so is what an option of a framework has. */
export function* leaves(job, prefix = "") {
  for (const [name, value] of Object.entries(job)) {
    const key = prefix + name;
    if (prefix !== OPTIONS && value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) yield* leaves(value, `${key}.`);
    else yield key;
  }
}
