// Epochs and Spark's batches: how long, in which phases. Bars by uPlot, the same in tables.

import { byId, fillRows, made, say, show } from "./dom.js";
import { colour } from "./plots.js";
import { count, seconds } from "./words.js";

const HEIGHT = 190;
const charts = new Map();

// Parts are stacked: the last series is drawn first and tallest, those above it cover it.
function drawBars(place, numbers, parts, click) {
  const width = place.clientWidth;
  if (!width || !numbers.length) return;
  const sums = parts.reduce((made, part) => [...made, part.values.map((value, index) => (value ?? 0) + (made.at(-1)?.[index] ?? 0))], []);
  const data = [numbers.map((_, index) => index), ...sums.toReversed()];
  const key = `${width} ${parts.length} ${colour("--p2")}`;
  let known = charts.get(place);
  if (known) known.numbers = numbers; // the axis asks for them while it draws
  if (known?.key !== key) {
    known?.chart?.destroy();
    known = { key, numbers, chart: null };
    charts.set(place, known);
    known.chart = new uPlot(options(place, width, parts), data, place);
  } else known.chart.setData(data);
  known.click = click;
}

function options(place, width, parts) {
  const bars = uPlot.paths.bars({ size: [0.8, 26], gap: 1 });
  const common = { stroke: () => colour("--soft"), ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width, height: HEIGHT, padding: [10, 22, 0, 0], legend: { show: false },
    cursor: { y: false, drag: { setScale: false, x: false }, points: { show: false } },
    scales: { x: { time: false, range: (_, low, high) => [low - 0.6, Math.max(high, 19) + 0.6] }, y: { range: (_, low, high) => [0, Math.max((high ?? 0) * 1.12, 0.01)] } },
    axes: [
      { ...common, grid: { show: false }, size: 28, space: 60, incrs: [1, 2, 5, 10, 20, 50], values: (_, ticks) => ticks.map((tick) => (charts.get(place)?.numbers[tick] !== undefined ? count(charts.get(place).numbers[tick]) : "")) },
      { ...common, grid: { stroke: () => colour("--line"), width: 1 }, size: 62, space: 34, values: (_, ticks) => ticks.map(seconds) },
    ],
    series: [{}, ...parts.toReversed().map((part) => ({ label: part.name, fill: () => colour(part.colour), stroke: () => colour(part.colour), width: 0, paths: bars, points: { show: false } }))],
    hooks: { setCursor: [(chart) => charts.get(place)?.click?.(chart.cursor.idx)] },
  };
}

function legend(place, parts) {
  if (place.children.length === parts.length) return;
  place.replaceChildren(...parts.map((part) => {
    const swatch = made("span", { className: "swatch" });
    swatch.style.background = `var(${part.colour})`;
    return made("span", { className: "key" }, swatch, part.name);
  }));
}

const after = (later, earlier) => (later === null ? null : Math.max(later - (earlier ?? 0), 0));

