// The page: takes the state as it comes, and has each part show its own.

import { byId, made, say, show } from "./dom.js";
import { at, count } from "./words.js";
import { showVerdict } from "./verdict.js";
import { showFigures } from "./figures.js";
import { showFlow } from "./flow.js";
import { Plots } from "./plots.js";
import { showEpochs, showSpark } from "./epochs.js";
import { showAborts, showDisk, showJournals, showRecovery, showRestarts, showTransactions, showVnodes, showWaits } from "./tables.js";

const LOST_MS = 12000; // the server says something every five seconds
const REDRAW_MS = 900; // plots move once a second, however often the state comes

let source = null;
let chosen = null;
let lostTimer = 0;
let lastEvent = null;
let plotsAt = 0;
const plots = new Plots(byId("plots"));

function open() {
  source?.close();
  const query = chosen === null ? "" : `?feed=${encodeURIComponent(chosen)}`;
  source = new EventSource(`/events${query}`);
  source.onmessage = (message) => {
    linked("live", "live");
    clearTimeout(lostTimer);
    lostTimer = setTimeout(lost, LOST_MS);
    take(JSON.parse(message.data));
  };
  source.onerror = () => {
    lost();
    // A stream that ended is opened again by the browser; one that was refused is not.
    if (source.readyState === EventSource.CLOSED) setTimeout(open, 2000);
  };
}

function lost() {
  linked("lost", lastEvent === null ? "no connection" : `lost at ${at(lastEvent.now)}`);
  showVerdict(lastEvent, false);
}

function linked(kind, words) {
  document.body.dataset.link = kind;
  byId("link").dataset.link = kind;
  say(byId("link-words"), words);
}

function take(event) {
  lastEvent = event;
  showFeeds(event);
  showVerdict(event, true);
  const state = event.state;
  for (const part of document.querySelectorAll("main > .card, main > .grid, #figures")) {
    if (part.id !== "recovery" && part.id !== "spark") show(part, state !== null);
  }
  if (state === null) {
    show(byId("recovery"), false);
    show(byId("spark"), false);
    return;
  }
  say(byId("folder"), state.folder);
  showFigures(state, event.now);
  showRecovery(state);
  showWaits(state, event.now);
  showFlow(state);
  showTransactions(event);
  showJournals(state);
  showVnodes(state);
  showDisk(state);
  showRestarts(state);
  showAborts(event.aborts ?? [], state);
  if (performance.now() - plotsAt >= REDRAW_MS) draw();
}

function draw() {
  if (!lastEvent?.state) return;
  plotsAt = performance.now();
  plots.show(lastEvent.state.history);
  showEpochs(lastEvent.state.epochs, lastEvent.now);
  showSpark(lastEvent.batches ?? [], lastEvent.state.epochs);
}

function showFeeds(event) {
  const list = byId("feeds");
  const names = event.feeds.map((feed) => feed.feed);
  if (list.dataset.names !== names.join("\n")) {
    list.dataset.names = names.join("\n");
    list.replaceChildren(
      ...event.feeds.map((feed) => {
        const button = made("button", { type: "button" }, made("span", { className: "dot", "aria-hidden": "true" }), made("span"));
        button.addEventListener("click", () => {
          chosen = feed.feed;
          open();
        });
        return made("li", {}, button);
      }),
    );
  }
  say(byId("feeds-more"), `${count(event.left_out)} more are left out; running ones come first.`);
  show(byId("feeds-more"), event.left_out > 0);
  event.feeds.forEach((feed, index) => {
    const button = list.children[index].firstChild;
    const collections = feed.collections.join(", ");
    button.dataset.verdict = feed.verdict ?? "none";
    button.setAttribute("aria-current", String(feed.feed === event.feed));
    say(button.lastChild, collections && collections !== feed.feed ? `${collections} (${feed.feed})` : feed.feed);
    button.title = `${feed.verdict ?? "not known"}: ${feed.folder}`;
  });
}

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  say(byId("theme"), `Theme: ${theme}`);
  plots.restyle();
  draw();
}

byId("theme").addEventListener("click", () => {
  const now = THEMES[(THEMES.indexOf(localStorage.getItem("theme") ?? "system") + 1) % THEMES.length];
  localStorage.setItem("theme", now);
  setTheme(now);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(localStorage.getItem("theme") ?? "system"));
addEventListener("resize", () => draw());
setTheme(localStorage.getItem("theme") ?? "system");
open();
