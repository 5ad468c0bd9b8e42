// The steps of a rollout in order, indented by agent, each with its tool calls, denials and rewards.
import { html } from "../lib/html.js";
import { number, plain, seconds } from "../lib/format.js";
import { Rewards } from "./decision.js";
import { Badge, Conversation } from "./ui.js";

/** `agents` are the agent runs, `at` the index of the open step, `address(step)` where a step is opened. */
export function Timeline({ steps, agents, at, address }) {
  const span = extent(steps);
  const several = new Set(steps.map((step) => step.conversation)).size > 1;
  return html`<ol class="timeline" aria-label="Turns">${steps.map((step, i) => html`
    ${several && (i === 0 || steps[i - 1].conversation !== step.conversation) && html`<li class="agent"><${Conversation} name=${step.conversation} /></li>`}
    ${(i === 0 || steps[i - 1].agent_id !== step.agent_id || steps[i - 1].agent !== step.agent) && step.agent &&
      html`<li class="agent depth-${Math.min(step.depth, 6)}"><span class="visually-hidden">Agent </span>${plain(path(agents, step))}</li>`}
    <li class="depth-${Math.min(step.depth, 6)}">
      <a data-row href=${address(step)} aria-current=${step.index === at ? "step" : null}>
        <span class="row between"><b>Turn ${step.turn}</b><span class="muted small">${tokens(step)}</span></span>
        ${step.tools.length === 0 && html`<span class="ellipsis muted">${plain(step.wrote?.text.slice(0, 160) || "no text")}</span>`}
        ${step.tools.map((tool) => html`<span class="tool">
          <span class="mono ellipsis">${plain(tool.name)}<span class="muted">(${plain(tool.arguments?.text.slice(0, 120) ?? "")})</span></span><${ToolState} tool=${tool} /></span>`)}
        ${marks(step)}
        <${Durations} step=${step} span=${span} />
      </a>
    </li>`)}</ol>`;
}

/** When the first of these steps began and the last ended, with their tools; null where no time is known. */
function extent(steps) {
  const times = steps.flatMap((step) => [step, ...step.tools]).flatMap((one) => [one.started_at, one.ended_at]).filter(Boolean);
  return times.length ? { from: Math.min(...times), length: Math.max(...times) - Math.min(...times) } : null;
}

/** When the model call and the tools of a step ran within the rollout: a bar each. */
function Durations({ step, span }) {
  const timed = [step, ...step.tools].filter((one) => one.started_at && one.ended_at);
  if (!span?.length || !timed.length) return null;
  const words = timed.map((one) => `${one === step ? "model call" : plain(one.name)} ${seconds(one.ended_at - one.started_at)}`).join(", ");
  const bar = (one) => html`<i class=${one === step ? "" : "tool-bar"} style=${{ left: (100 * (one.started_at - span.from)) / span.length + "%", width: (100 * (one.ended_at - one.started_at)) / span.length + "%" }}></i>`;
  return html`<span class="durations" role="img" aria-label=${words} title=${words}>${timed.map(bar)}</span>`;
}

/** The agent of a step behind those it works for: "planner › clerk". */
function path(agents, step) {
  const names = [];
  const above = new Set();
  for (let run = agents.find((one) => one.id === step.agent_id); run && !above.has(run.id); run = agents.find((one) => one.id === run.parent)) {
    above.add(run.id);
    names.unshift(run.name);
  }
  return names.length ? names.join(" › ") : step.agent;
}

function tokens(step) {
  if (step.response_tokens === null) return "tokens not reported";
  return `${number(step.prompt_tokens)} → ${number(step.response_tokens)} tokens`;
}

export function ToolState({ tool }) {
  const denied = tool.decisions.find((one) => one.blocks);
  const other = tool.decisions.find((one) => !one.routine && one.effect !== "allow");
  if (denied) return html`<${Badge} value="denied" title=${`${plain(denied.policy)} / ${plain(denied.rule)}: ${plain(denied.reason)}`} />`;
  return html`<${Badge} value=${other?.effect ?? tool.status ?? "no result"} />`;
}

function marks(step) {
  const rewards = [...step.rewards, ...step.tools.flatMap((tool) => tool.rewards)];
  const blocked = step.decisions.some((one) => one.blocks);
  if (!rewards.length && !blocked && !step.truncated && !step.drift && !step.handoff) return null;
  return html`<span class="row">
    ${blocked && html`<${Badge} value="denied" />`}
    ${step.truncated && html`<${Badge} value="truncated" />`}
    ${step.drift && html`<${Badge} value="drift" kind="warn" title="The prompt repeats an earlier reply in other tokens" />`}
    ${step.handoff && html`<${Badge} value=${"→ " + plain(step.handoff)} kind="other" />`}
    <${Rewards} rewards=${rewards} /></span>`;
}
