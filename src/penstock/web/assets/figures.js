// The few figures that are read from afar. Each is the state's own.

import { byId, made, say } from "./dom.js";
import { age, bytes, journalWord, plural, count, seconds, short } from "./words.js";

// "1 min 19 s" is a figure and the rest.
const halves = (words) => [words.split(" ", 1)[0], words.slice(words.indexOf(" ") + 1)];
const last = (list) => (list.length ? list[list.length - 1] : null);

export function showFigures(state, now) {
  const history = state.history;
  const newest = state.epochs.findLast((epoch) => epoch.verdict === "commit") ?? null;
  const lag = last(history.watermark_lag_seconds);
  const oldest = state.transactions.shown[0] ?? null;
  const figures = [
    ["throughput", "Throughput", ...short(last(history.rows_per_second)), "rows a second into queues", "/s"],
    ["behind", "Rows behind", ...short(last(history.rows_behind)), `in ${plural(state.journals.count, journalWord(state))}`],
    ["watermark", "Watermark lag", ...halves(seconds(lag)), state.watermark.held_by ? `held by ${state.watermark.held_by.journal}` : `held by no ${journalWord(state)}`],
    ["epoch", "Epoch", newest ? count(newest.number) : "–", "", newest ? `took ${seconds(newest.total_seconds)}` : "none yet"],
    ["transactions", "Open transactions", count(state.transactions.count), "", oldest ? `the oldest for ${age(now - oldest.since)}` : "none"],
    ["disk", "On disk", ...bytes(last(history.disk_bytes)), "in all queues"],
  ];
  const list = byId("figures");
  figures.forEach(([key, name, figure, unit, below, per = ""], index) => {
    let place = list.children[index];
    if (!place) {
      place = list.appendChild(made("div", { data: { figure: key } }, made("dd", { className: "sub" }), made("dd", {}, made("span"), made("small")), made("dt")));
    }
    const [sub, value, term] = place.children;
    say(term, name);
    say(value.firstChild, figure);
    say(value.lastChild, figure === "–" ? "" : `${unit ?? ""}${per}`);
    say(sub, below);
    sub.title = below;
  });
}
