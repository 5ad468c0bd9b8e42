// One step: what the model read, what it wrote, what its tools did, who decided and what was rewarded.
import { html } from "../lib/html.js";
import { number, plain, seconds, signed } from "../lib/format.js";
import { Decisions, Rewards } from "./decision.js";
import { Text } from "./text.js";
import { ToolState } from "./timeline.js";
import { Badge } from "./ui.js";

/** `origin` says where the result of an earlier tool is. */
export function Messages({ step, source, part = null, origin = null }) {
  return html`<div class="stack">
    ${step.messages.map((message, i) => html`<${Message} key=${i} role=${message.role} value=${message.text} source=${source} />`)}
    <${Message} role="assistant" wrote value=${step.wrote} source=${source} marked=${part?.where === "wrote"}>
      <${Decisions} decisions=${step.decisions} source=${source} />
      <div class="row"><${Rewards} rewards=${step.rewards} /></div>
    <//>
    ${step.tools.map((tool, i) => html`<${Tool} key=${tool.call_id + i} tool=${tool} source=${source} marked=${part?.tool === i} origin=${origin} />`)}
  </div>`;
}

function Message({ role, value, source, wrote = false, marked = false, children }) {
  return html`<div role="group" class="message ${wrote ? "wrote" : ""} ${marked ? "marked" : ""}" aria-label=${`${plain(role)} message`}>
    <p class="role">${plain(role)}${wrote && html` <span class="muted">wrote</span>`}</p>
    <${Text} value=${value} source=${source} label=${`${plain(role)} text`} none=${wrote ? "no text" : "not recorded"} />
    ${children}
  </div>`;
}

export function Tool({ tool, source, marked = false, origin = null }) {
  return html`<div role="group" class="message tool-call ${marked ? "marked" : ""}" aria-label=${"Tool call " + plain(tool.name)}>
    <div class="row between"><p class="role mono">${plain(tool.name)}</p>
      <span class="row"><${Rewards} rewards=${tool.rewards} />${tool.claimed && html`<${Badge} value="claimed" title="Reported from outside, not recorded here" />`}<${ToolState} tool=${tool} /></span></div>
    <${Text} value=${tool.arguments} source=${source} json label="arguments" none="no arguments recorded" />
    <${Sources} decisions=${tool.decisions} origin=${origin} />
    <${Decisions} decisions=${tool.decisions} source=${source} />
    ${tool.result && html`<p class="role">result</p><${Text} value=${tool.result} source=${source} json label="result" />`}
    ${tool.error && tool.error !== tool.status && html`<p class="bad" dir="auto">${plain(tool.error)}</p>`}
  </div>`;
}

/** Which text the value of each argument is in, as a rule about flows saw it: coloured by who wrote the text. */
function Sources({ decisions, origin }) {
  const sources = Object.entries(Object.assign({}, ...decisions.map((decision) => decision.sources)));
  const kind = (text) => (text === "user" || text === "system" ? "good" : text === "the model" ? "" : "warn");
  return sources.length > 0 && html`<ul class="edges row small" aria-label="where the arguments come from">${sources.map(([argument, texts]) =>
    html`<li class="chip ${kind(texts[0])}"><span class="mono">${plain(argument)}</span> ← ${texts.map((text) => {
      const badge = html`<${Badge} value=${text} kind=${kind(text)} title=${kind(text) === "warn" ? "a result of this tool has the value" : ""} />`;
      const address = kind(text) === "warn" && origin?.(text.split(":")[0]);
      return address ? html`<a href=${address}>${badge}</a>` : badge;
    })}</li>`)}</ul>`;
}

/** What is known of the call, in one line. */
export function StepFacts({ step }) {
  const took = step.started_at && step.ended_at ? step.ended_at - step.started_at : null;
  const parts = [
    ["agent", step.agent && plain(step.agent)], ["model", plain(step.model)], ["weights", step.weights_version],
    ["tokens", step.response_tokens === null ? null : `${number(step.prompt_tokens)} → ${number(step.response_tokens)}`],
    ["ended by", plain(step.finish_reason || "–")], ["took", took === null ? null : seconds(took)],
    ["return", step.return === null ? null : signed(step.return)], ["advantage", step.advantage === null ? null : signed(step.advantage)],
  ];
  return html`<dl class="inline">${parts.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
