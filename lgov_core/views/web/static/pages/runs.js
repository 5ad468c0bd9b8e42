// Runs: what each run is, and its curves over each other.
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { get, useApi, useChanges } from "../lib/api.js";
import { ago, clock, number, plain, plural } from "../lib/format.js";
import { changed, go, link } from "../lib/router.js";
import { Chart, Legend, colorClass, last } from "../parts/chart.js";
import { Badge, Card, Empty, Head, Ready } from "../parts/ui.js";

const SHOWN_AT_FIRST = 4;
const NO_RUN = "-"; // in the address: no run is drawn
const DASHES = [undefined, [6, 4], [2, 3], [10, 3, 2, 3]];

export function Runs({ route, sources }) {
  const runs = useApi("runs", {}, { what: ["metrics", "state", "rollouts"] });
  return html`<${Head} title="Trainings" sub=${plural(sources.length, "source")} />
    <${Ready} result=${runs}>${(data) => {
      const drawn = data.items.filter((run) => run.steps > 0).map((run) => run.source);
      const asked = route.query.getAll("show");
      const shown = asked.length ? asked.filter((id) => drawn.includes(id)) : drawn.slice(0, SHOWN_AT_FIRST);
      return html`<${Table} items=${data.items} shown=${shown} drawn=${drawn} route=${route} />
        <${Evaluations} items=${data.items} />
        ${drawn.length
          ? html`<${Panels} shown=${shown} items=${data.items} />`
          : html`<${Empty} title="No figures of a training yet">This store was not written by a training, or the first update is not done.${" "}
              <a href=${link("agents")}>Look at the agent's runs</a> instead.<//>`}`;
    }}<//>`;
}

function Table({ items, shown, drawn, route }) {
  const toggle = (id) => {
    const next = shown.includes(id) ? shown.filter((one) => one !== id) : [...shown, id];
    go(changed(route, { show: next.length ? next : NO_RUN }));
  };
  const measured = items.some((run) => "executed" in run.latest);
  const row = (run) => html`<tr data-row>
    <td><label class="check">${drawn.includes(run.source) && html`<input type="checkbox" checked=${shown.includes(run.source)} onChange=${() => toggle(run.source)} aria-label=${"Draw " + plain(run.name)} />
      ${shown.includes(run.source) && html`<span class="legend"><i class=${colorClass(shown.indexOf(run.source))}></i></span>`}`}</label></td>
    <td class="nowrap"><a href=${link("tasks", { source: run.source })}>${plain(run.name)}</a></td>
    <td><${Badge} value=${run.state} kind=${{ live: "good", stalled: "warn", unreadable: "bad" }[run.state]} /></td>
    <td>${plain(run.model ?? "–")}</td>
    <td>${plain(run.algorithm ?? "–")}</td>
    <td class="num">${number(run.steps)}</td>
    <td class="num">${number(run.rollouts)}</td>
    <td class="num">${number(run.latest["rewards/task"])}</td>
    <td class="num"><a href=${link("tasks", { source: run.source, denied: 1 })} title="The tasks in which something was denied">${number(run.latest.violation_rate)}</a></td>
    ${measured && html`<td class="num">${number(run.latest.executed)}</td>`}
    <td class="num" title=${clock(run.last_write_at)}>${ago(run.last_write_at)}</td>
  </tr>`;
  return html`<${Card} flush label="Trainings"><div class="scroll" tabindex="0"><table>
    <thead><tr><th><span class="visually-hidden">Draw</span></th><th>Run</th><th>State</th><th>Model</th><th>Algorithm</th><th class="num">Updates</th><th class="num">Rollouts</th>
      <th class="num">Task reward</th><th class="num" title="Share of rollouts that tried something forbidden">Violations</th>${measured && html`<th class="num" title="Share of rollouts in which it was executed">Executed</th>`}<th class="num">Last write</th></tr></thead>
    <tbody>${items.map(row)}</tbody></table></div><//>`;
}

const PHASE_FIGURES = [["rollouts", "Rollouts"], ["outcomes/succeeded", "Succeeded"], ["reward", "Task reward"], ["accuracy", "Success"], ["counts/violations", "Violations"], ["executed", "Executed"]];

