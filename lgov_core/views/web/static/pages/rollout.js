// Rollout: its steps at the side, the chosen one in full: messages as people read them, or tokens as the trainer had them.
import { html, useEffect } from "../lib/html.js";
import { useApi } from "../lib/api.js";
import { clock, number, plain, seconds, signed } from "../lib/format.js";
import { changed, go, link } from "../lib/router.js";
import { Choice, sourceOf } from "../parts/filters.js";
import { Decisions, Rewards } from "../parts/decision.js";
import { Messages, StepFacts, Tool } from "../parts/step.js";
import { useSteps } from "../parts/steps.js";
import { Text } from "../parts/text.js";
import { Timeline } from "../parts/timeline.js";
import { Tokens } from "../parts/tokens.js";
import { Badge, Card, Empty, Facts, Head, Ready, Tabs } from "../parts/ui.js";

export function Rollout({ route, sources }) {
  const id = route.parts[0];
  const { id: source, has, kind } = sourceOf(route, sources);
  const attempt = route.query.get("attempt");
  const path = id ? `rollouts/${encodeURIComponent(id)}` : null;
  const conversation = route.query.get("conversation");
  const result = useApi(path, { source, attempt, conversation }, { what: ["rollouts", "calls", "decisions"] });
  if (!id) return html`<${Empty} title="No rollout is named"><a href=${link("tasks")}>Choose one in Tasks</a>.<//>`;
  return html`<${Ready} result=${result} lines=${12}>${(data) => html`<${Loaded} key=${id + data.attempt + conversation} data=${data} route=${route} training=${has.training} alone=${kind === "record"} />`}<//>`;
}

/** An attempt without rewards, of which only a training speaks. */
function withoutRewards(data) {
  const bare = (one) => ({ ...one, rewards: [] });
  return { ...data, earned: {}, loose_rewards: [], loose_tools: data.loose_tools.map(bare) };
}

function Loaded({ data: recorded, route, training, alone }) {
  const data = training ? recorded : withoutRewards(recorded);
  const { steps: read, next, more, error } = useSteps(data, route.query.get("conversation"));
  const steps = training ? read : read.map((step) => ({ ...step, rewards: [], tools: step.tools.map((tool) => ({ ...tool, rewards: [] })) }));
  const wanted = route.query.get("step");
  const at = wanted === null ? firstToLookAt(steps) : Number(wanted);
  const step = steps.find((one) => one.index === at) ?? null;
  useEffect(() => {
    if (wanted !== null && !step && next !== null && !error) more();
  }, [wanted, steps.length]);
  const view = route.query.get("view") ?? "messages";
  const address = (one) => changed(route, { step: one.index });
  /** Where the last result of a tool before this turn is; nothing where there is none. */
  const origin = (tool) => {
    const before = steps.findLast((one) => one.index < at && one.tools.some(({ name }) => name === tool));
    return before && address(before);
  };
  const lost = data.outcome === "running" && over(data);
  const took = data.started_at && data.ended_at ? data.ended_at - data.started_at : null;
  return html`<${Head} title=${html`<span class="mono">${plain(data.task_id || data.rollout_id)}</span>`}
      sub=${html`<span class="row">${data.outcome !== "unknown" && !lost && html`<${Badge} value=${data.outcome} />`} rollout <span class="mono">${plain(data.rollout_id)}</span>${data.outcome !== "unknown" && html` · ${clock(data.started_at)}, ${took !== null ? seconds(took) : lost ? "ended (no end recorded)" : "running"}`}</span>`}
      crumbs=${!training ? [["Agent runs", link("agents", { source: data.source })]] : [["Tasks", link("tasks", { source: data.source })], [plain(data.task_id), link("tasks", { source: data.source, run: data.run_id, task: data.task_id })]]}>
      <${Attempts} data=${data} route=${route} /><//>
    <${Facts} items=${[
      ["Turns", number(data.steps_total)],
      ["Tokens", data.prompt_tokens !== null && data.steps_total > 0 && `${number(data.prompt_tokens)} → ${number(data.response_tokens)}`],
      ["Blocked", html`<span class=${data.denials ? "bad" : ""}>${number(data.denials)}</span>`],
      training && ["Return", Object.keys(data.earned).length ? signed(Object.values(data.earned).reduce((sum, value) => sum + value)) : "none"],
      ...Object.entries(training ? data.earned : {}).map(([name, value]) => [`${plain(name)} reward`, html`<span class=${value < 0 ? "bad" : ""}>${signed(value)}</span>`]),
      ["Trained on", data.trained_step && `update ${data.trained_step}`],
      ["Advantages", data.advantage_source && { trainer: "as trained on", recomputed: "recomputed" }[data.advantage_source]],
    ]} />
    ${data.conversations.length > 1 && html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <${Choice} route=${route} name="conversation" label="Conversation" all=${`all ${data.conversations.length}`} also=${{ step: "" }} options=${data.conversations} /></form>`}
    ${data.outcome === "unknown" && html`<p class="banner warn">Its begin and end are not recorded: it is known from its ${alone ? "decisions in the audit record" : "calls and spans"} only.</p>`}
    <${About} data=${data} known=${data.outcome !== "unknown" && !route.query.get("conversation")} lost=${lost} alone=${alone} />
    ${steps.length === 0 && (alone || took !== null || lost
      ? html`<${Empty} title="No model call is recorded">${alone ? "An audit record has decisions. lgov run --store FILE records the messages too." : "The run ended without one, or its calls were not recorded."}<//>`
      : html`<${Empty} title="No model call yet">A call appears here when the model has answered.<//>`)}
    ${steps.length > 0 && html`<div class="master">
      <div class="aside card"><${Timeline} steps=${steps} agents=${data.agents} at=${at} address=${address} />
        ${next !== null && html`<p class="row between small muted"><span>${steps.length} of ${data.steps_total} turns</span><button onClick=${more}>Show more</button></p>`}
        ${error && html`<p class="bad">${plain(error.message)}</p>`}</div>
      ${step ? html`<${Detail} key=${step.index} step=${step} data=${data} route=${route} view=${view} tokens=${training || step.has_tokens} origin=${origin} />` : html`<${Empty} title="No such turn">Choose one from the list.<//>`}
    </div>`}
    ${(training || steps.some((one) => one.has_tokens)) && html`<${LeftOut} diagnostics=${data.diagnostics} />`}`;
}

