// Follows api/changes and tells the page what changed. One request at a time, for the whole page.
import { useEffect, useState } from "./html.js";
import { get } from "./api.js";
import { EXPORTED } from "./exported.js";

let current = { sources: [], lost: false };

function publish(next) {
  current = { ...current, ...next };
  dispatchEvent(new Event("lgov:live"));
}

/** Starts once, when the page loads. After a failure it tries again every 3 s. */
export async function follow() {
  let since = null;
  while (!EXPORTED) {
    try {
      const answer = await get("changes", since === null ? {} : { since, wait: 2 });
      if (current.lost) dispatchAll(answer.sources);
      since = answer.since;
      publish({ sources: answer.sources, lost: false });
      if (answer.changed.length) dispatchEvent(new CustomEvent("lgov:changes", { detail: answer.changed }));
    } catch {
      publish({ lost: true });
      await new Promise((resolve) => setTimeout(resolve, 3000));
    }
  }
}

/** After a gap everything may have changed. */
function dispatchAll(sources) {
  const what = ["rollouts", "calls", "decisions", "metrics", "approvals", "state"];
  dispatchEvent(new CustomEvent("lgov:changes", { detail: sources.map(({ id }) => ({ source: id, what })) }));
}

/** {sources: [{id, state, last_write_at, silent_s}], lost}: what is live, and whether the server is gone. */
export function useLive() {
  const [live, setLive] = useState(current);
  useEffect(() => {
    const update = () => setLive(current);
    update();
    addEventListener("lgov:live", update);
    return () => removeEventListener("lgov:live", update);
  }, []);
  return live;
}
