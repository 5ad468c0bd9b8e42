// Filters that live in the address, so that a filtered list can be sent to a colleague.
import { html, useEffect, useState } from "../lib/html.js";
import { plain, plural } from "../lib/format.js";
import { changed, go } from "../lib/router.js";

const WAIT_MS = 300;

/** A choice that sets query value `name`; `held` holds without one. options: [value, label] pairs or values; none: no choice. */
export function Choice({ route, name, label, options, all = "all", also = {}, held = "" }) {
  if (!options?.length) return null;
  const value = route.query.get(name) ?? held;
  const pairs = options.map((one) => (Array.isArray(one) ? one : [one, one]));
  const known = !value || pairs.some(([id]) => id === value);
  return html`<label class="field">${label}
    <select value=${value} onChange=${(event) => go(changed(route, { ...also, [name]: event.target.value }))}>
      ${all !== null && html`<option value="">${all}</option>`}
      ${!known && html`<option value=${value}>${plain(value)}</option>`}
      ${pairs.map(([id, title]) => html`<option value=${id} selected=${id === value}>${plain(title)}</option>`)}
    </select></label>`;
}

/** The source, where there are several. */
export function SourceChoice({ route, sources }) {
  if (sources.length < 2) return null;
  return html`<${Choice} route=${route} name="source" label="Source" held=${sources[0].id} all=${null} also=${{ run: "", agent: "", policy: "", rule: "" }} options=${sources.map((one) => [one.id, one.name])} />`;
}

/** A text that is searched for a moment after the last key. */
export function Search({ route, name = "text", label = "Text", placeholder = "input, reply …  ( / )" }) {
  const held = route.query.get(name) ?? "";
  const [text, setText] = useState(held);
  useEffect(() => setText(held), [held]);
  useEffect(() => {
    if (text === held) return undefined;
    const timer = setTimeout(() => go(changed(route, { [name]: text }), { replace: true }), WAIT_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<label class="field">${label}
    <input type="search" data-filter value=${text} maxlength="200" placeholder=${placeholder} onInput=${(event) => setText(event.target.value)} /></label>`;
}

/** How many are shown, and the button for the next page. */
export function More({ pages, noun }) {
  const { items, cursor, loading, error } = pages;
  return html`<div class="row between" role="status">
    <span class="muted small">${plural(items.length, noun)} shown</span>
    ${error && html`<span class="bad">${plain(error.message)}</span>`}
    ${cursor && html`<button disabled=${loading} onClick=${() => pages.more()}>${loading ? "Searching …" : "Show more"}</button>`}
  </div>`;
}

/** The source that a page is about: the one in the address, or the first. */
export function sourceOf(route, sources) {
  const id = route.query.get("source");
  return sources.find((one) => one.id === id) ?? sources[0];
}
