// Small parts that every page uses: states, badges, figures, long texts.
import { html, useState } from "../lib/html.js";
import { post } from "../lib/api.js";
import { plain } from "../lib/format.js";

export function Loading({ lines = 6 }) {
  return html`<div class="card" role="status" aria-label="Loading"><div class="body stack">
    ${Array.from({ length: lines }, () => html`<div class="bone"></div>`)}
  </div></div>`;
}

/** Nothing to show: what is missing, and what would fill it. */
export function Empty({ title, children }) {
  return html`<div class="card state"><h2>${title}</h2><p>${children}</p></div>`;
}

/** A request that failed: the server's message and its hint. */
export function Failed({ error, retry }) {
  return html`<div class="card state failed" role="alert">
    <h2>${plain(error.message)}</h2>
    ${error.hint && html`<p>${plain(error.hint)}</p>`}
    ${retry && html`<button onClick=${retry}>Try again</button>`}
    ${error.status === 401 && html`<${AdminKey} />`}
  </div>`;
}

/** Opens the window with a key. */
function AdminKey() {
  const [key, setKey] = useState("");
  const [error, setError] = useState(null);
  const open = (event) => {
    event.preventDefault();
    post("session", {}, { Authorization: `Bearer ${key}` }).then(() => location.reload(), setError);
  };
  return html`<form class="row" onSubmit=${open}>
    <label class="field">Or an admin key of the endpoint, or an approver's key <input type="password" required autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
    <button>Open</button>${error && html`<span class="bad" role="alert">${plain(error.message)}</span>`}</form>`;
}

/** Renders `children(data)` once there are data; keeps them on screen while they load again. */
export function Ready({ result, lines, children }) {
  const { data, error, reload } = result;
  if (error && !data) return html`<${Failed} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} lines=${lines} />`;
  return html`${error && html`<p class="banner bad" role="alert">Not up to date: ${plain(error.message)}</p>`}
    ${children(data)}`;
}

const KINDS = {
  succeeded: "good", approved: "good", allow: "good", ok: "good", fixed: "good", verified: "good",
  failed: "bad", deny: "bad", denied: "bad", error: "bad", broke: "bad", broken: "bad", rejected: "bad", high: "bad", critical: "bad",
  blocked: "warn", warn: "warn", escalate: "warn", truncated: "warn", timeout: "warn", stale: "warn", medium: "warn", warning: "warn",
  transform: "other", handoff: "other", infrastructure: "other", running: "accent", pending: "accent",
};

/** The name of one of several conversations in a run. */
export function Conversation({ name }) {
  const title = /^from turn \d+$/.test(name) ? "Nothing names this conversation: it is told apart by its messages and its agent's run" : "As the framework or the request names it";
  return html`<span class="small" title=${title}><span class="muted">conversation </span>${plain(name)}</span>`;
}

/** What people read for an effect: a call that escalates waits for an approval. */
export const effectName = (effect) => (effect === "escalate" ? "pending approval" : effect);

export function Badge({ value, kind, title }) {
  if (value === null || value === undefined || value === "") return null;
  return html`<span class=${"badge " + (kind ?? KINDS[value] ?? "")} title=${title}>${plain(effectName(value))}</span>`;
}

/** How an outcome, an effect or a status is coloured: good, bad, warn, other or "". */
export const kindOf = (value) => KINDS[value] ?? "";

export function Facts({ items }) {
  const shown = items.filter((item) => item && ![null, undefined, false, ""].includes(item[1]));
  return html`<dl class="facts">${shown.map(
    ([name, value, note]) => html`<div><dt>${name}</dt><dd>${value}${note && html` <small>${note}</small>`}</dd></div>`,
  )}</dl>`;
}

export function Card({ title, aside, flush, label, children }) {
  return html`<section class="card" aria-label=${label ?? (typeof title === "string" ? title : undefined)}>
    ${title && html`<header><h2>${title}</h2>${aside}</header>`}
    <div class=${"body" + (flush ? " flush" : "")}>${children}</div>
  </section>`;
}

/** A choice of a few, as buttons that stay pressed. options: [[value, label], ...] */
export function Tabs({ value, options, onChange, label }) {
  return html`<div class="tabs" role="group" aria-label=${label}>${options.map(
    ([id, name]) =>
      html`<button type="button" aria-pressed=${String(id === value)} onClick=${() => onChange(id)}>${name}</button>`,
  )}</div>`;
}

export function Head({ title, sub, crumbs, children }) {
  return html`<div class="stack">
    ${crumbs && html`<nav class="crumbs" aria-label="Breadcrumb">${crumbs.map(([name, href], i) => html`${i > 0 && " / "}<a href=${href}>${name}</a>`)}</nav>`}
    <div class="head"><div><h1>${title}</h1>${sub && html`<p class="sub">${sub}</p>`}</div>${children}</div>
  </div>`;
}