export function showEpochs(epochs, now) {
  const done = epochs.map((epoch) => ({ ...epoch, whole: epoch.total_seconds ?? now - epoch.began }));
  const phase = (of) => done.map((epoch) => (epoch.verdict === "abort" ? 0 : of(epoch)));
  const parts = [
    { name: "capture", colour: "--p1", values: phase((epoch) => epoch.captured_seconds) },
    { name: "prepare", colour: "--p2", values: phase((epoch) => after(epoch.prepared_seconds, epoch.captured_seconds)) },
    { name: "decide and finish", colour: "--p3", values: phase((epoch) => after(epoch.whole, epoch.prepared_seconds ?? epoch.captured_seconds)) },
    { name: "aborted", colour: "--hot", values: done.map((epoch) => (epoch.verdict === "abort" ? epoch.whole : 0)) },
  ];
  legend(byId("epochs-legend"), parts);
  const words = (index) => {
    const epoch = done[index ?? done.length - 1];
    say(byId("epochs-words"), epoch ? sentence(epoch) : "There is no epoch yet.");
  };
  drawBars(byId("epochs-plot"), done.map((epoch) => epoch.number), parts, words);
  words(charts.get(byId("epochs-plot"))?.chart.cursor.idx);
  fillRows(
    byId("epochs-table").tBodies[0],
    done.toReversed(),
    (epoch) => epoch.number,
    (epoch) => [
      { text: count(epoch.number), class: "n" },
      verdict(epoch.verdict),
      ...[epoch.captured_seconds, epoch.prepared_seconds, epoch.total_seconds].map((value) => ({ text: seconds(value), class: "n" })),
      aligned(epoch),
      { text: count(epoch.last_member), class: "n" },
      { text: count(epoch.rows), class: "n" },
      epoch.reason ?? (epoch.waits_for.length ? `waits for member ${epoch.waits_for.join(", ")}` : ""),
    ],
  );
}

const aligned = (epoch) => (epoch.aligned === null ? "–" : epoch.aligned ? "aligned" : "not aligned");

function verdict(word) {
  const kind = { commit: "healthy", abort: "stuck", open: "waiting" }[word];
  const told = { commit: "committed", abort: "aborted", open: "under way" }[word];
  return { for: word, make: () => made("span", { className: `tag ${kind}`, textContent: told }) };
}

function sentence(epoch) {
  const last = epoch.last_member === null ? "" : `; member ${epoch.last_member} was last to acknowledge`;
  const waits = epoch.waits_for.length ? `; waits for member ${epoch.waits_for.join(", ")}` : "";
  const what = { commit: "was committed", abort: `was aborted${epoch.reason ? ` (${epoch.reason})` : ""}`, open: "is under way" }[epoch.verdict];
  const facts = [seconds(epoch.whole), epoch.aligned === null ? null : aligned(epoch), epoch.rows === null ? null : `${count(epoch.rows)} rows`];
  return `Epoch ${count(epoch.number)} ${what}: ${facts.filter((fact) => fact !== null).join(", ")}${last}${waits}.`;
}

export function showSpark(batches, epochs) {
  show(byId("spark"), batches.length > 0);
  if (!batches.length) return;
  const ours = new Map(epochs.map((epoch) => [epoch.number, epoch.total_seconds]));
  const part = (batch, step) => (batch.milliseconds[step] ?? 0) / 1000;
  const rows = batches.map((batch) => ({ ...batch, whole: part(batch, "triggerExecution"), add: part(batch, "addBatch"), ours: ours.get(batch.epoch) ?? null }));
  const parts = [
    { name: "our epoch", colour: "--p4", values: rows.map((row) => row.ours) },
    { name: "addBatch", colour: "--p2", values: rows.map((row) => row.add) },
    { name: "Spark’s other steps", colour: "--p3", values: rows.map((row) => Math.max(row.whole - row.add, 0)) },
  ];
  legend(byId("spark-legend"), parts);
  const words = (index) => {
    const row = rows[index ?? rows.length - 1];
    const beside = row.ours === null ? "" : `; its newest epoch took ${seconds(row.ours)}`;
    say(byId("spark-words"), `Batch ${count(row.batch)} took ${seconds(row.whole)}, ${seconds(row.add)} of it in addBatch, for ${count(row.rows)} rows${beside}.`);
  };
  drawBars(byId("spark-plot"), rows.map((row) => row.batch), parts, words);
  words(charts.get(byId("spark-plot"))?.chart.cursor.idx);
  fillRows(
    byId("spark-table").tBodies[0],
    rows.toReversed(),
    (row) => row.batch,
    (row) => [count(row.batch), count(row.epoch), count(row.rows), seconds(row.whole), seconds(row.add), seconds(row.whole - row.add), seconds(row.ours)].map((text) => ({ text, class: "n" })),
  );
}
