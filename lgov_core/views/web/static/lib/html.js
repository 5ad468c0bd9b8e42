// Preact, its hooks and htm behind one import. Strings in templates become text nodes, never markup.
import { h, render } from "../vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import htm from "../vendor/htm.js";

export { render, useEffect, useLayoutEffect, useMemo, useRef, useState };
export const html = htm.bind(h);
