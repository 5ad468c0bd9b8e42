// Governance: what was decided over time, by what; every decision; the audit chain; another policy on the record.
import { html, useMemo } from "../lib/html.js";
import { useApi, usePages } from "../lib/api.js";
import { brief, clock, number, plain } from "../lib/format.js";
import { changed, go, link } from "../lib/router.js";
import { AuditState, Replay } from "../parts/audit.js";
import { Chart, Legend } from "../parts/chart.js";
import { Choice, More, SourceChoice, sourceOf } from "../parts/filters.js";
import { Line } from "../parts/text.js";
import { Badge, Card, Empty, Facts, Head, Ready, Tabs, effectName, kindOf } from "../parts/ui.js";

const BY = [["policy", "Policy"], ["rule", "Rule"], ["tool", "Tool"], ["agent", "Agent"]];
const EFFECTS = ["allow", "warn", "transform", "escalate", "deny"];
const SHOWN = ["deny", ["escalate", "pending approval"], "transform", "warn", ["blocked", "deny or pending approval"], ["would", "shadow mode would have"], "allow"];
const CURVES = 6;
const COLORS = { allow: 2, warn: 1, transform: 3, escalate: 0, deny: 4 };

export function Governance({ route, sources }) {
  const source = sourceOf(route, sources);
  const by = route.query.get("by") ?? "policy";
  const result = useApi("governance", { source: source.id, by }, { what: ["decisions"] });
  return html`<${Head} title="Governance" sub=${`${source.name}: what policies decided`}><${SourceChoice} route=${route} sources=${sources} /><//>
    <${Ready} result=${result}>${(data) =>
      data.decisions === 0
        ? html`<${Empty} title="No decision is on record">Decisions appear here when an agent runs under a policy, in shadow mode too.<//>`
        : html`<${Counts} data=${data} />
          <div class="row between"><h2>Over time</h2><${Tabs} label="Group by" value=${by} options=${BY} onChange=${(next) => go(changed(route, { by: next }))} /></div>
          <${Curves} data=${data} by=${by} />
          <${Frequent} data=${data} route=${route} />`}<//>
    ${result.data?.decisions !== 0 && html`<${DecisionList} route=${route} source=${source.id} />`}
    <${AuditState} source=${source.id} />
    <${Replay} source=${source.id} route=${route} />`;
}

function Counts({ data }) {
  const would = Object.values(data.would).reduce((sum, count) => sum + count, 0);
  return html`<${Facts} items=${[
      ["Decisions", number(data.decisions)],
      ...EFFECTS.map((effect) => data.effects[effect] > 0 && [effectName(effect), html`<span class=${kindOf(effect)}>${number(data.effects[effect])}</span>`]),
      would > 0 && ["Shadow mode would have blocked", number(would)],
    ]} />`;
}

const total = (values, length) => {
  const out = new Array(length).fill(0);
  for (const column of values) column.forEach((count, at) => (out[at] += count));
  return out;
};

function Curves({ data, by }) {
  const x = data.bins.at;
  const [effects, denied] = useMemo(() => {
    const of = (effect) => total(data.series.map((one) => one.values[effect] ?? []), x.length);
    const keys = data.series.filter((one) => one.values.deny).slice(0, CURVES);
    return [
      EFFECTS.filter((effect) => data.effects[effect]).map((effect) => ({ label: effectName(effect), color: COLORS[effect], count: data.effects[effect], values: of(effect) })),
      keys.map((one, color) => ({ label: one.key, color, count: one.values.deny.reduce((sum, count) => sum + count), values: one.values.deny })),
    ];
  }, [data]);
  const card = (title, series, none) => html`<${Card} title=${title} flush aside=${html`<span class="muted small">per ${number(data.bins.width_s, 1)} s</span>`}>
    ${series.length ? html`<${Chart} title=${title} x=${x} series=${series} time /><${Legend} items=${series.map((one) => ({ ...one, value: number(one.count) }))} />` : html`<div class="state">${none}</div>`}<//>`;
  return html`<div class="grid">
    ${card("Decisions by effect", effects)}
    ${card(`Denied, by ${by}`, denied, "Nothing was denied.")}
  </div>`;
}

