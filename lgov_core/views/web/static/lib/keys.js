// Keys: j and k move over the rows of the page, Enter opens one, / goes to the filter, ? shows this list.
export const KEYS = [
  ["j / k", "next / previous row"],
  ["Enter", "open the row"],
  ["/", "go to the filter"],
  ["g then a, g, w", "Agent runs, Governance, Waiting for a person"],
  ["g then r, t, c, d", "of a training: Trainings, Tasks, Compare, Doctor"],
  ["t", "light or dark"],
  ["← →", "in the token view: previous / next token"],
  ["?", "this list"],
];

const PAGES = { a: "agents", r: "runs", t: "tasks", c: "compare", g: "governance", w: "approvals", d: "doctor" };
let pendingG = 0;

function typing(target) {
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

function moveRow(step) {
  const rows = [...document.querySelectorAll("main [data-row]")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + step))];
  const target = next.matches("a, button, [tabindex]") ? next : next.querySelector("a, button") || next;
  target.focus();
  next.scrollIntoView({ block: "nearest" });
}

/** The listener for keydown on the document. `actions` has help, theme and page(name). */
export function keyListener(actions) {
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const page = Date.now() - pendingG < 1000 && PAGES[event.key];
    pendingG = 0;
    if (page) actions.page(page);
    else if (event.key === "g") pendingG = Date.now();
    else if (event.key === "j") moveRow(1);
    else if (event.key === "k") moveRow(-1);
    else if (event.key === "t") actions.theme();
    else if (event.key === "?") actions.help();
    else if (event.key === "/") document.querySelector("main [data-filter]")?.focus();
    else return;
    event.preventDefault();
  };
}
