// Numbers, times and foreign text as people read them.

// Control characters but tab and line feed, marks that change the direction of text, and lone surrogates.
const UNSAFE =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** `text` with invisible and direction-changing characters written as codes, so that it reads as it is. */
export function plain(text) {
  return String(text).replace(UNSAFE, (char) => "\\u" + char.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** The beginning of an id. */
export function brief(id) {
  return plain(id.length > 20 ? id.slice(0, 14) + "…" : id);
}

/** Any JSON value as text; strings as they are. */
export function asText(value) {
  if (value === null || value === undefined) return "";
  return plain(typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

/** JSON text with line breaks and indentation; every other character stays (no number is rounded, no key dropped). */
export function pretty(text) {
  if (typeof text !== "string") return asText(text);
  if (!/^\s*[{[]/.test(text)) return plain(text);
  let out = "";
  let depth = 0;
  for (const [part] of text.matchAll(/"(?:[^"\\]|\\.)*"?|[{[]\s*[}\]]|[^"]/gs)) {
    if (part.length > 1 || !/[{}[\],:\s]/.test(part)) out += part;
    else if (part === "{" || part === "[") out += part + newline(++depth);
    else if (part === "}" || part === "]") out += newline(--depth) + part;
    else if (part === ",") out += part + newline(depth);
    else if (part === ":") out += ": ";
  }
  return plain(out);
}

function newline(depth) {
  return "\n" + "  ".repeat(Math.max(0, depth));
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size !== 0 && size < 10 ** -digits ? value.toExponential(1) : value.toFixed(digits);
}

export function signed(value, digits = 3) {
  return value === null || value === undefined ? "–" : (value > 0 ? "+" : "") + number(value, digits);
}

export function percent(value, digits = 1) {
  return value === null || value === undefined ? "–" : (100 * value).toFixed(digits) + " %";
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return Math.round(value * 1000) + " ms";
  if (value < 90) return value.toFixed(1) + " s";
  return value < 5400 ? Math.round(value / 60) + " min" : (value / 3600).toFixed(1) + " h";
}

/** Seconds since the epoch as local time; `title` of a <time> has the full one. */
export function clock(epoch) {
  if (!epoch) return "–";
  const date = new Date(epoch * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleDateString() + " " + date.toLocaleTimeString();
}

export function ago(epoch) {
  if (!epoch) return "–";
  const since = Math.max(0, Date.now() / 1000 - epoch);
  return (since < 90 ? Math.round(since) + " s" : seconds(since)) + " ago";
}

export function plural(count, word, many = word + "s") {
  return `${number(count)} ${count === 1 ? word : many}`;
}
