// The second view: one market, as it was or as it is.

import { MarketChart } from "./chart.js";
import { byId, make, markLane, setText } from "./elements.js";
import { clearLadder, showLadder } from "./ladder.js";
import { History, Live, SPEEDS, speedText } from "./player.js";
import { askJson } from "./server.js";
import { Tape } from "./tape.js";

const BOOK = "book_snapshot_25_1s";
const FIRST_SPEED = 60;

const timeUs = (text) => Date.parse(text.length > 24 ? `${text.slice(0, 23)}Z` : text) * 1000 + (text.length > 24 ? Number(text.slice(23, 26)) : 0);
const textOf = (us) => new Date(us / 1000).toISOString();
const asUtc = (text) => (/^\d{4}-\d\d-\d\d(T|$)/.test(text) && !/(Z|[+-]\d\d:?\d\d)$/.test(text) ? Date.parse(text.length > 10 ? `${text}Z` : text) : Date.parse(text)) * 1000;

const form = byId("market-form");
const panel = byId("player");
const problem = byId("market-problem");
const part = (name) => panel.querySelector(`[data-control="${name}"]`);

/** What is shown at the moment. */
let market = null;

class Market {
  constructor(exchange, symbol, interval, span) {
    this.span = span;
    this.chart = new MarketChart(byId("chart"), interval);
    this.tape = new Tape();
    this.tape.clear();
    clearLadder();
    this.book = null;
    this.reachedUs = span ? span[0] : 0;
    this.gaps = [];
    this.isPaused = false;
    this.isSeeking = false;
    const has = (kind) => exchange.dataTypes.includes(kind);
    const dataTypes = [has("trade") && "trade", has("book_change") && BOOK, has("liquidation") && "liquidation"].filter(Boolean);
    const options = { exchange: exchange.exchange, symbols: [symbol], dataTypes, withDisconnectMessages: true };
    const [take, ended] = [(message) => this.#take(message), (error) => this.#end(error)];
    this.source = span
      ? new History({ ...options, from: textOf(span[0]), to: textOf(span[1]), speed: FIRST_SPEED }, take, ended)
      : new Live(options, take, ended);
    this.frame = requestAnimationFrame(() => this.#show());
  }

  #take(message) {
    const reachedUs = timeUs(message.localTimestamp);
    // A seek led back: what was drawn is of a time to come.
    if (reachedUs < this.reachedUs - 1e6) this.#forget();
    this.reachedUs = reachedUs;
    switch (message.type) {
      case "trade":
        this.chart.trade(reachedUs, message.price);
        this.tape.trade(message);
        break;
      case "book_snapshot":
        this.book = message;
        this.chart.book(reachedUs, message.bids, message.asks);
        break;
      case "liquidation":
        this.tape.liquidation(message);
        break;
      case "disconnect":
        this.gaps.push(reachedUs);
        break;
      case "error":
        show(message.details ?? "an error of the live feed");
        break;
    }
  }

  #show() {
    this.chart.show();
    this.tape.show();
    if (this.book) showLadder(this.book.bids, this.book.asks);
    this.book = null;
    if (this.span) {
      const [from, to] = this.span;
      const share = (us) => (us - from) / (to - from);
      const seek = part("seek");
      if (!this.isSeeking && document.activeElement !== seek) seek.value = String(Math.round(1000 * share(this.reachedUs)));
      markLane(byId("timeline-gaps"), this.gaps.map((us) => [share(us), share(us)]));
    }
    setText(byId("position"), this.reachedUs ? textOf(this.reachedUs).replace("T", " ").slice(0, 19) : "");
    this.frame = requestAnimationFrame(() => this.#show());
  }

  #forget() {
    this.chart.clear();
    this.tape.clear();
    clearLadder();
  }

  async steer(message) {
    try {
      const replay = await this.source.steer(message);
      if (!replay) return;
      this.isPaused = replay.paused;
      setText(part("pause"), replay.paused ? "Play" : "Pause");
      show("");
    } catch (error) {
      show(error.message);
    }
  }

  async seek(share) {
    const [from, to] = this.span;
    const us = Math.min(to - 1e6, from + share * (to - from));
    this.#forget();
    this.isSeeking = true;
    await this.steer({ control: "seek", to: textOf(us) });
    this.reachedUs = us;
    this.isSeeking = false;
  }

  #end(error) {
    if (this !== market) return;
    show(error ? error.message : "");
    if (!error && this.span) setText(part("pause"), "Ended");
  }

  close() {
    this.source.stop();
    cancelAnimationFrame(this.frame);
    this.chart.remove();
  }
}

function show(text) {
  problem.hidden = !text;
  setText(problem, text);
}

async function open(known) {
  const exchanges = await known;
  const exchange = exchanges.find((known) => known.exchange === form.exchange.value.trim());
  if (!exchange) return show(`exchange: expected one of ${exchanges.length}, got ${form.exchange.value}`);
  const isLive = form.when.value === "live";
  if (isLive && !exchange.live) return show(`exchange: ${exchange.exchange} has history only`);
  const span = isLive ? null : [asUtc(form.from.value.trim()), asUtc(form.to.value.trim())];
  if (span?.some(Number.isNaN)) return show("from, to: expected dates such as 2020-02-01T10:30");
  if (span && span[0] >= span[1]) return show("to: expected a date after from");
  close();
  show("");
  panel.hidden = false;
  for (const name of ["pause", "step", "speed", "seek"]) part(name).disabled = isLive;
  byId("market-view").hidden = false;
  setText(part("pause"), "Pause");
  part("speed").value = String(FIRST_SPEED);
  market = new Market(exchange, form.symbol.value.trim(), Number(form.interval.value), span);
}

function close() {
  market?.close();
  market = null;
  panel.hidden = true;
  byId("market-view").hidden = true;
}

/** Symbols to choose from. */
async function suggest(known) {
  const exchange = form.exchange.value.trim();
  const names = byId("symbol-names");
  if (names.dataset.exchange === exchange || !(await known).some((known) => known.exchange === exchange)) return;
  names.dataset.exchange = exchange;
  const symbols = await askJson(`/ui/symbols/${encodeURIComponent(exchange)}`);
  if (names.dataset.exchange === exchange) names.replaceChildren(...symbols.map((value) => make("option", { value })));
}

const toggle = () => market?.steer({ control: market.isPaused ? "resume" : "pause" });

/** `exchanges` is what `/ui/exchanges` will tell. */
export function startMarket(exchanges) {
  part("speed").append(...SPEEDS.map((speed) => make("option", { value: String(speed) }, speedText(speed))));
  form.when.addEventListener("change", () => {
    for (const label of form.querySelectorAll(".history")) label.hidden = form.when.value === "live";
  });
  // Not before somebody wants one: a page that is only looked at asks upstream for nothing.
  form.symbol.addEventListener("focus", () => suggest(exchanges));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    open(exchanges).catch((error) => show(error.message));
  });
  part("pause").addEventListener("click", toggle);
  part("step").addEventListener("click", () => market?.steer({ control: "step" }));
  part("speed").addEventListener("change", ({ target }) =>
    market?.steer({ control: "speed", speed: target.value === "max" ? "max" : Number(target.value) }),
  );
  part("seek").addEventListener("change", ({ target }) => market?.seek(Number(target.value) / 1000));
  part("stop").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    const isFree = !/^(INPUT|SELECT|BUTTON|TEXTAREA|A)$/.test(event.target.tagName);
    if (event.code === "Space" && isFree && !byId("market").hidden && market?.span) {
      event.preventDefault();
      toggle();
    }
  });
}
