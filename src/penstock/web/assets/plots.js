// Throughput, lag, watermark and disk over the last ten minutes, by uPlot.

import { fillRows, made, say } from "./dom.js";
import { at, bytesWords, count, seconds, shortWords } from "./words.js";

const MINUTES = 10;
const WINDOW_MIN = 60; // seconds that are shown of a feed that has just begun
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const TABLE_STEP = 15; // seconds from one row of the table to the next

const KINDS = [
  { key: "rows_per_second", name: "Throughput", unit: "rows/s", words: (value) => `${shortWords(value)}/s`, exact: count },
  { key: "rows_behind", name: "Rows behind", unit: "rows", words: shortWords, exact: count },
  { key: "watermark_lag_seconds", name: "Watermark lag", unit: "s", words: seconds, exact: seconds },
  { key: "disk_bytes", name: "Disk", unit: "bytes", words: bytesWords, exact: bytesWords },
];

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function axes(words, size = 62, incrs = undefined) {
  const common = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return [
    { ...common, grid: { show: false }, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step)), space: 80, size: 28 },
    { ...common, size, incrs, values: (_, ticks) => ticks.map(words), space: 34 },
  ];
}

const clock = (tick, step) => new Date(tick * 1000).toLocaleTimeString("en-GB", step < 60 ? {} : { hour: "2-digit", minute: "2-digit" });

// What the pointer or the last moment shows, in words.
export class Plots {
  constructor(place) {
    this.parts = KINDS.map((kind) => {
      const now = made("p", { className: "plot-now" });
      const plot = made("div", { className: "plot", role: "img", "aria-label": `${kind.name} over the last ten minutes; the same is in the table below` });
      const body = document.createElement("tbody");
      const table = made("table", {}, made("thead", {}, made("tr", {}, made("th", { scope: "col", textContent: "At" }), made("th", { scope: "col", className: "n", textContent: kind.name }))), body);
      const region = made("div", { className: "scroll tall", tabIndex: 0, role: "region", "aria-label": `${kind.name} as a table` }, table);
      const details = made("details", {}, made("summary", { textContent: `${kind.name} as a table` }), region);
      place.append(made("section", { className: "card", "aria-label": kind.name }, made("div", { className: "head" }, made("h2", { textContent: kind.name }), now), plot, details));
      return { kind, now, plot, body, details, chart: null, data: null };
    });
  }

  show(history) {
    for (const part of this.parts) {
      part.data = [history.seconds, history[part.kind.key]];
      this.draw(part);
      if (part.details.open) this.fill(part);
      else part.details.ontoggle = () => this.fill(part);
    }
  }

  draw(part) {
    const width = part.plot.clientWidth;
    if (!width || !part.data[0].length) return;
    const end = part.data[0].at(-1);
    if (!part.chart) {
      part.chart = new uPlot(this.options(part, width), part.data, part.plot);
    } else {
      if (part.chart.width !== width) part.chart.setSize({ width, height: 190 });
      part.chart.setData(part.data, false);
    }
    const begin = Math.min(Math.max(part.data[0][0], end - MINUTES * 60), end - WINDOW_MIN);
    part.chart.setScale("x", { min: begin, max: end });
    if (part.chart.cursor.idx === null || part.chart.cursor.idx === undefined) this.say(part, part.data[0].length - 1);
  }

  options(part, width) {
    const { kind } = part;
    return {
      width, height: 190, padding: [10, 22, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { setScale: false, x: false }, points: { size: 7 } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max((high ?? 0) * 1.12, kind.key === "watermark_lag_seconds" ? 1 : 10)] } },
      axes: kind.key === "disk_bytes" ? axes(kind.words, 74, POWERS) : axes(kind.words),
      series: [{}, { label: kind.name, stroke: () => colour("--accent"), width: 1.75, fill: () => `color-mix(in srgb, ${colour("--accent")} 12%, transparent)`, points: { show: false }, spanGaps: false }],
      hooks: { setCursor: [(chart) => this.say(part, chart.cursor.idx ?? part.data[0].length - 1)] },
    };
  }

  say(part, index) {
    const [times, values] = part.data;
    const value = part.kind.exact(values[index]);
    say(part.now, index === times.length - 1 ? `now ${value}` : `${value} at ${at(times[index])}`);
  }

  fill(part) {
    const [times, values] = part.data;
    const rows = times.map((time, index) => ({ time, value: values[index] })).reverse().filter((_, index) => index % TABLE_STEP === 0);
    fillRows(part.body, rows, (row) => row.time, (row) => [at(row.time), { text: part.kind.exact(row.value), class: "n" }]);
  }

  restyle() {
    for (const part of this.parts) {
      part.chart?.destroy();
      part.chart = null;
    }
  }
}
