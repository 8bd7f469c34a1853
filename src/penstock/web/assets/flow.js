// Journals, Slices, Queues, Spark's partitions. Width is rows a second, colour is pressure. Places
// depend on who is there, not on how much flows: nothing moves but widths.

import { byId, fillPairs, fillRows, say } from "./dom.js";
import { age, bytesWords, count, journalWord, percent, plural, shortWords } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const JOURNALS_MAX = 10; // the state has the hundred furthest behind; the table below shows those
const MEMBERS_MAX = 16;
const WIDTH = 1100;
const HEAD = 30;
const BOX = { height: 34, gap: 12 };
const COLUMNS = [{ x: 0, width: 248 }, { x: 360, width: 200 }, { x: 672, width: 146 }, { x: 930, width: 170 }];
const LETTER = 7.3; // about as wide as one is
const LINK_MAX = 22;

const svg = document.createElementNS(SVG, "svg");
const linkLayer = svg.appendChild(document.createElementNS(SVG, "g"));
const headLayer = svg.appendChild(document.createElementNS(SVG, "g"));
const nodeLayer = svg.appendChild(document.createElementNS(SVG, "g"));
svg.setAttribute("role", "group");
svg.setAttribute("aria-label", "Flow from journals to the consumer");
byId("flow-plot").append(svg);

let picked = null;
let nodes = new Map();

export function showFlow(state) {
  const { columns, links } = graph(state);
  nodes = new Map(columns.flat().map((node) => [node.id, node]));
  const tallest = Math.max(...columns.map((column) => column.length), 2);
  const height = HEAD + tallest * (BOX.height + BOX.gap);
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  columns.forEach((column, index) => {
    const space = (height - HEAD) / Math.max(column.length, 1);
    column.forEach((node, place) => {
      node.x = COLUMNS[index].x;
      node.width = COLUMNS[index].width;
      node.y = HEAD + space * (place + 0.5);
    });
  });
  heads(columns, state);
  drawLinks(links);
  drawNodes(columns.flat());
  fillRows(
    byId("flow-table").tBodies[0],
    links,
    (link) => link.id,
    (link) => [nodes.get(link.from).label, nodes.get(link.to).label, { text: count(link.rate), class: "n" }, { text: percent(link.pressure), class: "n" }],
  );
  showDetail();
}

function graph(state) {
  const members = mostPressed(state.members);
  const numbers = new Set(members.map((member) => member.member));
  const shown = state.journals.shown.slice(0, JOURNALS_MAX).filter((one) => numbers.has(one.member));
  const worst = Math.max(...shown.map((one) => one.rows_behind), 1);
  const links = [];
  const journals = shown
    .toSorted((one, other) => one.member - other.member || one.lane - other.lane || (one.journal < other.journal ? -1 : 1))
    .map((one) => {
      const id = `journal ${one.binding} ${one.journal}`;
      const pressure = one.rows_behind / Math.max(worst, 10000);
      links.push({ id: `${id}>`, from: id, to: `slice ${one.member} ${one.lane}`, rate: one.rows_per_second, pressure });
      return { id, label: one.journal, note: `${shortWords(one.rows_per_second)}/s`, pressure, facts: journalFacts(one, state) };
    });
  const hidden = state.journals.count - shown.length;
  if (hidden > 0) journals.push({ id: "journals", label: plural(hidden, `other ${journalWord(state)}`), note: "", pressure: 0, facts: [["Journals", count(state.journals.count)], ["Shown", count(shown.length)], ["Which", "the furthest behind"]] });
  const lanes = new Set(state.bindings.map((one) => one.lane)).size;
  const slices = members.flatMap((member) =>
    member.slices.map((slice) => {
      const id = `slice ${member.member} ${slice.lane}`;
      const tight = slice.to.map((to) => (to.credit_free === null ? 0 : 1 - to.credit_free));
      for (const to of slice.to.filter((one) => numbers.has(one.member))) {
        const pressure = to.credit_free === null ? null : 1 - to.credit_free;
        links.push({ id: `${id}>${to.member}`, from: id, to: `queue ${to.member}`, rate: to.rows_per_second, pressure });
      }
      return { id, label: `Slice ${member.member}${lanes > 1 ? `, lane ${slice.lane}` : ""}`, note: `${shortWords(slice.rows_per_second)}/s`, pressure: Math.max(...tight, 0), facts: sliceFacts(member, slice, state) };
    }),
  );
  const consumer = state.consumer?.kind === "spark" ? "Spark partition" : "Reader";
  const queues = members.map((member) => {
    const queue = member.queue;
    const pressure = queue ? (queue.disk.is_pressed ? 1 : Math.min(queue.disk.size_bytes / queue.disk.limit_bytes, 1)) : null;
    const id = `queue ${member.member}`;
    links.push({ id: `${id}>`, from: id, to: `partition ${member.member}`, rate: takenFrom(member, state), pressure: behindConsumer(state) });
    return { id, label: `Queue ${member.member}`, note: queue ? `${shortWords(queue.rows_per_second)}/s` : "–", pressure, facts: queueFacts(member, state) };
  });
  const partitions = members.map((member) => ({ id: `partition ${member.member}`, label: `${consumer} ${member.member}`, note: `${shortWords(takenFrom(member, state))}/s`, pressure: behindConsumer(state), facts: consumerFacts(state) }));
  return { columns: [journals, slices, queues, partitions], links };
}

