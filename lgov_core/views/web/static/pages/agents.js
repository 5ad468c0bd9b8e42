// Agent runs: what was asked, what was answered, what it took and what was blocked.
import { html } from "../lib/html.js";
import { useApi, usePages } from "../lib/api.js";
import { clock, number, plain, plural, seconds } from "../lib/format.js";
import { link } from "../lib/router.js";
import { Choice, More, Search, SourceChoice, sourceOf } from "../parts/filters.js";
import { Badge, Card, Conversation, Empty, Head, Ready } from "../parts/ui.js";

const FILTERS = ["agent", "outcome", "denied", "policy", "rule", "text"];
const DENIED = [["1", "something was blocked"], ["would", "shadow mode would have blocked"], ["0", "nothing was blocked"]];

export function AgentRuns({ route, sources }) {
  const source = sourceOf(route, sources);
  const filters = Object.fromEntries(FILTERS.map((name) => [name, route.query.get(name)]));
  const choices = useApi("filters", { source: source.id }).data ?? {};
  const pages = usePages("agent-runs", { source: source.id, ...filters }, { what: ["rollouts", "calls", "decisions"], enough: 20 });
  const filtered = FILTERS.some((name) => filters[name]);
  return html`<${Head} title="Agent runs" sub=${`${source.name}: ${plural(source.counts.rollouts, "run")}`} />
    <form class="filters" role="search" aria-label="Filter runs" onSubmit=${(event) => event.preventDefault()}>
      <${Search} route=${route} placeholder="text, tool, rule …  ( / )" />
      <${SourceChoice} route=${route} sources=${sources} />
      ${(choices.agents?.length ?? 0) > 1 && html`<${Choice} route=${route} name="agent" label="Agent" options=${choices.agents} />`}
      <${Choice} route=${route} name="outcome" label="Outcome" options=${choices.outcomes} />
      <${Choice} route=${route} name="denied" label="Decisions" options=${DENIED} />
      <${Choice} route=${route} name="policy" label="Policy" options=${choices.policies} />
      <${Choice} route=${route} name="rule" label="Rule" options=${choices.rules} />
      ${filtered && html`<a href=${link("agents", { source: route.query.get("source") })}>Clear filters</a>`}
    </form>
    <${Ready} result=${pages.first} lines=${12}>${() =>
      !pages.items.length && !pages.cursor
        ? html`<${Empty} title=${filtered ? "No run matches" : "No runs yet"}>${filtered ? "Take a filter away, or search for another text." : "A run appears here with the first thing that is recorded of it."}<//>`
        : html`<${Runs} items=${pages.items} /><${More} pages=${pages} noun="run" />`}<//>`;
}

function Runs({ items }) {
  const money = items.some((row) => row.cost !== null && row.cost !== undefined);
  return html`<${Card} flush label="Agent runs"><div class="scroll" tabindex="0"><table>
    <thead><tr><th>Begun</th><th>Asked</th><th>Answered</th><th>Agents</th><th>End</th><th class="num">Model calls</th><th class="num">Tool calls</th>
      <th class="num">Blocked</th><th class="num">Tokens</th>${money && html`<th class="num">Cost</th>`}<th class="num">Took</th></tr></thead>
    <tbody>${items.map((row) => html`<${Run} row=${row} money=${money} />
      ${row.conversations?.map((part) => html`<${Run} row=${part} of=${row} money=${money} />`)}`)}</tbody></table></div><//>`;
}

/** A run, or one of the conversations `of` a run. A run with several is asked and answered in them. */
function Run({ row, of = row, money }) {
  const address = link(["rollout", of.rollout_id], { source: of.source, attempt: of.attempt, conversation: row.conversation });
  const several = row.conversations?.length > 0;
  return html`<tr data-row class=${of === row ? "" : "part"}>
    <td class="nowrap"><a href=${address}>${clock(of === row ? row.created_at : row.started_at)}</a></td>
    ${several
      ? html`<td class="wide" colspan="2"><span class="mono">${plain((row.command ?? []).join(" ") || row.task_id)}</span>${" "}
          <span class="muted">${conversations(row)}</span></td>`
      : html`<td class="wide"><${Beginning} value=${row.asked} /></td><td class="wide"><${Beginning} value=${row.answered} /></td>`}
    <td>${row.agents.map(plain).join(", ") || "–"}</td>
    <td>${of === row ? html`<${End} row=${row} />` : html`<${Conversation} name=${row.conversation} />`}</td>
    <td class="num">${number(row.turns)}</td><td class="num">${number(row.tool_calls)}</td>
    <td class="num">${row.denials > 0 ? html`<${Badge} value=${number(row.denials)} kind="bad" />` : "0"}${row.would > 0 && html` <${Badge} value=${"would block " + row.would} kind="warn" />`}</td>
    <td class="num">${row.prompt_tokens === null ? "–" : number(row.prompt_tokens + (row.response_tokens ?? 0))}</td>
    ${money && html`<td class="num">${dollars(row.cost)}</td>`}<td class="num">${seconds(row.seconds)}</td></tr>`;
}

function conversations({ conversations: listed, conversation_count: count }) {
  return listed.length < count ? `${listed.length} of ${number(count)} conversations` : plural(count, "conversation");
}

const SHOWN = 140;

function Beginning({ value }) {
  if (!value?.text) return "–";
  return html`<span dir="auto" title=${plain(value.text.slice(0, 600))}>${plain(value.text.slice(0, SHOWN))}${value.text.length > SHOWN && "…"}</span>`;
}

/** How a run ended, as far as it is on record. */
function End({ row }) {
  if (row.end_recorded) return html`<${Badge} value=${row.outcome} />`;
  return row.ended ? html`<span class="muted">ended (no end recorded)</span>` : html`<${Badge} value="running" />`;
}

function dollars(value) {
  if (value === null || value === undefined) return "–";
  return "$" + (value > 0 && value < 0.01 ? value.toPrecision(2) : value.toFixed(2));
}
