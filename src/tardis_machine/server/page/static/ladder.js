// The book's best levels: asks above, bids below, each with a bar as long as its amount.

import { byId, make, setText } from "./elements.js";

const DEPTH = 15;

/** Shows a book, dearest bid and cheapest ask first; prices with so many digits. */
export function showLadder(bids, asks, digits) {
  const body = byId("ladder").tBodies[0];
  const levels = [
    ...asks.slice(0, DEPTH).reverse().map((level) => [level, "ask"]),
    ...bids.slice(0, DEPTH).map((level) => [level, "bid"]),
  ];
  const most = Math.max(...levels.map(([{ amount }]) => amount), Number.MIN_VALUE);
  while (body.rows.length > levels.length) body.deleteRow(-1);
  levels.forEach(([{ price, amount }, side], place) => {
    const row = body.rows[place] ?? addRow(body);
    row.className = place && side === "bid" && body.rows[place - 1].className === "ask" ? "bid best" : side;
    const [bid, at, ask] = row.cells;
    setText(at, price.toFixed(digits));
    setText(bid.lastChild, side === "bid" ? amount : "");
    setText(ask.lastChild, side === "ask" ? amount : "");
    const [full, empty] = side === "bid" ? [bid, ask] : [ask, bid];
    full.firstChild.style.width = `${(100 * amount) / most}%`;
    empty.firstChild.style.width = "0";
  });
  const [best, cheapest] = [bids[0]?.price, asks[0]?.price];
  const isWhole = best !== undefined && cheapest !== undefined;
  const spread = cheapest - best;
  setText(byId("spread"), isWhole ? `spread ${spread.toFixed(digits)} (${((1e4 * spread) / best).toFixed(2)} bp)` : "");
}

function addRow(body) {
  const cell = () => make("td", { className: "number" }, make("span", { className: "fill" }), make("span"));
  const row = make("tr", {}, cell(), make("td", { className: "number" }), cell());
  body.append(row);
  return row;
}

export function clearLadder() {
  byId("ladder").tBodies[0].replaceChildren();
  setText(byId("spread"), "");
}