// The consumer tells of whole epochs: a member has its share of the vnodes in them.
const takenFrom = (member, state) => {
  const rate = state.consumer?.rows_per_second ?? null;
  return rate === null ? null : (rate * member.vnodes) / state.vnodes.length;
};

// What is stored and does not get to the consumer, by what the state says of its waits.
const BEFORE_CONSUMER = new Set(["consumer", "epochs_ahead", "awaited_commit", "acknowledgement", "alignment", "restart", "recovery"]);
const behindConsumer = (state) => (state.waits.some((wait) => wait.is_stall && BEFORE_CONSUMER.has(wait.kind)) ? 1 : 0);

function mostPressed(members) {
  if (members.length <= MEMBERS_MAX) return members;
  const fill = (member) => (member.queue ? member.queue.disk.size_bytes / member.queue.disk.limit_bytes : 1);
  return members.toSorted((one, other) => fill(other) - fill(one)).slice(0, MEMBERS_MAX).toSorted((one, other) => one.member - other.member);
}

const journalFacts = (one, state) => [
  ["Rows behind", count(one.rows_behind)], ["Rows/s", count(one.rows_per_second)], ["Offset", count(one.offset)], ["Head", count(one.head)],
  ["Collection", state.bindings[one.binding]?.collection], ["Read by", `member ${one.member}, lane ${one.lane}`],
  ["Last row", one.clock === null ? "none yet" : `${age(state.written - one.clock)} old`],
];
const sliceFacts = (member, slice, state) => [
  ["Reads", count(slice.reads)], ["Rows read", count(slice.rows_read)], ["Rows behind", count(slice.rows_behind)], ["Rows/s", count(slice.rows_per_second)],
  ["Buffered", bytesWords(slice.buffered_bytes)], ["Credit left", slice.to.map((to) => percent(to.credit_free)).join(", ")], ...life(member, state),
];
const queueFacts = (member, state) => [
  ...(member.queue
    ? [["Rows stored", count(member.queue.rows)], ["Rows waiting", count(member.queue.waiting_rows)], ["Rows/s", count(member.queue.rows_per_second)],
       ["On disk", bytesWords(member.queue.disk.size_bytes)], ["Budget", bytesWords(member.queue.disk.limit_bytes)], ["LSN", count(member.queue.lsn)]]
    : [["Queue", "has not told anything yet"]]),
  ["Vnodes", count(member.vnodes)], ...life(member, state),
];
const life = (member, state) => [["Process", member.process === null ? null : `${member.process} on ${member.host}`], ["Heard", member.heard === null ? "never" : `${age(state.written - member.heard)} ago`]];
const consumerFacts = (state) =>
  state.consumer ? [["Consumed", `epoch ${count(state.consumer.consumed)}`], ["Newest", `epoch ${count(state.consumer.newest)}`], ["Since", state.consumer.since === null ? null : `${age(state.written - state.consumer.since)}`]] : [["Consumer", "none yet"]];

