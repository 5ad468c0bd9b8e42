// Tasks: the rollouts of each task side by side, which is what training compares.
import { html, useState } from "../lib/html.js";
import { useApi, usePages } from "../lib/api.js";
import { number, plain, plural, signed } from "../lib/format.js";
import { link } from "../lib/router.js";
import { Choice, More, Search, SourceChoice, sourceOf } from "../parts/filters.js";
import { Badge, Empty, Failed, Head, Ready, kindOf } from "../parts/ui.js";

const FILTERS = ["run", "task", "agent", "outcome", "denied", "policy", "rule", "teaches", "text"];
const DENIED = [["1", "something was blocked"], ["would", "shadow mode would have blocked"], ["0", "nothing was blocked"]];

export function Tasks({ route, sources }) {
  const source = sourceOf(route, sources);
  const filters = Object.fromEntries(FILTERS.map((name) => [name, route.query.get(name)]));
  const choices = useApi("filters", { source: source.id }).data ?? {};
  const pages = usePages("tasks", { source: source.id, ...filters }, { what: ["rollouts"], enough: 20 });
  const filtered = FILTERS.some((name) => filters[name]);
  return html`<${Head} title="Tasks" sub=${`${source.name}: ${plural(source.counts.rollouts, "rollout")} in groups, one group a task`} />
    <form class="filters" role="search" aria-label="Filter tasks" onSubmit=${(event) => event.preventDefault()}>
      <${Search} route=${route} />
      <${SourceChoice} route=${route} sources=${sources} />
      ${(choices.runs?.length ?? 0) > 1 && html`<${Choice} route=${route} name="run" label="Run" options=${choices.runs} />`}
      ${(choices.agents?.length ?? 0) > 1 && html`<${Choice} route=${route} name="agent" label="Agent" options=${choices.agents} />`}
      <${Choice} route=${route} name="outcome" label="Outcome" options=${choices.outcomes} />
      <${Choice} route=${route} name="denied" label="Decisions" options=${DENIED} />
      <${Choice} route=${route} name="policy" label="Policy" options=${choices.policies} />
      <${Choice} route=${route} name="rule" label="Rule" options=${choices.rules} />
      <${Choice} route=${route} name="teaches" label="Teaches" options=${[["nothing", "nothing"], ["something", "something"]]} />
      ${filtered && html`<a href=${link("tasks", { source: route.query.get("source") })}>Clear filters</a>`}
    </form>
    <p class="small muted">Each tile is a rollout with its return: <span class="bad">✕</span> blocked, <span class="warn">◌</span> shadow mode would have blocked, <span class="warn">…</span> a reply cut at the limit of tokens.</p>
    <${Ready} result=${pages.first} lines=${12}>${() =>
      !pages.items.length && !pages.cursor
        ? pages.error
          ? html`<${Failed} error=${pages.error} />`
          : html`<${Empty} title=${filtered ? "No task matches" : "No rollouts yet"}>${filtered ? "Take a filter away, or search for another text." : "They appear here as soon as they are recorded."}<//>`
        : html`<div class="stack" role="list" aria-label="Tasks">${pages.items.map((group) => html`<${Group} key=${group.run_id + " " + group.task_id} group=${group} />`)}</div>
          <${More} pages=${pages} noun="task" />`}<//>`;
}

