// Doctor: why is it not learning, and is it cheating? Findings with their figures and the rollouts behind them.
import { html } from "../lib/html.js";
import { useApi } from "../lib/api.js";
import { number, plain, plural } from "../lib/format.js";
import { link } from "../lib/router.js";
import { SourceChoice, sourceOf } from "../parts/filters.js";
import { Badge, Card, Empty, Failed, Head, Loading, Ready } from "../parts/ui.js";

const SHOWN = 12;

export function Doctor({ route, sources }) {
  const source = sourceOf(route, sources);
  const result = useApi("doctor", { source: source.id }, { busy: ["running"] });
  return html`<${Head} title="Doctor" sub=${`${source.name}: why is it not learning, and is it cheating?`}><${SourceChoice} route=${route} sources=${sources} /><//>
    <${Ready} result=${result}>${(data) => {
      if (data.state === "running") return html`<p role="status" class="muted">Reading the whole run; a long one takes a while.</p><${Loading} />`;
      if (data.state === "failed") return html`<${Failed} error=${data.error ?? { message: "The check failed." }} retry=${result.reload} />`;
      if (data.state === "absent") return html`<${Empty} title="No findings to show">This version has no checks for this source. <code>lgov doctor</code> says more.<//>`;
      return html`${data.findings.length === 0
          ? data.checked.length
            ? html`<${Empty} title="Nothing was found">${plural(data.checked.length, "check")} found nothing wrong with this source.<//>`
            : html`<${Empty} title="Nothing was examined">The checks are for trainings; each says below what it needs.<//>`
          : data.findings.map((finding) => html`<${Finding} key=${finding.name} finding=${finding} source=${source.id} />`)}
        <${Checked} data=${data} />`;
    }}<//>`;
}

function Finding({ finding, source }) {
  const { name, title, severity, text, fix, figures, rollouts } = finding;
  return html`<${Card} label=${plain(title)} title=${html`<span class="row"><${Badge} value=${severity} /> ${plain(title)}</span>`} aside=${html`<code class="mono muted">${plain(name)}</code>`}>
    <div class="stack">
      <p>${plain(text)}</p>
      ${Object.keys(figures).length > 0 && html`<dl class="facts">${Object.entries(figures).map(([key, value]) =>
        html`<div><dt>${plain(key.replaceAll("_", " "))}</dt><dd>${typeof value === "number" ? number(value) : plain(value)}</dd></div>`)}</dl>`}
      <p class="hint"><b>What to do:</b> ${plain(fix)}</p>
      ${rollouts.length > 0 && html`<div class="row small"><span class="muted">Rollouts behind it:</span>${rollouts.slice(0, SHOWN).map((id) =>
        html`<a class="mono" data-row href=${link(["rollout", id], { source })}>${plain(id)}</a>`)}${rollouts.length > SHOWN && html`<span class="muted">and ${rollouts.length - SHOWN} more</span>`}</div>`}
    </div><//>`;
}

function Checked({ data }) {
  const found = new Set(data.findings.map((finding) => finding.name));
  const left = data.not_examined ?? {};
  const badge = (name) => {
    const [kind, title] = found.has(name) ? ["bad", "found"] : ["good", "not found"];
    return html`<${Badge} value=${name} kind=${kind} title=${title} />`;
  };
  return html`<${Card} title="What was looked for"><div class="stack"><div class="row">${data.checked.map(badge)}</div>
    ${Object.entries(left).map(([name, why]) => html`<p class="small muted"><b>${plain(name)}</b> was not examined: ${plain(why)}</p>`)}</div><//>`;
}
