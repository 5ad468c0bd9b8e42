// Answers of the API: from the server that sent this page, or from the data inside an exported file.
import { useEffect, useRef, useState } from "./html.js";
import { EXPORTED, fromFile } from "./exported.js";

export class ApiError extends Error {
  constructor(status, { code = "", message, hint = null, item = null }) {
    super(message);
    Object.assign(this, { status, code, hint, item });
  }
}

/** The path below api/, with the parameters that are given, in the order of the alphabet. */
export function address(path, params = {}) {
  const names = Object.keys(params).filter((name) => params[name] !== null && params[name] !== undefined && params[name] !== "");
  const query = names.sort().map((name) => `${name}=${encodeURIComponent(params[name])}`);
  return path + (query.length ? "?" + query.join("&") : "");
}

/** One answer. Raises ApiError, also when the server cannot be reached (status 0). */
export async function get(path, params, options) {
  if (EXPORTED) {
    const answer = fromFile(path, params, address);
    if (answer) return answer;
    throw new ApiError(404, { code: "not_exported", message: "This is not in the exported file.", hint: "Run lgov view on the store itself to see it." });
  }
  return send(address(path, params), options);
}

export const post = (path, body, headers = {}) =>
  send(path, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) });

async function send(path, options) {
  let response;
  try {
    response = await fetch("api/" + path, { credentials: "same-origin", ...options });
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new ApiError(0, { code: "unreachable", message: "The server does not answer.", hint: "Is lgov still running? This page continues when it is back." });
  }
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  const hint = response.status === 401 ? "Open the address that lgov printed when it started; it holds the token." : null;
  throw new ApiError(response.status, { hint, message: `The server answered ${response.status}.`, ...answer?.error, item: answer?.item });
}

/**
 * The answer to a path, kept up to date: {data, error, reload}. A null path asks nothing. It is asked again while the server is
 * still at work (`state` among `busy`), and when `what` of its source changes.
 */
export function useApi(path, params = {}, { what = [], busy = [] } = {}) {
  const key = path === null ? null : address(path, params);
  const [result, setResult] = useState({ key, data: null, error: null });
  const [turn, setTurn] = useState(0);
  const reload = () => setTurn((now) => now + 1);
  useChanges(what, params.source, reload);
  useEffect(() => {
    if (key === null) return undefined;
    const abort = new AbortController();
    let timer = 0;
    get(path, params, { signal: abort.signal }).then(
      (data) => {
        setResult({ key, data, error: null });
        if (busy.includes(data.state)) timer = setTimeout(reload, 800);
      },
      (error) => {
        if (error.name === "AbortError") return;
        setResult((old) => ({ key, data: old.key === key ? old.data : null, error }));
        if (error.status === 0 || error.status === 503) timer = setTimeout(reload, 2000);
      },
    );
    return () => (abort.abort(), clearTimeout(timer));
  }, [key, turn]);
  const current = result.key === key;
  return { data: current ? result.data : null, error: current ? result.error : null, reload };
}

/** A list that is read page by page: {items, more, loading, error}; `more()` reads the next page. */
export function usePages(path, params, { what = [], busy = [], enough = 20 } = {}) {
  const first = useApi(path, params, { what, busy });
  const key = address(path, params);
  const [rest, setRest] = useState({ key, items: [], cursor: null, error: null, loading: false });
  const now = rest.key === key ? rest : { key, items: [], cursor: null, error: null, loading: false };
  const cursor = now.cursor ?? (now.items.length || now.done ? null : first.data?.cursor);
  const read = async (before, start, wanted, from) => {
    let [items, next] = [before, start];
    const show = (change) => setRest({ key, from, items, cursor: next, done: !next, error: null, loading: false, ...change });
    show({ items: now.items, cursor: now.cursor, loading: true });
    try {
      while (next && items.length - before.length < wanted) {
        const page = await get(path, { ...params, cursor: next });
        items = [...items, ...page.items];
        next = page.cursor;
        if (items.length >= now.items.length) show({ loading: Boolean(next) });
      }
      show();
    } catch (error) {
      show({ error });
    }
  };
  const more = (wanted = enough) => read(now.items, cursor, wanted, now.from ?? first.data.cursor);
  useEffect(() => {
    // When the first page comes anew, what follows it does too. A page of a search may be short: read on until there is something to see.
    if (!first.data || now.loading || first.data.cursor === now.from) return;
    const wanted = Math.max(now.items.length, enough / 2 - first.data.items.length);
    if (wanted > 0) read([], first.data.cursor, wanted, first.data.cursor);
  }, [first.data, key, now.loading]);
  return {
    first, more, cursor, loading: now.loading, error: now.error, data: first.data,
    items: [...(first.data?.items ?? []), ...now.items],
  };
}

/** Calls `act` when one of `what` changed in `source` (any source when null), at most once a second. */
export function useChanges(what, source, act) {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    if (!what.length || EXPORTED) return undefined;
    let timer = 0;
    const heard = ({ detail }) => {
      const hit = detail.some((one) => (!source || one.source === source) && one.what.some((name) => what.includes(name)));
      if (hit && !timer) timer = setTimeout(() => ((timer = 0), latest.current()), 1000);
    };
    addEventListener("lgov:changes", heard);
    return () => (removeEventListener("lgov:changes", heard), clearTimeout(timer));
  }, [what.join(), source]);
}