/** What was measured before, during and after training, on tasks that it does not learn from. */
function Evaluations({ items }) {
  const rows = items.flatMap((run) => run.phases.map((phase) => ({ run: run.name, ...phase })));
  const shown = PHASE_FIGURES.filter(([name]) => rows.some((row) => name in row.figures));
  if (!rows.length) return null;
  return html`<${Card} title="Evaluations" flush><div class="scroll" tabindex="0"><table>
    <thead><tr><th>Run</th><th>When</th><th class="num">Update</th>${shown.map(([, title]) => html`<th class="num">${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr><td>${plain(row.run)}</td><td>${plain(row.phase)}</td><td class="num">${number(row.step)}</td>
      ${shown.map(([name]) => html`<td class="num">${number(row.figures[name])}</td>`)}</tr>`)}</tbody></table></div><//>`;
}

/** The curves of each shown run, read once and then only what is new. */
function useCurves(shown) {
  const [curves, setCurves] = useState({});
  const read = (id) =>
    get(`runs/${encodeURIComponent(id)}`, { after: last(curves[id]?.steps ?? []) }).then(
      (answer) => setCurves((now) => ({ ...now, [id]: joined(now[id], answer) })),
      (error) => setCurves((now) => ({ ...now, [id]: { ...(now[id] ?? {}), error } })),
    );
  useEffect(() => shown.forEach((id) => curves[id]?.steps || read(id)), [shown.join()]);
  useChanges(["metrics"], null, () => shown.forEach(read));
  return curves;
}

/** Two pieces of a run's curves as one. A name that only one of them has is null in the other. */
export function joined(old, more) {
  if (!old?.steps) return more;
  const from = more.steps.findIndex((step) => step > (last(old.steps) ?? -1));
  if (from < 0) return { ...more, steps: old.steps, series: old.series, panels: old.panels };
  const series = {};
  for (const name of new Set([...Object.keys(old.series), ...Object.keys(more.series)])) {
    const column = (field) => {
      const before = old.series[name]?.[field] ?? old.steps.map(() => null);
      const after = (more.series[name]?.[field] ?? more.steps.map(() => null)).slice(from);
      return [...before, ...after];
    };
    const bounded = old.series[name]?.low || more.series[name]?.low;
    series[name] = { values: column("values"), low: bounded ? column("low") : null, high: bounded ? column("high") : null };
  }
  return { ...more, steps: [...old.steps, ...more.steps.slice(from)], series };
}

function Panels({ shown, items }) {
  const curves = useCurves(shown);
  const ready = shown.filter((id) => curves[id]?.steps);
  const failed = shown.find((id) => curves[id]?.error);
  const panels = useMemo(() => merged(ready, curves, items), [ready.join(), curves, items]);
  if (!shown.length) return html`<${Empty} title="No run is chosen">Tick a run in the table to draw its curves.<//>`;
  return html`${failed && html`<p class="banner bad" role="alert">${plain(curves[failed].error.message)}</p>`}
    <div class="grid" role="group" aria-label="Curves">${panels.map(
      (panel) => html`<${Card} key=${panel.title} title=${panel.title} flush aside=${html`<span class="muted small">${panel.unit && plain(panel.unit) + " "}by update</span>`}>
        <${Chart} title=${panel.title} x=${panel.x} series=${panel.series} />
        <${Legend} items=${panel.series.map((one) => ({ label: one.label, color: one.color, dash: one.dash, value: number(last(one.values)) }))} />
      <//>`,
    )}</div>`;
}

/** Panels over all shown runs: one run has a colour a series, several have a colour a run and a dash a series. */
function merged(ids, curves, items) {
  const x = [...new Set(ids.flatMap((id) => curves[id].steps))].sort((a, b) => a - b);
  const place = new Map(x.map((step, at) => [step, at]));
  const spread = (steps, values) => {
    const out = new Array(x.length).fill(null);
    steps.forEach((step, at) => (out[place.get(step)] = values[at]));
    return out;
  };
  const titles = new Map(ids.flatMap((id) => curves[id].panels.map((panel) => [panel.title, panel])));
  return [...titles.values()].map(({ title, unit }) => {
    const series = ids.flatMap((id, run) => {
      const { steps, series: named, panels } = curves[id];
      const names = panels.find((panel) => panel.title === title)?.series ?? [];
      return names.filter((name) => named[name]).map((name, at) => {
        const { values, low, high } = named[name];
        const short = name.replace(/^.*\//, "").replaceAll("_", " ");
        const label = ids.length > 1 ? `${items.find((item) => item.source === id)?.name}: ${short}` : short;
        return {
          label, color: ids.length > 1 ? run : at, dash: ids.length > 1 ? DASHES[at % DASHES.length] : undefined,
          values: spread(steps, values), low: low && spread(steps, low), high: high && spread(steps, high),
        };
      });
    });
    return { title, unit, x, series };
  });
}
