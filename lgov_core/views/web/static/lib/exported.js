// The data inside an exported file, and the filters that a server would have applied.
const element = document.getElementById("lgov-data");

/** {format, content, made_at, version, chosen, responses}, or null when a server is behind the page. */
export const EXPORTED = element ? JSON.parse(element.textContent) : null;

const LISTS = ["tasks", "rollouts", "agent-runs", "governance/decisions"];

/** The answer for a path, or undefined. Of a list that is there unfiltered, what the filters leave. */
export function fromFile(path, params, address) {
  const at = (path) => (typeof EXPORTED.responses[path] === "string" ? EXPORTED.responses[EXPORTED.responses[path]] : EXPORTED.responses[path]);
  const given = { ...params };
  delete given.limit;
  delete given.cursor;
  const exact = at(address(path, given)) ?? ofConversation(at(address(path, bare(given))), given.conversation);
  if (exact || !LISTS.includes(path)) return exact ?? at(address(path, bare(given)));
  const all = at(address(path, bare(given)));
  return all && { ...all, items: all.items.filter((item) => passes(path, item, given)) };
}

/** Of an attempt that is there whole, the steps of one conversation; undefined for anything else. */
function ofConversation(whole, name) {
  if (!whole?.steps || !name) return undefined;
  const of = (rows) => rows.filter((row) => row.conversation === name);
  return { ...whole, steps: of(whole.steps), decisions: of(whole.decisions), loose_tools: [], input: null, result: null, steps_total: of(whole.steps).length, next: null };
}

/** Without what has a default: only what the exporter may have given. */
function bare({ source, by, a, b, attempt, channel }) {
  return { source, by, a, b, attempt, channel };
}

function passes(path, item, filters) {
  if (path === "tasks") {
    if (filters.teaches && filters.teaches !== (item.teaches_nothing ? "nothing" : "something")) return false;
    return item.rollouts.some((row) => rowPasses(row, filters, item));
  }
  if (path === "rollouts" || path === "agent-runs") return rowPasses(item, filters, item);
  const effect = filters.effect;
  if (effect === "blocked" ? !item.blocks : effect === "would" ? !item.would : effect && item.effect !== effect) return false;
  return ["policy", "rule", "tool", "agent"].every((name) => !filters[name] || item[name] === filters[name]);
}

function rowPasses(row, filters, item) {
  const { run, task, agent, outcome, denied, text } = filters;
  if (run && row.run_id !== run) return false;
  if (task && row.task_id !== task) return false;
  if (agent && !row.agents.includes(agent)) return false;
  if (outcome && row.outcome !== outcome) return false;
  if (denied === "1" && !row.denials) return false;
  if (denied === "0" && (row.denials || row.would)) return false;
  if (denied === "would" && !row.would) return false;
  return !text || JSON.stringify(item).toLowerCase().includes(text.toLowerCase());
}
