// A mean with its 95 % interval, as figures and as a line on a common scale.
import { html } from "../lib/html.js";
import { number, percent, signed } from "../lib/format.js";

/** `share`: shown in percent. `difference`: with a sign, and coloured when its interval leaves out zero. */
export function Estimate({ value, share = false, difference = false }) {
  if (!value || value.mean === null) return html`<span class="muted">–</span>`;
  const show = (one) => (share ? (difference && one > 0 ? "+" : "") + percent(one) : difference ? signed(one) : number(one));
  const sure = difference && value.low !== null && (value.low > 0 || value.high < 0);
  const css = sure ? (value.mean > 0 ? "good" : "bad") : "";
  return html`<span class=${css}>${show(value.mean)}</span><small class="interval"> ${value.low === null ? "too few to say" : `${show(value.low)} … ${show(value.high)}`}</small>`;
}
