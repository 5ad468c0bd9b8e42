// The frame around the pages: navigation, source, live state, keys, theme.
import { html, render, useEffect, useRef } from "./lib/html.js";
import { useApi } from "./lib/api.js";
import { EXPORTED } from "./lib/exported.js";
import { KEYS, keyListener } from "./lib/keys.js";
import { follow, useLive } from "./lib/live.js";
import { go, link, useRoute } from "./lib/router.js";
import { clock, plain, seconds } from "./lib/format.js";
import { applyTheme, toggleTheme } from "./lib/theme.js";
import { sourceOf } from "./parts/filters.js";
import { Empty, Failed, Head, Ready } from "./parts/ui.js";
import { AgentRuns } from "./pages/agents.js";
import { Runs } from "./pages/runs.js";
import { Tasks } from "./pages/tasks.js";
import { Rollout } from "./pages/rollout.js";
import { Compare } from "./pages/compare.js";
import { Governance } from "./pages/governance.js";
import { Approvals } from "./pages/approvals.js";
import { Doctor } from "./pages/doctor.js";

const PAGES = {
  agents: ["Agent runs", AgentRuns],
  runs: ["Trainings", Runs],
  tasks: ["Tasks", Tasks],
  compare: ["Compare", Compare],
  governance: ["Governance", Governance],
  approvals: ["Waiting for a person", Approvals],
  doctor: ["Doctor", Doctor],
  rollout: ["Rollout", Rollout],
};

/** Pages that only a training fills. */
const OF_A_TRAINING = ["runs", "tasks", "compare", "doctor"];
const trains = (sources) => sources.some((source) => source.has.training);

/** The page that the address without a name opens: of a training, of an audit record alone, of everything else. */
function firstPage(sources) {
  if (trains(sources)) return "runs";
  return sources.length && sources.every((source) => source.kind === "record") ? "governance" : "agents";
}

/** Why the only source cannot be read, where the page shows nothing else; with several, another one can be chosen. */
function unread(sources, route) {
  return sources.length > 1 || ["runs", "compare", "approvals"].includes(route.page) ? null : sources[0].error;
}