const QUIET_S = 600;

/** True for a run without a recorded end that began, and of which nothing was written, for ten minutes. */
function over(data) {
  const times = [data.started_at, ...data.steps.map((step) => step.ended_at)].filter(Boolean);
  return Date.now() / 1000 - Math.max(0, ...times) > QUIET_S;
}

/** The step that was denied, or else the last. */
function firstToLookAt(steps) {
  const denied = steps.find((step) => step.tools.some((tool) => tool.decisions.some((one) => one.blocks)) || step.decisions.some((one) => one.blocks));
  return (denied ?? steps[0])?.index ?? 0;
}

function Attempts({ data, route }) {
  if (data.attempts.length < 2) return null;
  const options = data.attempts.map((one) => [one.attempt, `attempt ${one.attempt} · ${one.outcome}`]);
  return html`<${Tabs} label="Attempt" value=${data.attempt} options=${options} onChange=${(attempt) => go(changed(route, { attempt, step: "" }))} />`;
}

/** What belongs to the attempt as a whole: input, result, error, and what no call could be found for. */
function About({ data, known, lost, alone }) {
  const { source } = data;
  const loose = data.loose_tools.length + data.loose_rewards.length;
  const told = data.decisions.filter((one) => !one.routine);
  return html`${known && html`<div class="split about">
      <${Card} title="Input"><${Text} value=${data.input} source=${source} json label="input" none="not recorded" /><//>
      <${Card} title="Result"><${Text} value=${data.result} source=${source} json label="result" none=${data.ended_at || lost ? "not recorded" : "not ended yet"} />
        ${data.error && html`<div class="bad"><${Text} value=${data.error} source=${source} label="error" /></div>`}<//>
    </div>`}
    ${(told.length > 0 || loose > 0) && html`<${Card} title=${alone ? "Decisions" : "Belongs to no single call"}><div class="stack">
      <${Decisions} decisions=${data.decisions} source=${source} />
      ${data.loose_tools.map((tool) => html`<${Tool} tool=${tool} source=${source} />`)}
      <div class="row"><${Rewards} rewards=${data.loose_rewards} /></div></div><//>`}`;
}

function LeftOut({ diagnostics }) {
  if (!diagnostics.length) return null;
  return html`<${Card} title="What training leaves out" flush><div class="scroll" tabindex="0"><table><tbody>${diagnostics.map(
    (one) => html`<tr><td><${Badge} value=${one.finding} kind="warn" /></td><td class="mono">${plain(one.subject)}</td><td>${plain(one.detail)}</td></tr>`)}</tbody></table></div><//>`;
}

function Detail({ step, data, route, view, tokens, origin }) {
  const by = route.query.get("by") ?? (step.advantage === null ? "mask" : "advantages");
  const tabs = [["messages", "Messages"], ["tokens", "Tokens"]];
  return html`<section class="stack" aria-label=${`Turn ${step.turn}`}>
    <div class="row between"><h2>Turn ${step.turn}${step.choice ? `, choice ${step.choice}` : ""}</h2>
      ${tokens && html`<${Tabs} label="View" value=${view} options=${tabs} onChange=${(next) => go(changed(route, { view: next, step: step.index }))} />`}</div>
    <${StepFacts} step=${step} />
    ${step.truncated && html`<p class="banner warn">The reply was cut at the limit of tokens.</p>`}
    ${view === "messages" && html`<${Messages} step=${step} source=${data.source} origin=${origin} />`}
    ${view === "tokens" && (step.has_tokens
      ? html`<${Tokens} rollout=${data.rollout_id} attempt=${data.attempt} source=${data.source} call=${step.call} by=${by} onBy=${(next) => go(changed(route, { by: next }), { replace: true })} />`
      : html`<${Empty} title="No token ids">${step.captured ? "The engine behind this call gave none, so it cannot be trained on." : "This call is known from an adapter's span. Send the agent's calls through lgov's endpoint to capture tokens."}<//>`)}
  </section>`;
}
