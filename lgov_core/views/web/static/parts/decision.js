// Decisions and rewards as they stand beside the call they belong to.
import { html } from "../lib/html.js";
import { plain, signed } from "../lib/format.js";
import { link } from "../lib/router.js";
import { Badge } from "./ui.js";
import { Text } from "./text.js";

export function Decision({ decision, source }) {
  const { effect, would, policy, rule, reason, severity, point, action, rewritten } = decision;
  return html`<div class="decision ${decision.blocks ? "blocks" : ""}">
    <div class="row"><${Badge} value=${effect} />${would && html`<${Badge} value=${"would " + would} kind="warn" title="Shadow mode kept it from being enforced" />`}
      <a href=${link("governance", { source, policy, rule })}><b>${plain(policy)}</b> / ${plain(rule)}</a>
      <span class="muted small">${plain(point)}${action ? " · " + plain(action) : ""}${effect !== "allow" ? " · " + plain(severity) : ""}</span></div>
    ${reason && html`<p dir="auto">${plain(reason)}</p>`}
    ${decision.about && html`<${Text} value=${decision.about} source=${source} json label="what it is about" />`}
    ${rewritten && html`<div class="split"><div><p class="role">before</p><${Text} value=${rewritten.before} source=${source} json label="arguments before" /></div>
      <div><p class="role">after</p><${Text} value=${rewritten.after} source=${source} json label="arguments after" /></div></div>`}
  </div>`;
}

/** The decisions worth reading; the routine ones behind a switch. */
export function Decisions({ decisions, source, routine = false }) {
  const shown = decisions.filter((one) => routine || !one.routine);
  const hidden = decisions.length - shown.length;
  return html`${shown.map((one) => html`<${Decision} decision=${one} source=${source} />`)}
    ${hidden > 0 && html`<details class="small"><summary>${hidden} routine ${hidden === 1 ? "decision" : "decisions"}</summary>
      ${decisions.filter((one) => one.routine).map((one) => html`<${Decision} decision=${one} source=${source} />`)}</details>`}`;
}

export function Rewards({ rewards }) {
  return rewards.map(({ dimension, value, source }) =>
    html`<${Badge} value=${`${dimension} ${signed(value, 2)}`} kind=${value > 0 ? "good" : value < 0 ? "bad" : ""} title=${`reward by ${plain(source)}`} />`);
}
