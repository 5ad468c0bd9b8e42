// The tokens of a call as the trainer had them. Only the lines in sight are in the document, so that 32,000 tokens scroll.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { number, plain, signed } from "../lib/format.js";
import { colorOf, lineOf, lines, scaleOf, shown } from "./token_rows.js";
import { Badge, Failed, Loading, Tabs } from "./ui.js";

const LINE = 22; // pixels, as in parts.css
const SPARE = 8; // lines above and below what is in sight
const PAGE = 8000;
const COLUMNS = ["ids", "texts", "mask", "logprobs", "advantages", "entropy"];
const BY = [["mask", "Mask"], ["logprobs", "Log-probability"], ["advantages", "Advantage"], ["entropy", "Entropy"]];

/** All columns of a call, page after page; what has come is shown. */
function useTokens(path, params) {
  const [state, setState] = useState({ columns: null, error: null, done: false });
  useEffect(() => {
    let gone = false;
    (async () => {
      setState({ columns: null, error: null, done: false });
      for (let from = 0, columns = null; from !== null && !gone; ) {
        const page = await get(path, { ...params, from: from || null, count: PAGE });
        columns = columns ? appended(columns, page) : page;
        from = page.next;
        if (!gone) setState({ columns, error: null, done: from === null });
      }
    })().catch((error) => !gone && setState((old) => ({ ...old, error })));
    return () => (gone = true);
  }, [path, params.source, params.attempt]);
  return state;
}

function appended(columns, page) {
  const out = { ...columns };
  for (const name of COLUMNS) if (columns[name] && page[name]) out[name] = columns[name].concat(page[name]);
  return out;
}

export function Tokens({ rollout, attempt, source, call, by, onBy }) {
  const path = `rollouts/${encodeURIComponent(rollout)}/calls/${encodeURIComponent(call)}/tokens`;
  const { columns, error, done } = useTokens(path, { source, attempt });
  if (error && !columns) return html`<${Failed} error=${error} />`;
  if (!columns) return html`<${Loading} />`;
  return html`<${View} columns=${columns} by=${columns[by] ? by : "mask"} onBy=${onBy} done=${done} />`;
}

function View({ columns, by, onBy, done }) {
  const box = useRef();
  const [place, setPlace] = useState({ top: 0, height: 0, width: 80 });
  const [at, setAt] = useState(null);
  const [over, setOver] = useState(null);
  const starts = useMemo(() => lines(columns, place.width), [columns, place.width]);
  const scale = useMemo(() => scaleOf(columns, by), [columns, by]);
  const toLine = (line) => (box.current.scrollTop = Math.max(0, (line - 2) * LINE));
  useLayoutEffect(() => {
    const measure = () => setPlace((old) => ({ ...old, height: box.current.clientHeight, width: charactersIn(box.current) }));
    const resize = new ResizeObserver(measure);
    resize.observe(box.current);
    measure();
    return () => resize.disconnect();
  }, []);
  const placed = useRef(false);
  useLayoutEffect(() => {
    if (placed.current || !place.height || columns.mask.length <= columns.prompt_count) return;
    placed.current = true;
    toLine(lineOf(starts, columns.prompt_count));
  }, [starts, place.height]);
  const choose = (next) => {
    const index = Math.max(0, Math.min(columns.mask.length - 1, next));
    setAt(index);
    const top = lineOf(starts, index) * LINE;
    if (top < box.current.scrollTop || top + LINE > box.current.scrollTop + place.height) box.current.scrollTop = top - place.height / 2;
  };
  const keys = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) choose(at === null ? columns.prompt_count : at + step);
    else if (event.key === "Home") choose(0);
    else if (event.key === "End") choose(columns.mask.length - 1);
    else return;
    event.preventDefault();
  };
  const first = Math.max(0, Math.floor(place.top / LINE) - SPARE);
  const end = Math.min(starts.length, Math.ceil((place.top + place.height) / LINE) + SPARE);
  const held = useRef({});
  const rows = [];
  for (let line = first, made = { columns, starts, by, at, rows: new Map() }; line < end; line++) {
    // A line that was on screen before is the same element, which Preact then leaves alone.
    const same = ["columns", "starts", "by", "at"].every((name) => held.current[name] === made[name]);
    const row = (same && held.current.rows.get(line)) || html`<${Row} key=${line} top=${line * LINE} columns=${columns} from=${starts[line]} to=${starts[line + 1] ?? columns.mask.length} by=${by} scale=${scale} at=${at} />`;
    made.rows.set(line, row);
    rows.push(row);
    if (line === end - 1) held.current = made;
  }
  const token = (event) => (event.target.dataset.at === undefined ? null : Number(event.target.dataset.at));
  return html`<div class="stack">
    <div class="row between">
      <div class="row"><${Tabs} label="Colour tokens by" value=${by} onChange=${onBy} options=${BY.filter(([name]) => name === "mask" || columns[name])} /><${Scale} by=${by} scale=${scale} /></div>
      <div class="row small">
        ${!columns.texts && html`<span class="muted">ids only: no tokenizer is known (lgov view --tokenizer), or lgov[train] is not installed</span>`}
        <button class="link" onClick=${() => toLine(0)}>prompt</button><button class="link" onClick=${() => toLine(lineOf(starts, columns.prompt_count))}>reply</button>
        ${columns.drift && html`<button class="link" onClick=${() => choose(columns.drift.at)}>drift</button>`}
      </div>
    </div>
    <${Notes} columns=${columns} done=${done} />
    <p class="token-facts small mono" role="status" aria-live=${over === null ? "polite" : "off"}>${facts(columns, over ?? at)}</p>
    <div class="tokens" ref=${box} style=${{ height: `min(62vh, ${starts.length * LINE + 2}px)` }} tabindex="0" role="listbox" aria-label="Tokens of the call; arrow keys move" aria-activedescendant=${at === null ? null : `token-${at}`}
      onKeyDown=${keys} onScroll=${() => setPlace((old) => ({ ...old, top: box.current.scrollTop }))}
      onPointerOver=${(event) => setOver(token(event))} onPointerLeave=${() => setOver(null)} onClick=${(event) => token(event) !== null && setAt(token(event))}>
      <div role="presentation" style=${{ height: starts.length * LINE + "px" }}>
        ${rows}
      </div>
    </div>
  </div>`;
}