function App() {
  const asked = useRoute();
  const sources = useApi("sources", {}, { what: ["state"] });
  const approvals = useApi(EXPORTED ? null : "approvals", {}, { what: ["approvals"] });
  const route = { ...asked, page: asked.page || firstPage(sources.data?.sources ?? []) };
  const live = useLive();
  const stale = sources.data && live.sources.some((one) => sources.data.sources.find(({ id }) => id === one.id)?.state !== one.state);
  useEffect(() => void (stale && sources.reload()), [stale]);
  const main = useRef();
  const help = useRef();
  const first = useRef(true);
  const [title, Page] = PAGES[route.page] ?? ["Not found", NotFound];
  useEffect(() => {
    const listener = keyListener({ help: () => help.current.showModal(), theme: toggleTheme, page: (name) => go(link(name)) });
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
  const address = [route.page, ...route.parts].join("/");
  useEffect(() => {
    document.title = `${[title, ...route.parts].map(plain).join(" ")} · lgov`;
    scrollTo(0, 0);
    if (!first.current) main.current.focus({ preventScroll: true });
    first.current = false;
  }, [address]);
  const waiting = approvals.data?.items.filter((item) => item.state === "pending").length ?? 0;
  const focusMain = (event) => (event.preventDefault(), main.current.focus());
  return html`<a class="skip" href="#main" onClick=${focusMain}>Skip to the page</a>
    <div class="frame">
      <${Side} route=${route} data=${sources.data} waiting=${waiting} help=${() => help.current.showModal()} />
      <main id="main" ref=${main} tabindex="-1">
        <${Ready} result=${sources}>${(data) =>
          data.sources.length
            ? html`<div class="page">${unread(data.sources, route)
                ? html`<${Head} title=${title} /><${Failed} error=${unread(data.sources, route)} retry=${sources.reload} />`
                : html`<${SourceState} data=${data} route=${route} /><${Page} key=${route.page} route=${route} sources=${data.sources} />`}</div>`
            : html`<${Empty} title="There is nothing here yet">${plain(data.title)} holds no store and no run so far. A run that goes on appears here as soon as it writes its first rollouts. (The demo makes its model first, which takes a minute or two.)<//>`}<//>
      </main>
    </div>
    <${Help} dialog=${help} />`;
}

function Side({ route, data, waiting, help }) {
  const live = useLive();
  const training = trains(data?.sources ?? []);
  const current = route.page === "rollout" ? (training ? "tasks" : "agents") : route.page;
  const source = route.query.get("source");
  const entry = ([name, [title]]) =>
    html`<a href=${link(name, { source })} aria-current=${name === current ? "page" : null}>${title}
      ${name === "approvals" && waiting > 0 && html`<span class="badge warn" aria-label="${waiting} waiting">${waiting}</span>`}</a>`;
  const shown = Object.entries(PAGES).filter(([name]) => name !== "rollout" && !(EXPORTED && name === "approvals") && (training || !OF_A_TRAINING.includes(name)));
  return html`<header class="side">
    <a class="brand" href="#/" aria-label="lgov view"><${Logo} />lgov</a>
    <nav aria-label="Pages">${shown.map(entry)}</nav>
    <div class="foot">
      <span class="source">${data && plain(data.title)}</span>
      <${LiveState} live=${live} data=${data} />
      <span class="buttons">
        <button class="icon" onClick=${toggleTheme} title="Light or dark (t)" aria-label="Switch between light and dark">◐</button>
        <button class="icon" onClick=${help} title="Keys (?)" aria-label="Keyboard keys">?</button>
      </span>
    </div>
  </header>`;
}

function Logo() {
  return html`<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
    <path d="M12 2.5 20 6v5.5c0 5-3.4 8.3-8 10-4.6-1.7-8-5-8-10V6z" /><path d="m7.5 13 3-3 2.5 2.5 4-4.5" /></svg>`;
}

function LiveState({ live, data }) {
  if (EXPORTED) return html`<span class="live"><span class="dot"></span>exported ${clock(EXPORTED.made_at)}</span>`;
  const states = (live.sources.length ? live.sources : data?.sources ?? []).map((source) => source.state);
  const [css, text] = live.lost
    ? ["lost", "no connection"]
    : states.includes("unreadable") ? ["lost", "cannot be read"]
    : states.includes("live") ? ["live-on", "live"] : states.includes("stalled") && trains(data?.sources ?? []) ? ["stalled", "stalled"] : ["", "not running"];
  return html`<span class="live" role="status"><span class="dot ${css}"></span>${text}</span>`;
}

/** What a person has to know about the sources before reading on: unreadable, stalled, cut down for an export. */
function SourceState({ data, route }) {
  const live = useLive();
  const shown = ["runs", "agents"].includes(route.page) ? data.sources : [sourceOf(route, data.sources)];
  return shown.map((source) => {
    const now = live.sources.find((one) => one.id === source.id) ?? source;
    if (source.error) return html`<p class="banner bad" role="alert"><b>${plain(source.name)}</b>: ${plain(source.error.message)}. ${plain(source.error.hint ?? "")}</p>`;
    if (now.state === "stalled" && source.has.training) return html`<p class="banner warn" role="status"><b>${plain(source.name)} stalls:</b> something is open, and nothing was written for ${seconds(now.silent_s)}.</p>`;
    return null;
  });
}

function NotFound() {
  return html`<${Empty} title="There is no such page">The address does not name a page. <a href="#/">Go to the first page</a>.<//>`;
}

function Help({ dialog }) {
  return html`<dialog ref=${dialog} aria-labelledby="help-title"><div class="stack">
    <h2 id="help-title">Keys</h2>
    <table><tbody>${KEYS.map(([key, text]) => html`<tr><td><kbd>${key}</kbd></td><td>${text}</td></tr>`)}</tbody></table>
    <form method="dialog"><button>Close</button></form>
  </div></dialog>`;
}

applyTheme();
render(html`<${App} />`, document.getElementById("app"));
if (!EXPORTED) follow();
