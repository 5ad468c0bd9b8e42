// Two rollouts side by side, scrolled to the first step in which they differ.
import { html, useEffect, useRef } from "../lib/html.js";
import { useApi } from "../lib/api.js";
import { plain } from "../lib/format.js";
import { changed, link } from "../lib/router.js";
import { Messages } from "./step.js";
import { useSteps } from "./steps.js";
import { Badge, Empty, Head, Ready } from "./ui.js";

const WHERE = {
  messages: "the messages that the model read", wrote: "what the model wrote", tools: "the tools that were called",
  decisions: "the decisions", results: "the results of tools", end: "the end: one goes on, the other does not",
};

function split(text) {
  const [source, rollout, attempt] = text.split("~").map(decodeURIComponent);
  return { source, rollout, attempt };
}

export function SideBySide({ route }) {
  const left = route.query.get("left");
  const right = route.query.get("right");
  const parted = useApi("compare/rollouts", { a: left, b: right });
  const part = parted.data?.part ?? null;
  const back = changed(route, { left: "", right: "" });
  return html`<${Head} title="Side by side" crumbs=${[["Compare", back]]} sub=${part
      ? `They part at turn ${part.step + 1}, in ${WHERE[part.where] ?? part.where}.`
      : parted.data ? "They are alike, turn for turn." : parted.error ? plain(parted.error.message) : "…"} />
    <div class="split">
      <${Half} side=${split(left)} part=${part} name="From" />
      <${Half} side=${split(right)} part=${part} name="To" />
    </div>`;
}

function Half({ side, part, name }) {
  const result = useApi(`rollouts/${encodeURIComponent(side.rollout)}`, { source: side.source, attempt: side.attempt });
  return html`<section class="stack" aria-label=${`Side: ${name}`}><${Ready} result=${result}>${(data) => html`<h2>${name}: ${plain(data.task_id)}</h2><${Steps} data=${data} part=${part} />`}<//></section>`;
}

function Steps({ data, part }) {
  const { steps, next, more } = useSteps(data);
  const place = useRef();
  useEffect(() => {
    if (part && part.step >= steps.length && next !== null) more();
    else if (place.current) place.current.scrollIntoView({ block: "center" });
  }, [part?.step, steps.length]);
  return html`<p class="row"><${Badge} value=${data.outcome} /><a class="mono" href=${link(["rollout", data.rollout_id], { source: data.source, attempt: data.attempt })}>${plain(data.rollout_id)}</a></p>
    ${steps.length === 0 && html`<${Empty} title="No model call">Nothing was recorded in this attempt.<//>`}
    ${steps.map((step) => {
      const same = part && step.index < part.step;
      const here = part && step.index === part.step;
      const title = html`Turn ${step.turn}${here && html` <${Badge} value="first difference" kind="warn" />`}`;
      return html`<details key=${step.index} open=${!same}><summary>${title}${same && " (alike)"}</summary>
        <div class="stack ${here ? "parted" : ""}" ref=${here ? place : null}><${Messages} step=${step} source=${data.source} part=${here ? part : null} /></div></details>`;
    })}
    ${next !== null && html`<button onClick=${more}>Show more turns</button>`}`;
}
