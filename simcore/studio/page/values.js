/* Texts of fields as values: numbers of several countries, YAML; machines and guesses of messages in words. */
/* What a message takes a name for: a model built in, and its id where an id was asked for. */
export const GUESS = /unknown model '([^']+)' \(did you mean '([\w.-]+)'(?:, ([\w./-]+))?\?/;
const GROUPED = /^\d{1,3}([.,'\u2019\u00a0\u202f _]\d{3})+$/;

/* A whole number as people write it in English, German, French or Swiss; null for anything else. */
export const whole = (text) => {
  const plain = text.trim();
  if (/^\d+$/.test(plain)) return Number(plain);
  return GROUPED.test(plain) ? Number(plain.replace(/\D/g, "")) : null;
};

/* A number with decimals, which a point or a comma begins; null for anything else. */
export const decimal = (text) => (/^\d+([.,]\d+)?$/.test(text.trim()) ? Number(text.trim().replace(",", ".")) : null);

export const machine_words = ({ name, gpu, usable_gib: usable }) => {
  const short = gpu.replace(/NVIDIA |GeForce | HBM.*/g, "");
  return `${name} (${short}${/\d ?GB/.test(short) ? "" : `, ${usable.toFixed(1)} GiB`})`;
};

/* A value as YAML would read it: numbers, true, false, null, JSON lists; else text. */
export const plain_value = (text) => {
  const trimmed = text.trim();
  if (/^(true|false|null|-?\d+(\.\d+)?([eE][+-]?\d+)?|[[{"].*)$/s.test(trimmed)) {
    try { return JSON.parse(trimmed); } catch { return trimmed; }
  }
  return trimmed;
};
