// The audit chain's state, and what another policy file would have decided on what is on record.
import { html } from "../lib/html.js";
import { useApi, usePages } from "../lib/api.js";
import { brief, clock, number, plain, plural } from "../lib/format.js";
import { link } from "../lib/router.js";
import { Choice, More } from "./filters.js";
import { Line } from "./text.js";
import { Badge, Card, Facts, Failed, Ready } from "./ui.js";

const STATES = { absent: ["not kept", "warn"], checking: ["checking …", "accent"], ok: ["whole", "good"], broken: ["broken", "bad"] };

export function AuditState({ source }) {
  const result = useApi("governance/audit", { source }, { busy: ["checking"] });
  return html`<${Ready} result=${result} lines=${3}>${(data) => {
    const [words, kind] = STATES[data.state] ?? [data.state, ""];
    return html`<${Card} title="Audit chain" aside=${html`<${Badge} value=${words} kind=${kind} />`}>
      ${data.state === "absent" ? html`<p class="muted">This source has no audit record, so nothing here proves that its decisions were not changed.</p>`
        : data.state === "checking" ? html`<p class="muted" role="status">Every entry is hashed again; this takes a while on a long record.</p>` : html`<div class="stack">
        ${data.problem && html`<p class="banner bad" role="alert">${plain(data.problem)}${data.first_bad !== null && ` (entry ${number(data.first_bad)})`}</p>`}
        <${Facts} items=${[
          ["Entries", number(data.entries)], ["Chains", number(data.writers)], ["Signed entries", number(data.signed)], ["Unsigned entries", number(data.unsigned)],
          ["Texts erased", number(data.erased)], ["Checked", clock(data.checked_at)], ["Key", data.key && html`<span class="mono small">${plain(data.key)}</span>`, data.key_trusted ? "trusted" : "not compared with one that you trust"],
        ]} />
        ${data.state === "ok" && html`<ul class="plain">${data.words.split("\n").slice(1).map((line) => html`<li>${plain(line)}</li>`)}</ul>`}
        <p class="small muted mono">${plain(data.place)}</p>
        ${data.heads.length > 0 && html`<details><summary>${plural(data.heads_count ?? data.heads.length, "head")}, the newest first</summary><div class="scroll" tabindex="0"><table>
          <thead><tr><th class="num">Head</th><th class="num">At entry</th><th class="num">Signed at</th></tr></thead>
          <tbody>${data.heads.map((head) => html`<tr><td class="num">${head.number}</td><td class="num">${number(head.position)}</td><td class="num">${clock(head.at)}</td></tr>`)}</tbody></table></div></details>`}
      </div>`}<//>`;
  }}<//>`;
}

export function Replay({ source, route }) {
  const policies = useApi("governance/policies", { source });
  const name = route.query.get("replay");
  if (!policies.data?.items.length) return null;
  return html`<${Card} title="Another policy on what is on record" aside=${html`<${Choice} route=${route} name="replay" label="Policy file" all="choose one" options=${policies.data.items.map((one) => one.name)} />`}>
    ${name ? html`<${Changes} source=${source} policy=${name} />` : html`<p class="muted">Choose a policy file: its decisions are worked out again for every recorded act. Nothing is run and nothing is written.</p>`}<//>`;
}

function Changes({ source, policy }) {
  const pages = usePages("governance/replay", { source, policy, limit: 20 }, { busy: ["running"], enough: 20 });
  return html`<${Ready} result=${pages.first} lines=${3}>${(data) => {
    if (data.state === "running") return html`<p role="status">Replaying …</p>`;
    if (data.state === "failed") return html`<${Failed} error=${data.error ?? { message: "The replay failed." }} />`;
    return html`<div class="stack"><${Facts} items=${[
        ["Judged", number(data.judged)], ["Blocked then", number(data.blocked_then)], ["Blocked now", number(data.blocked_now)], ["Changed", number(data.changed)],
        ["Without a decision", number(data.without_decision)], ["Arguments missing", number(data.incomplete)],
      ]} />
      ${data.changed === 0 ? html`<p class="muted">No decision changes.</p>` : html`<div class="scroll" tabindex="0"><table>
        <thead><tr><th>Then</th><th>Now</th><th>Tool</th><th>Arguments</th><th>Reason</th><th>Rollout</th></tr></thead>
        <tbody>${pages.items.map((one) => html`<tr data-row><td><${Badge} value=${one.then} title=${`${one.then_policy} / ${one.then_rule}`} /></td><td><${Badge} value=${one.now} title=${`${one.now_policy} / ${one.now_rule}`} /></td>
          <td class="mono">${plain(one.name)}</td><td class="wide"><${Line} value=${one.arguments} /></td><td class="wide" dir="auto">${plain(one.reason)}</td>
          <td><a class="mono" href=${link(["rollout", one.rollout_id], { source, attempt: one.attempt })}>${brief(one.rollout_id)}</a></td></tr>`)}</tbody></table></div><${More} pages=${pages} noun="change" />`}</div>`;
  }}<//>`;
}
