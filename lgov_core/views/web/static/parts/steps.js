// The steps of a rollout, which come page by page.
import { useState } from "../lib/html.js";
import { get } from "../lib/api.js";

/** The steps of the first page and those read since; `more` reads the next page. */
export function useSteps(data, conversation) {
  const [rest, setRest] = useState({ steps: [], next: data.next, error: null });
  const more = async () => {
    try {
      const page = await get(`rollouts/${encodeURIComponent(data.rollout_id)}`, { source: data.source, attempt: data.attempt, conversation, from: rest.next });
      setRest({ steps: [...rest.steps, ...page.steps], next: page.next, error: null });
    } catch (error) {
      setRest({ ...rest, error });
    }
  };
  return { steps: [...data.steps, ...rest.steps], next: rest.steps.length ? rest.next : data.next, more, error: rest.error };
}
