// Compare: two checkpoints, runs or evaluations on the same tasks; then one rollout of each, from the step where they part.
import { html } from "../lib/html.js";
import { useApi, usePages } from "../lib/api.js";
import { number, plain, signed } from "../lib/format.js";
import { changed, go } from "../lib/router.js";
import { Estimate } from "../parts/estimate.js";
import { Choice, More } from "../parts/filters.js";
import { SideBySide } from "../parts/pair.js";
import { Line } from "../parts/text.js";
import { Badge, Card, Empty, Facts, Head, Ready, Tabs, kindOf } from "../parts/ui.js";

const CHANGES = { fixed: "good", broken: "bad", better: "good", worse: "bad", same: "" };

export function Compare({ route, sources }) {
  const pair = route.query.get("left") && route.query.get("right");
  const sides = useApi("compare/sides", {}, { what: ["rollouts", "state"] });
  return html`<${Ready} result=${sides}>${(data) => {
    if (data.sides.length < 2) return html`<${Head} title="Compare" /><${Empty} title="There is nothing to compare yet">
      Two evaluations are needed, or two runs: <code>lgov view FOLDER</code> on a folder that holds several.<//>`;
    const a = route.query.get("a") ?? data.pairs[0]?.a ?? data.sides[0].id;
    const b = route.query.get("b") ?? data.pairs[0]?.b ?? data.sides[1].id;
    return pair ? html`<${SideBySide} route=${route} />` : html`<${Sides} route=${route} data=${data} a=${a} b=${b} />`;
  }}<//>`;
}

function Sides({ route, data, a, b }) {
  const channel = route.query.get("channel") ?? "task";
  const only = route.query.get("only");
  const pages = usePages("compare", { a, b, channel, only }, { enough: 20 });
  const options = data.sides.map((side) => [side.id, `${side.label} (${number(side.rollouts)} rollouts)`]);
  return html`<${Head} title="Compare" sub="The same tasks, two sides; differences are paired over tasks" />
    <div class="filters">
      <${Choice} route=${route} held=${a} name="a" label="From" all=${null} options=${options} />
      <button class="icon" aria-label="Swap sides" title="Swap sides" onClick=${() => go(changed(route, { a: b, b: a }))}>⇄</button>
      <${Choice} route=${route} held=${b} name="b" label="To" all=${null} options=${options} />
      ${pages.data && html`<${Choice} route=${route} held=${channel} name="channel" label="Reward" all=${null} options=${pages.data.channels} />`}
    </div>
    <${Ready} result=${pages.first}>${(answer) => html`
      <${Facts} items=${[
        ["Succeeded: from", html`<${Estimate} value=${answer.success.a} share />`],
        ["Succeeded: to", html`<${Estimate} value=${answer.success.b} share />`],
        ["Paired difference", html`<${Estimate} value=${answer.success.difference} share difference />`],
        [`${plain(answer.channel)} reward: from`, html`<${Estimate} value=${answer.reward.a} />`],
        [`${plain(answer.channel)} reward: to`, html`<${Estimate} value=${answer.reward.b} />`],
        ["Paired difference", html`<${Estimate} value=${answer.reward.difference} difference />`],
        ["Shared tasks", number(answer.tasks.shared), `by ${answer.matched_by === "input" ? "input" : "id"}; ${number(answer.tasks.only_a)} only in from, ${number(answer.tasks.only_b)} only in to`],
      ]} />
      <${Tabs} label="Which tasks" value=${only ?? ""} onChange=${(next) => go(changed(route, { only: next }))}
        options=${[["", "all"], ...Object.keys(CHANGES).map((name) => [name, `${name} ${number(answer.counts[name])}`])]} />
      ${answer.tasks.shared === 0
        ? html`<${Empty} title="No task is on both sides">Sides are matched by task id, or by input. Choose two evaluations of the same tasks.<//>`
        : pages.items.length === 0 && !pages.cursor
          ? html`<${Empty} title="No such task">No task is ${only} here.<//>`
          : html`<${Pairs} pages=${pages} a=${answer.a} b=${answer.b} route=${route} /><${More} pages=${pages} noun="task" />`}`}<//>`;
}

const address = (side, rollout) => [side.source, rollout.rollout_id, rollout.attempt].map((part) => encodeURIComponent(part)).join("~");

const both = ({ a, b }) => (a.task_id === b.task_id ? a.task_id : `${a.task_id} → ${b.task_id}`);

function Pairs({ pages, a, b, route }) {
  const open = (pair) => changed(route, { left: address(a, representative(pair.a)), right: address(b, representative(pair.b)), a: a.id, b: b.id });
  return html`<${Card} flush label="Tasks"><div class="scroll" tabindex="0"><table>
    <thead><tr><th>Change</th><th>Task</th><th>Input</th><th class="num">Succeeded</th><th class="num">Reward</th><th class="num">Difference</th></tr></thead>
    <tbody>${pages.items.map((pair) => html`<tr data-row>
      <td><${Badge} value=${pair.change} kind=${CHANGES[pair.change]} /></td>
      <td class="mono">${pair.a.rollouts.length && pair.b.rollouts.length ? html`<a href=${open(pair)}>${plain(both(pair))}</a>` : plain(both(pair))}</td>
      <td class="wide"><${Line} value=${pair.input} /></td>
      <td class="num">${number(pair.a.succeeded, 2)} → ${number(pair.b.succeeded, 2)}</td>
      <td class="num">${number(pair.a.reward, 2)} → ${number(pair.b.reward, 2)}</td>
      <td class="num ${kindOf(pair.difference > 0 ? "ok" : pair.difference < 0 ? "error" : "")}">${signed(pair.difference, 2)}</td>
    </tr>`)}</tbody></table></div><//>`;
}

/** Of several rollouts of a side the one whose reward is nearest to their mean. */
function representative(half) {
  const distance = (rollout) => Math.abs((rollout.reward ?? 0) - (half.reward ?? 0));
  return half.rollouts.reduce((best, one) => (distance(one) < distance(best) ? one : best), half.rollouts[0]);
}