function Frequent({ data, route }) {
  if (!data.table.length) return html`<${Empty} title="Everything was allowed">No policy warned, rewrote, denied or asked for an approval.<//>`;
  const most = Math.max(...data.table.map((row) => row.count));
  return html`<${Card} title="Top denials, and what else was not just allowed" flush><div class="scroll" tabindex="0"><table>
    <thead><tr><th>Effect</th><th>Policy</th><th>Rule</th><th>Tool</th><th>Agent</th><th class="num">Count</th><th><span class="visually-hidden">Share</span></th></tr></thead>
    <tbody>${data.table.slice(0, 20).map((row) => html`<tr data-row>
      <td><${Badge} value=${row.effect} />${row.would && html` <${Badge} value=${"would " + row.would} kind="warn" />`}</td>
      <td>${plain(row.policy)}</td><td><a href=${changed(route, { policy: row.policy, rule: row.rule, tool: row.tool, agent: row.agent })}>${plain(row.rule)}</a></td>
      <td class="mono">${plain(row.tool || "–")}</td><td>${plain(row.agent || "–")}</td><td class="num">${number(row.count)}</td>
      <td><div class="bar ${kindOf(row.effect)}"><i style=${{ width: (100 * row.count) / most + "%" }}></i></div></td></tr>`)}</tbody></table></div><//>`;
}

function DecisionList({ route, source }) {
  const names = ["effect", "policy", "rule", "tool", "agent"];
  const filters = Object.fromEntries(names.map((name) => [name, route.query.get(name)]));
  const choices = useApi("filters", { source }).data ?? {};
  const pages = usePages("governance/decisions", { source, ...filters, limit: 20 }, { what: ["decisions"], enough: 20 });
  const clear = Object.fromEntries(names.map((name) => [name, ""]));
  return html`<${Card} title="Decisions" flush aside=${html`<div class="filters">
      <${Choice} route=${route} name="effect" label="Effect" options=${SHOWN} all="all but allow" />
      <${Choice} route=${route} name="policy" label="Policy" options=${choices.policies} />
      <${Choice} route=${route} name="rule" label="Rule" options=${choices.rules} />
      <${Choice} route=${route} name="tool" label="Tool" options=${choices.tools} />
      ${names.some((name) => filters[name]) && html`<a href=${changed(route, clear)}>Clear</a>`}</div>`}>
    <${Ready} result=${pages.first} lines=${4}>${() => !pages.items.length && !pages.cursor
      ? html`<div class="state">No decision matches.</div>`
      : html`<div class="scroll" tabindex="0"><table><thead><tr><th>At</th><th>Effect</th><th>Policy / rule</th><th>What</th><th>Reason</th><th>Rollout</th></tr></thead>
        <tbody>${pages.items.map((one) => html`<tr data-row>
          <td class="num">${clock(one.at)}</td><td><${Badge} value=${one.effect} />${one.would && html` <${Badge} value=${"would " + one.would} kind="warn" />`}</td>
          <td>${plain(one.policy)} / ${plain(one.rule)}</td><td class="mono">${plain(one.tool || one.action)} <span class="muted small">${plain(one.point)}</span></td>
          <td class="wide" dir="auto">${plain(one.reason)}${one.about && html`<${Line} value=${one.about} />`}</td>
          <td>${one.rollout_id ? html`<a class="mono" href=${link(["rollout", one.rollout_id], { source, attempt: one.attempt })}>${brief(one.rollout_id)}</a>` : "–"}</td></tr>`)}</tbody></table></div>
        <div class="body-pad"><${More} pages=${pages} noun="decision" /></div>`}<//><//>`;
}
