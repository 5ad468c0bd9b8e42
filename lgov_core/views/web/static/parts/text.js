// Texts of the API ({text, length, ref}): their beginning at once, the rest on request, always as text.
import { html, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { number, plain, pretty } from "../lib/format.js";

const STEP = 100000;
const SHORT = 160; // characters of JSON that need no lines of their own

/** `json` indents JSON. `label` names the region for a screen reader. Nothing is shown for null but `none`. */
export function Text({ value, source, json = false, label = "text", none = null }) {
  const [more, setMore] = useState({ ref: null, text: "", error: null });
  const held = more.ref === value?.ref ? more : { text: "", error: null };
  if (value === null || value === undefined) return none && html`<p class="muted small">${none}</p>`;
  const text = value.text + held.text;
  if (!text) return html`<p class="muted small">${none ?? "empty"}</p>`;
  const read = () =>
    get("text", { source, ref: value.ref, from: text.length, count: STEP }).then(
      (answer) => setMore({ ref: value.ref, text: held.text + answer.text, error: null }),
      (error) => setMore({ ...held, ref: value.ref, error }),
    );
  return html`<pre class="text" tabindex="0" role="group" dir="auto" aria-label=${label}>${json && text.length > SHORT ? pretty(text) : plain(text)}</pre>
    ${value.length > text.length && html`<p class="small muted">${number(text.length)} of ${number(value.length)} characters.
      ${" "}<button class="link" onClick=${read}>Show more</button>${held.error && html` <span class="bad">${plain(held.error.message)}</span>`}</p>`}`;
}

/** A text in one line, cut by the width of its place. */
export function Line({ value, none = "" }) {
  const text = value?.text ?? none;
  return html`<span class="mono ellipsis" title=${plain(text.slice(0, 600))}>${plain(text.slice(0, 600))}</span>`;
}
