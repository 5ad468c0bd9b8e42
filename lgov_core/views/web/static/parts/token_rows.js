// Tokens broken into lines of fixed height, and the colour of each: pure functions over the columns of api/…/tokens.
import { plain } from "../lib/format.js";

const MOST = 60; // characters of one token; longer ones are cut

/** What a token is shown as. Line feeds and tabs get a sign; without a tokenizer the id stands for the text. */
export function shown(columns, at) {
  const text = columns.texts?.[at];
  if (text === undefined || text === null) return columns.ids ? `${columns.ids[at]} ` : "▪";
  const visible = plain(text).replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";
  return visible.length > MOST ? visible.slice(0, MOST - 1) + "…" : visible;
}

/** The position at which each line begins. A line ends at `width` characters, after a line feed, and before the reply. */
export function lines(columns, width) {
  const starts = [];
  let room = 0;
  const count = columns.mask.length;
  for (let at = 0; at < count; at++) {
    const size = columnsOf(shown(columns, at));
    if (size > room || at === columns.prompt_count || endsLine(columns, at - 1)) {
      starts.push(at);
      room = width;
    }
    room -= size;
  }
  return starts;
}

function endsLine(columns, at) {
  return at >= 0 && columns.texts?.[at]?.endsWith("\n");
}

/** Columns of a monospaced font: wide characters (CJK, emoji) take two. */
function columnsOf(text) {
  let sum = 0;
  for (const char of text) sum += char.codePointAt(0) > 0x2e7f ? 2 : 1;
  return sum;
}

/** The line that holds a position. */
export function lineOf(starts, at) {
  let low = 0;
  let high = starts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= at) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The class that colours a token: q0–q7 for an amount, d0–d8 for a sign. "" where there is no value. */
export function colorOf(columns, at, by, scale) {
  if (by === "mask") return columns.mask[at] ? "q4" : "";
  const value = columns[by]?.[at];
  if (value === null || value === undefined) return "";
  if (by === "advantages") return scale ? "d" + Math.round(4 + 4 * Math.max(-1, Math.min(1, value / scale))) : "d4";
  return "q" + Math.min(7, Math.floor((7 * Math.abs(value)) / (scale || 1)));
}

/** The value that gets the strongest colour: the greatest advantage there is; for the rest a fixed one, so that calls compare. */
export function scaleOf(columns, by) {
  if (by !== "advantages") return { logprobs: 4, entropy: 3 }[by] ?? 1;
  let most = 0;
  for (const value of columns.advantages ?? []) most = Math.max(most, Math.abs(value ?? 0));
  return most;
}
