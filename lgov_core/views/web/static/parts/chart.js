// Curves over steps or time, drawn by uPlot, with the interval as a band and the figures as text beside the picture.
import uPlot from "../vendor/uplot.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { number, plain } from "../lib/format.js";
import { color } from "../lib/theme.js";

const HEIGHT = 190;
const COLORS = 6;

export const colorClass = (index) => `c${(index % COLORS) + 1}`;

/** series: [{label, color, dash, values, low, high}]; values as long as x, null where there is none. */
export function Chart({ title, x, series, time = false, height = HEIGHT }) {
  const place = useRef();
  const plot = useRef(null);
  const [theme, setTheme] = useState(0);
  const shape = JSON.stringify([series.map((one) => [one.label, one.color, one.dash, Boolean(one.low)]), time, theme]);
  useEffect(() => {
    const redraw = () => setTheme((now) => now + 1);
    const system = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("themechange", redraw);
    system.addEventListener("change", redraw);
    return () => (removeEventListener("themechange", redraw), system.removeEventListener("change", redraw));
  }, []);
  useEffect(() => {
    const width = place.current.clientWidth || 320;
    plot.current = new uPlot(options(series, { width, height, time }), columns(x, series), place.current);
    const resize = new ResizeObserver(([entry]) => plot.current.setSize({ width: entry.contentRect.width, height }));
    resize.observe(place.current);
    return () => (resize.disconnect(), plot.current.destroy());
  }, [shape, height]);
  useEffect(() => plot.current.setData(columns(x, series)), [x, series]);
  return html`<div class="chart" role="img" aria-label=${summary(title, series)}><div ref=${place}></div></div>`;
}

export function Legend({ items }) {
  return html`<div class="legend">${items.map(
    ({ label, color: index, dash, value }) => html`<span><i class=${`${colorClass(index)}${dash ? " dashed" : ""}`}></i>${plain(label)} ${value !== undefined && html`<b>${value}</b>`}</span>`,
  )}</div>`;
}

/** The last value that is not null. */
export function last(values) {
  for (let at = values.length - 1; at >= 0; at--) if (values[at] !== null && values[at] !== undefined) return values[at];
  return null;
}

function summary(title, series) {
  const parts = series.map((one) => `${one.label}: first ${number(one.values.find((value) => value !== null) ?? null)}, last ${number(last(one.values))}`);
  return plain(`${title}. ${parts.join("; ")}`);
}

function columns(x, series) {
  const out = [x];
  for (const one of series) {
    out.push(one.values);
    if (one.low) out.push(one.high, one.low);
  }
  return out;
}

function options(series, { width, height, time }) {
  const line = color("--line");
  const muted = color("--muted");
  const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
  const curves = [{}];
  const whole = series.every((one) => !one.low && one.values.every((value) => value === null || Number.isInteger(value)));
  const bands = [];
  for (const one of series) {
    const stroke = color(`--series-${(one.color % COLORS) + 1}`);
    curves.push({ label: one.label, stroke, width: 1.75, dash: one.dash, spanGaps: true, points: { show: one.values.length < 3, size: 5 } });
    if (one.low) {
      const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
      bands.push({ series: [curves.length, curves.length + 1], fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.14)") });
      curves.push(edge, edge);
    }
  }
  return {
    width, height, bands, series: curves, legend: { show: false }, padding: [10, 10, 0, 0],
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time }, y: { range: (_, low, high) => (low === high ? [low, low + 1] : uPlot.rangeNum(low, high, 0.1, true)) } },
    axes: [{ ...axis, size: 28, ...(time && { space: 80, values: (_, splits) => splits.map((at) => new Date(at * 1000).toLocaleTimeString()) }) }, { ...axis, size: 52, ...(whole && { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6, 1e7] }), values: (_, splits) => splits.map((value) => short(value)) }],
    plugins: [readout(series)],
  };
}

function short(value) {
  if (value === null) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toFixed(1) + "M";
  if (size >= 1e4) return +(value / 1e3).toFixed(1) + "k";
  return size < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(4));
}

/** The values under the pointer, as text in the corner of the picture. */
function readout(series) {
  const box = document.createElement("div");
  box.className = "readout";
  return {
    hooks: {
      init: (u) => u.over.append(box),
      setCursor: (u) => {
        const at = u.cursor.idx;
        box.hidden = at === null || at === undefined || u.cursor.left < 0;
        if (box.hidden) return;
        const where = u.scales.x.time ? new Date(u.data[0][at] * 1000).toLocaleTimeString() : `update ${u.data[0][at]}`;
        const lines = series.map((one) => `${plain(one.label)}  ${number(one.values[at])}${interval(one, at)}`);
        box.textContent = [where, ...lines].join("\n");
        box.classList.toggle("left", u.cursor.left > u.over.clientWidth / 2);
      },
    },
  };
}

function interval(one, at) {
  return one.low && one.low[at] !== null ? `  (${number(one.low[at])} … ${number(one.high[at])})` : "";
}