function heads(columns, state) {
  const names = [journalWord(state) === "partition" ? "Partitions" : "Journals", "Slices", "Queues", state.consumer?.kind === "spark" ? "Spark" : "Consumer"];
  names.forEach((name, index) => {
    let text = headLayer.children[index];
    if (!text) {
      text = headLayer.appendChild(document.createElementNS(SVG, "text"));
      text.setAttribute("class", "flow-head");
      text.setAttribute("x", COLUMNS[index].x);
      text.setAttribute("y", 14);
    }
    say(text, name);
  });
}

function drawLinks(links) {
  const fastest = Math.max(...links.map((link) => link.rate ?? 0), 1);
  keyed(linkLayer, links, "path", (path, link) => {
    const from = nodes.get(link.from);
    const to = nodes.get(link.to);
    if (!from || !to) return;
    const [x, y, u, v] = [from.x + from.width, from.y, to.x, to.y];
    const middle = (x + u) / 2;
    set(path, "d", `M${x} ${y}C${middle} ${y} ${middle} ${v} ${u} ${v}`);
    set(path, "class", link.rate ? "flow-link" : "flow-link idle");
    path.style.strokeWidth = link.rate ? Math.max((link.rate / fastest) * LINK_MAX, 1.5) : 1;
    path.style.stroke = pressed(link.pressure);
  });
}

function drawNodes(list) {
  keyed(nodeLayer, list, "g", (group, node) => {
    if (!group.firstChild) makeNode(group);
    const [body, edge, label, note, title] = group.children;
    set(group, "transform", `translate(${node.x} ${node.y - BOX.height / 2})`);
    set(group, "aria-label", `${node.label}${node.note ? `, ${node.note}` : ""}, pressure ${percent(node.pressure)}`);
    set(group, "aria-pressed", String(picked === node.id));
    edge.style.fill = pressed(node.pressure);
    set(body, "width", node.width);
    set(note, "x", node.width - 10);
    say(label, clipped(node.label, Math.floor((node.width - 32) / LETTER) - node.note.length));
    say(note, node.note);
    say(title, node.label);
  });
}

function makeNode(group) {
  const part = (name, attributes) => {
    const element = group.appendChild(document.createElementNS(SVG, name));
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  group.setAttribute("class", "flow-node");
  group.setAttribute("role", "button");
  group.setAttribute("tabindex", "0");
  part("rect", { class: "body", height: BOX.height, rx: 7 });
  part("rect", { class: "edge", width: 5, height: BOX.height - 12, x: 6, y: 6, rx: 2.5 });
  part("text", { x: 19, y: BOX.height / 2 + 4.5 });
  part("text", { class: "rate", y: BOX.height / 2 + 4.5 });
  part("title", {});
  const pick = () => {
    picked = group.dataset.key;
    for (const other of nodeLayer.children) set(other, "aria-pressed", String(other === group));
    showDetail();
  };
  group.addEventListener("click", pick);
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      pick();
    }
  });
}

function showDetail() {
  const place = byId("flow-detail");
  const node = nodes.get(picked);
  if (picked !== null && !node) return; // it may come back; what was last known stays
  say(place.querySelector("h3"), node ? node.label : "Detail");
  place.querySelector("p").hidden = Boolean(node);
  if (node) fillPairs(place.querySelector("dl"), [...node.facts, ["Pressure", percent(node.pressure)]]);
}

function keyed(layer, items, name, update) {
  const there = new Map([...layer.children].map((element) => [element.dataset.key, element]));
  for (const item of items) {
    let element = there.get(item.id);
    if (!element) {
      element = layer.appendChild(document.createElementNS(SVG, name));
      element.dataset.key = item.id;
    }
    there.delete(item.id);
    update(element, item);
  }
  for (const element of there.values()) element.remove();
}

function set(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

function pressed(pressure) {
  if (pressure === null || pressure === undefined) return "var(--line)";
  const level = Math.min(Math.max(pressure, 0), 1);
  if (level <= 0.5) return `color-mix(in oklab, var(--warm) ${Math.round(level * 200)}%, var(--calm))`;
  return `color-mix(in oklab, var(--hot) ${Math.round((level - 0.5) * 200)}%, var(--warm))`;
}

// The end of a journal's name tells it from others more than its middle does.
const clipped = (text, length) => (text.length > length ? `${text.slice(0, 5)}…${text.slice(6 - length)}` : text);
