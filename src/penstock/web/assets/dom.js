// Changing the page in place: what has focus keeps it, what did not change is not touched.

export const byId = (id) => document.getElementById(id);

export function made(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "data") Object.assign(element.dataset, value);
    else if (key in element && key !== "role") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

// Rows by key. `cells` gives strings, or {text, class, node} where a cell is more than words.
export function fillRows(body, items, keyOf, cells, classOf = () => "") {
  const rows = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const used = new Set();
  items.forEach((item, index) => {
    let key = String(keyOf(item));
    while (used.has(rows.get(key))) key += " again"; // two items of one key have a row each
    let row = rows.get(key);
    if (!row) {
      row = document.createElement("tr");
      row.dataset.key = key;
      rows.set(key, row);
    }
    used.add(row);
    row.className = classOf(item);
    cells(item, row).forEach((cell, column) => {
      let place = row.cells[column];
      if (!place) place = row.insertCell();
      const about = typeof cell === "string" ? { text: cell } : cell;
      if (about.class !== undefined && place.className !== about.class) place.className = about.class;
      if (about.make) {
        if (place.dataset.for !== about.for) {
          place.dataset.for = about.for;
          place.replaceChildren(about.make());
        }
        about.update?.(place);
      } else say(place, about.text);
    });
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
  });
  for (const row of [...body.rows]) if (!used.has(row)) row.remove();
}

// A card with a table, and words for when it is empty.
export function fillCard(card, items, keyOf, cells, classOf) {
  fillRows(card.querySelector("tbody"), items, keyOf, cells, classOf);
  show(card.querySelector("table").parentElement, items.length > 0);
  show(card.querySelector(".none"), items.length === 0);
}

// Pairs of a definition list; a third entry is a class or smaller words below.
export function fillPairs(list, pairs) {
  const wanted = pairs.filter(([, value]) => value !== null && value !== undefined);
  while (list.children.length > wanted.length * 2) list.lastElementChild.remove();
  wanted.forEach(([name, value], index) => {
    let term = list.children[2 * index];
    if (!term) {
      term = list.appendChild(document.createElement("dt"));
      list.appendChild(document.createElement("dd"));
    }
    say(term, name);
    say(list.children[2 * index + 1], String(value));
  });
}
