// Elements out of data. Text is always set as text: nothing that came from outside becomes HTML.

/** The one element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/** An element with properties and children; a child that is text stays text. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "dataset") Object.assign(element.dataset, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Digits after its point. */
export function digitsOf(number) {
  const [digits, exponent = "0"] = String(number).split("e");
  return Math.min(MOST_DIGITS, Math.max(0, (digits.split(".")[1] ?? "").length - Number(exponent)));
}

const MOST_DIGITS = 12;

/** Sets an element's text where it differs, so that what was selected stays so. */
export function setText(element, text) {
  const shown = String(text ?? "");
  if (element.textContent !== shown) element.textContent = shown;
}

/**
 * Rows of a table's body, one for each item, kept from one call to the next so that focus and selection stay.
 * `cells` is called with an item and gives [text, class] or elements, one for each column. Each field knows its column's title,
 * which a narrow screen shows beside it.
 */
export function fillRows(body, items, key, cells, rowClass = () => "") {
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const titles = body.parentElement.tHead.rows[0].cells;
  items.forEach((item, place) => {
    const name = String(key(item));
    const row = known.get(name) ?? make("tr", { dataset: { key: name } });
    known.delete(name);
    row.className = rowClass(item);
    cells(item, row).forEach((cell, column) => {
      const field = row.cells[column] ?? row.appendChild(make("td", { dataset: { title: titles[column].textContent } }));
      if (cell instanceof Element) {
        if (field.firstChild !== cell) field.replaceChildren(cell);
        return;
      }
      const [text, className = ""] = Array.isArray(cell) ? cell : [cell];
      if (field.className !== className) field.className = className;
      setText(field, text);
    });
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null);
  });
  for (const row of known.values()) row.remove();
}

/** Places a mark on a lane; from and to are shares of its length. */
export function placeMark(mark, from, to) {
  mark.style.left = `${100 * from}%`;
  mark.style.width = `${100 * Math.max(0, to - from)}%`;
}

const WHOLE = new Intl.NumberFormat("en");
export const whole = (number) => (number == null ? "" : WHOLE.format(Math.round(number)));

/** "1.5 MB". */
export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  for (; count >= 1000 && place < units.length - 1; place++) count /= 1000;
  return `${place ? count.toFixed(1) : count} ${units[place]}`;
}

/** "12 s", "3 m", "5 h". */
export function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} m`;
  return `${Math.round(seconds / 3600)} h`;
}
