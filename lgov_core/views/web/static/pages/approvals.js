// Approvals: calls that wait for a person, with exactly the arguments that the answer is bound to. The only page that writes.
import { html, useEffect, useState } from "../lib/html.js";
import { post, useApi } from "../lib/api.js";
import { ago, asText, brief, clock, plain, plural, pretty, seconds } from "../lib/format.js";
import { link } from "../lib/router.js";
import { Badge, Empty, Facts, Head, Ready } from "../parts/ui.js";

const STATES = { pending: "accent", approved: "good", rejected: "bad", used: "good", lapsed: "warn" };

export function Approvals({ route }) {
  const [all, setAll] = useState(false);
  const result = useApi("approvals", { all: all ? 1 : null }, { what: ["approvals"] });
  const session = useApi("session").data;
  const [answered, setAnswered] = useState({}); // by this window; they stay on screen
  const only = (items) => (route.parts[0] ? items.filter((item) => item.id === route.parts[0]) : items); // the link of a notice
  return html`<${Head} title="Waiting for a person" sub=${session?.approver ? `You answer as ${session.approver}` : "Calls that wait until a person answers"}><label class="check"><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> show answered requests</label><//>
    <${Ready} result=${result}>${(data) => html`
      ${!data.may_answer && html`<p class="banner warn" role="status">You can read here but not answer: open the address that lgov printed, or use an admin key.</p>`}
      ${only(withAnswered(data.items, answered)).length === 0
        ? html`<${Empty} title="Nothing waits">${data.files.length ? `Requests in ${plural(data.files.length, "file")} appear here by themselves.` : "No approvals file is known. A policy with approvals, or lgov view --approvals FILE, names one."}<//>`
        : html`<div class="stack" role="list" aria-label="Requests">${only(withAnswered(data.items, answered)).map((item) => html`<${Request} key=${item.id} item=${item} may=${data.may_answer} by=${session?.by} approver=${session?.approver}
            done=${(one) => setAnswered((all) => ({ ...all, [one.id]: one }))} reload=${result.reload} />`)}</div>`}`}<//>`;
}

/** The listed requests, and those that this window answered and the list has no longer; of one that waits, what it became. */
function withAnswered(items, answered) {
  const listed = items.map((item) => (item.state === "pending" ? (answered[item.id] ?? item) : { ...item, conflict: answered[item.id]?.conflict }));
  return [...listed, ...Object.values(answered).filter((one) => !items.some((item) => item.id === one.id))];
}

/** What a person reads and answers. The digest of what is on screen goes with the answer, so that nothing else is approved. */
function Request({ item, may, by, approver, done, reload }) {
  const waits = item.state === "pending";
  const has = item.answers.map((one) => one.by);
  return html`<div class="card" role="listitem" data-row tabindex="0" aria-label=${`Request ${plain(item.name)}, ${item.state}`}>
    <header><div class="row"><${Badge} value=${item.state} kind=${STATES[item.state]} /><h2>${plain(item.question || item.name)}</h2></div>
      <span class="muted small" title=${clock(item.asked_at)}>asked ${ago(item.asked_at)}${waits && html`, <${Remaining} waits=${item.waits_until} until=${item.until} />`}</span></header>
    <div class="body stack">
      <p class="role mono">${plain(item.name)}</p>
      <pre class="text whole" tabindex="0" role="group" aria-label="bound arguments">${pretty(item.named)}</pre>
      <${Facts} items=${[
        ["For", item.requester && plain(item.requester)],
        ["Asked by rule", plain(item.rule || "–")],
        ["Agent", item.agent && plain(item.agent)],
        ["Who may answer", item.by.length > 0 && plain(item.by.join(", "))],
        ["Approvals", item.approvers > 1 && `${has.length} of ${item.approvers}`, has.length > 0 && plain(has.join(", "))],
        ["Rollout", item.rollout_id && html`<a class="mono" href=${link(["rollout", item.rollout_id], { source: item.source })}>${brief(item.rollout_id)}</a>`],
      ]} />
      ${item.user_text && html`<div><p class="role">the user's request</p><p dir="auto">${plain(item.user_text)}</p></div>`}
      <details><summary>Everything that your answer is bound to</summary>
        <pre class="text whole" tabindex="0" role="group" aria-label="all that is bound">${pretty(item.bound)}</pre>
        <p class="small muted">SHA-256 <span class="mono">${plain(item.digest)}</span> · <span title=${plain(item.file)}>${plain(item.file.split("/").slice(-2).join("/"))}</span></p></details>
      ${!waits && item.answered_by && html`<p><${Badge} value=${item.state} kind=${STATES[item.state]} /> by <b>${plain(item.answered_by)}</b> ${clock(item.answered_at)}${item.reason && html`: <span dir="auto">${plain(item.reason)}</span>`}</p>`}
      ${item.conflict && html`<p class="banner warn" role="alert">${plain(item.conflict)}</p>`}
      ${waits && may && html`<${Answer} item=${item} by=${by} approver=${approver} done=${done} reload=${reload} />`}
    </div>
  </div>`;
}

function Remaining({ waits, until }) {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, []);
  if (waits > now) return `the call waits for another ${seconds(Math.ceil(waits - now))}`;
  return until > now ? `lapses in ${seconds(until - now)}` : "lapsed";
}

function Answer({ item, by, approver, done, reload }) {
  const [name, setName] = useState(null);
  const [reason, setReason] = useState("");
  const [state, setState] = useState({ busy: false, error: null });
  const who = approver ?? name ?? by ?? "";
  const send = async (answer) => {
    setState({ busy: true, error: null });
    try {
      done(await post(`approvals/${encodeURIComponent(item.id)}`, { answer, by: who, reason, digest: item.digest }));
    } catch (error) {
      if (error.item) done({ ...error.item, conflict: error.message });
      setState({ busy: false, error });
      if (error.code === "changed") reload();
    }
  };
  return html`<form class="row" aria-label=${`Answer ${asText(item.name)}`} onSubmit=${(event) => event.preventDefault()}>
    <label class="field">Your name <input value=${who} maxlength="200" required readonly=${Boolean(approver)} onInput=${(event) => setName(event.target.value)} /></label>
    <label class="field">Reason, if rejected <input value=${reason} maxlength="2000" onInput=${(event) => setReason(event.target.value)} /></label>
    <button type="button" class="primary" disabled=${state.busy || !who} onClick=${() => send("approve")}>Approve</button>
    <button type="button" class="danger" disabled=${state.busy || !who} onClick=${() => send("reject")}>Reject</button>
    ${state.error && html`<span class="bad" role="alert">${plain(state.error.message)} ${plain(state.error.hint ?? "")}</span>`}
  </form>`;
}