function Group({ group }) {
  const { rollouts } = group;
  const [open, setOpen] = useState(false);
  return html`<div class="card" role="listitem" data-row tabindex="0" aria-label=${"Task " + plain(group.task_id)}>
    <header>
      <div class="row"><h2 class="mono">${plain(group.task_id)}</h2>
        ${group.teaches_nothing && html`<${Badge} value="teaches nothing" kind="warn" title=${group.why ?? undefined} />`}
        ${group.teaches_nothing && group.why && html`<span class="muted small">${plain(group.why)}</span>`}</div>
      <div class="row small muted">
        ${group.return && html`<span>${group.count > 1 ? "mean return" : "return"} <b>${signed(group.return.mean)}</b></span>${group.count > 1 && html` <span title="greatest less least return">spread <b>${number(group.return.spread)}</b></span>`}`}
        ${Object.entries(group.outcomes).map(([outcome, count]) => html`<${Badge} value=${`${count} ${outcome}`} kind=${kindOf(outcome)} />`)}
        ${group.denials > 0 && html`<${Badge} value=${plural(group.denials, "blocked call")} kind="bad" />`}
        ${group.count > 1 && html`<button class="link" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>${open ? "Fold" : "Side by side"}</button>`}
      </div>
    </header>
    <div class="body tight ${group.count === 1 ? "single" : ""}">
      ${group.input && html`<p class="mono ellipsis" title=${plain(group.input.text.slice(0, 600))}>${plain(group.input.text)}</p>`}
      <div class="group">${rollouts.map((row) => html`<${RolloutChip} row=${row} />`)}
        ${group.count > rollouts.length && html`<a class="chip" href=${link("tasks", { source: group.source, run: group.run_id, task: group.task_id })}>${group.count - rollouts.length} more</a>`}</div>
    </div>
    ${open && html`<${SideBySide} rollouts=${rollouts} rewards=${group.rewards} />`}
  </div>`;
}

const address = (row) => link(["rollout", row.rollout_id], { source: row.source, attempt: row.attempt });

function RolloutChip({ row }) {
  const words = `${row.outcome}, return ${number(row.return)}, ${plural(row.turns, "turn")}, ${plural(row.denials, "blocked call")}`;
  return html`<a class="chip ${kindOf(row.outcome)}" href=${address(row)} title=${words}>
    <span class="visually-hidden">Rollout ${words}: </span>
    ${row.return === null ? row.outcome : signed(row.return, 2)}
    ${row.denials > 0 && html`<span class="bad" aria-hidden="true">✕${row.denials > 1 ? row.denials : ""}</span>`}
    ${row.would > 0 && html`<span class="warn" aria-hidden="true">◌</span>`}
    ${row.truncated > 0 && html`<span class="warn" aria-hidden="true">…</span>`}</a>`;
}

/** One column a rollout, one line a figure; what differs in the group is printed bold. */
function SideBySide({ rollouts, rewards }) {
  const dimensions = Object.keys(rewards).length ? Object.keys(rewards) : [...new Set(rollouts.flatMap((row) => Object.keys(row.rewards)))];
  const lines = [
    ["outcome", (row) => html`<${Badge} value=${row.outcome} />`, (row) => row.outcome],
    ...dimensions.map((name) => [`${name} reward`, (row) => signed(row.rewards[name], 2), (row) => row.rewards[name]]),
    ["return", (row) => signed(row.return, 2), (row) => row.return],
    ["turns", (row) => row.turns],
    ["blocked calls", (row) => row.denials],
    ["would be denied", (row) => row.would],
    ["reply tokens", (row) => number(row.response_tokens)],
    ["truncated replies", (row) => row.truncated],
    ["weights", (row) => row.weights_version?.join(" … ") ?? "–"],
    ["attempts", (row) => row.attempts],
  ].filter(([name, show, raw = show]) => !["would be denied", "truncated replies"].includes(name) || rollouts.some(raw));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Rollouts side by side"><table>
    <thead><tr><th scope="col">Rollout</th>${rollouts.map((row, at) => html`<th class="num" scope="col"><a href=${address(row)} title=${plain(row.rollout_id)}>${at + 1}</a></th>`)}</tr></thead>
    <tbody>${lines.map(([name, show, raw = show]) => {
      const differs = new Set(rollouts.map(raw)).size > 1;
      return html`<tr><th scope="row">${plain(name)}</th>${rollouts.map((row) => html`<td class="num">${differs ? html`<b>${show(row)}</b>` : show(row)}</td>`)}</tr>`;
    })}</tbody></table></div>`;
}
