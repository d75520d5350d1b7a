// The last trades, newest first; large ones and liquidations stand out.

import { byId, make } from "./elements.js";

const SHOWN = 60;
const REMEMBERED = 500;
const LARGE = 0.97;

export class Tape {
  #body = byId("tape").tBodies[0];
  #fresh = [];
  #amounts = [];
  #large = Infinity;

  trade(message) {
    this.#amounts.push(message.amount);
    if (this.#amounts.length > REMEMBERED) this.#amounts.shift();
    this.#fresh.push([message, message.amount >= this.#large ? "large" : ""]);
  }

  liquidation(message) {
    this.#fresh.push([message, "liquidation"]);
  }

  /** Adds what came since it was last called, prices with so many digits. */
  show(digits) {
    if (!this.#fresh.length) return;
    if (this.#amounts.length >= 50) this.#large = this.#amounts.toSorted((a, b) => a - b)[Math.floor(this.#amounts.length * LARGE)];
    this.#body.prepend(...this.#fresh.slice(-SHOWN).reverse().map((item) => rowOf(item, digits)));
    while (this.#body.rows.length > SHOWN) this.#body.deleteRow(-1);
    this.#fresh = [];
  }

  clear() {
    this.#fresh = [];
    this.#amounts = [];
    this.#large = Infinity;
    this.#body.replaceChildren();
  }
}

function rowOf([message, mark], digits) {
  const time = message.timestamp ?? message.localTimestamp;
  return make(
    "tr",
    { className: mark, title: mark },
    make("td", {}, time.slice(11, 23)),
    make("td", { className: `number ${message.side}` }, message.price.toFixed(digits)),
    make("td", { className: "number" }, ...(mark === "liquidation" ? [make("span", { className: "tag" }, "liq."), " "] : []), String(message.amount)),
  );
}