function Row({ top, columns, from, to, by, scale, at }) {
  const spans = [];
  for (let i = from; i < to; i++) {
    const css = `${colorOf(columns, i, by, scale)}${columns.mask[i] ? "" : " untrained"}${columns.drift?.at === i ? " shift" : ""}`;
    const text = shown(columns, i);
    const chosen = i === at ? { id: "token-" + i, "aria-selected": "true" } : {};
    spans.push(html`<span role="option" data-at=${i} class=${css} aria-label=${text.trim() ? null : "space"} ...${chosen}>${text}</span>`);
  }
  return html`<div role="presentation" class="line ${from === columns.prompt_count ? "reply" : ""}" style=${{ top: top + "px" }}>${spans}</div>`;
}

function charactersIn(box) {
  const probe = document.createElement("span");
  probe.textContent = "0".repeat(100);
  probe.style.cssText = "position:absolute;visibility:hidden;white-space:pre";
  box.append(probe);
  const one = probe.getBoundingClientRect().width / 100;
  probe.remove();
  return Math.max(10, Math.floor((box.clientWidth - 28) / (one || 8)));
}

function Notes({ columns, done }) {
  const { prompt_count, response_count, shared, weights_version, temperature, top_p, loss_weight, finish_reason, truncated, drift, advantage_source } = columns;
  return html`<div class="row small muted">
    <span>${number(prompt_count)} prompt + ${number(response_count)} reply tokens${shared ? `, ${number(shared)} shared with an earlier call` : ""}</span>
    <span>temperature ${number(temperature)}, top-p ${number(top_p)}</span>
    ${weights_version !== null && html`<span>weights version ${weights_version}</span>`}
    ${loss_weight !== null && html`<span>loss weight ${number(loss_weight, 4)}</span>`}
    ${advantage_source === "recomputed" && html`<span title="Not as the trainer used them: worked out again from what is recorded">advantages recomputed</span>`}
    ${truncated ? html`<${Badge} value="truncated" />` : html`<span>ended by ${plain(finish_reason || "–")}</span>`}
    ${drift && html`<${Badge} value=${"drift at " + drift.at} kind="warn" title=${plain(drift.detail)} />`}
    ${!done && html`<${Badge} value="reading …" kind="accent" />`}
  </div>`;
}

function Scale({ by, scale }) {
  if (by === "mask") return html`<span class="scale"><span><i class="q4"></i></span>trained on</span>`;
  const [letter, count, low, high] = by === "advantages" ? ["d", 9, signed(-scale), signed(scale)] : ["q", 8, "0", by === "logprobs" ? `−${scale} and less` : `${scale}`];
  return html`<span class="scale">${low}<span>${Array.from({ length: count }, (_, i) => html`<i class=${letter + i}></i>`)}</span>${high}</span>`;
}

function facts(columns, at) {
  if (at === null) return "Point at a token, or move with the arrow keys.";
  const parts = [`#${at}`, at < columns.prompt_count ? "prompt" : "reply", `id ${columns.ids?.[at] ?? "–"}`];
  if (columns.texts) parts.push(JSON.stringify(columns.texts[at]));
  parts.push(columns.mask[at] ? "trained on" : "not trained on");
  const logprob = columns.logprobs?.[at];
  if (logprob !== null && logprob !== undefined) parts.push(`log-probability ${number(logprob, 4)} (p ${number(Math.exp(logprob), 4)})`);
  if (columns.advantages?.[at] !== null && columns.advantages?.[at] !== undefined) parts.push(`advantage ${signed(columns.advantages[at], 4)}`);
  if ((columns.entropy?.[at] ?? null) !== null) parts.push(`entropy ${number(columns.entropy[at], 4)} nats`);
  if (columns.weights_version !== null && at >= columns.prompt_count) parts.push(`weights ${columns.weights_version}`);
  if (columns.drift?.at === at) parts.push(`drift: ${columns.drift.detail}`);
  return plain(parts.join(" · "));
}
