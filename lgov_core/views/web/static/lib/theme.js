// Light and dark. Without a choice the system's setting holds.
const KEY = "lgov.theme";

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a file:// page may have no storage
  }
}

export function applyTheme(theme = stored()) {
  if (theme) document.documentElement.dataset.theme = theme;
}

export function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  applyTheme(theme);
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    /* the choice then holds for this page only */
  }
  dispatchEvent(new Event("themechange"));
}

/** The colour behind a CSS variable, resolved for the current theme; canvases need it. */
export function color(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
