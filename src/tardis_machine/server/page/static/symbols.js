// Symbols of an exchange to choose from.

import { make } from "./elements.js";
import { askJson } from "./server.js";

/**
 * Offers what is listed for an exchange where a field takes symbols, the last one of several that commas separate.
 * Not before somebody wants one: a page that is only looked at asks upstream for nothing.
 */
export function suggestSymbols(field, exchangeOf, exchanges) {
  let asked = "";
  let symbols = [];
  const list = field.list;

  function offer() {
    const others = field.value.slice(0, field.value.lastIndexOf(",") + 1);
    if (list.dataset.others === others && list.dataset.exchange === asked) return;
    Object.assign(list.dataset, { others, exchange: asked });
    list.replaceChildren(...symbols.map((symbol) => make("option", { value: others + symbol })));
  }

  async function look() {
    const exchange = exchangeOf().trim();
    if (asked === exchange || !(await exchanges).some((known) => known.exchange === exchange)) return;
    asked = exchange;
    // Without a list any symbol may be typed.
    const found = await askJson(`/ui/symbols/${encodeURIComponent(exchange)}`).catch(() => []);
    if (asked !== exchange) return;
    symbols = found;
    offer();
  }

  field.addEventListener("focus", () => look().catch(() => {}));
  field.addEventListener("input", offer);
}
