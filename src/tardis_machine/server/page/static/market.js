// The second view: one market, as it was or as it is.

import { MarketChart } from "./chart.js";
import { byId, digitsOf, setText } from "./elements.js";
import { clearLadder, showLadder } from "./ladder.js";
import { History, Live, SPEEDS, speedText } from "./player.js";
import { suggestSymbols } from "./symbols.js";
import { Tape } from "./tape.js";
import { Timeline } from "./timeline.js";

const BOOK = "book_snapshot_25_1s";
const FIRST_SPEED = 60;
/** Levels that are looked at for how many digits prices have. */
const LOOKED_AT = 5;

const timeUs = (text) => Date.parse(text.length > 24 ? `${text.slice(0, 23)}Z` : text) * 1000 + (text.length > 24 ? Number(text.slice(23, 26)) : 0);
const textOf = (us) => new Date(us / 1000).toISOString();
const asUtc = (text) => (/^\d{4}-\d\d-\d\d(T|$)/.test(text) && !/(Z|[+-]\d\d:?\d\d)$/.test(text) ? Date.parse(text.length > 10 ? `${text}Z` : text) : Date.parse(text)) * 1000;

const form = byId("market-form");
const panel = byId("player");
const problem = byId("market-problem");
const note = byId("market-note");
const part = (name) => panel.querySelector(`[data-control="${name}"]`);
const chosenSpeed = () => (part("speed").value === "max" ? "max" : Number(part("speed").value));

/** A snapshot that is deeper than the book has empty levels at its end. */
const isThere = ({ price }) => price !== undefined;

/** What is shown at the moment. */
let market = null;

class Market {
  constructor(exchange, symbol, interval, span) {
    this.span = span;
    this.chart = new MarketChart(byId("chart"), interval);
    this.tape = new Tape();
    this.timeline = span ? new Timeline(byId("timeline-gaps"), span) : null;
    this.symbol = symbol;
    this.isPaused = false;
    this.isSeeking = false;
    this.#forget();
    const has = (kind) => exchange.dataTypes.includes(kind);
    const dataTypes = [has("trade") && "trade", has("book_change") && BOOK, has("liquidation") && "liquidation"].filter(Boolean);
    this.options = { exchange: exchange.exchange, symbols: [symbol], dataTypes, withDisconnectMessages: true };
    this.#play();
    this.frame = requestAnimationFrame(() => this.#show());
  }

  /** From the start, of what has one. */
  #play() {
    this.source?.stop();
    this.hasEnded = this.isPaused = this.hasData = false;
    setText(part("pause"), "Pause");
    part("step").disabled = false;
    setText(note, "Waiting for the first data…");
    this.reachedUs = this.span ? this.span[0] : 0;
    // What is still on its way from one that was left is no longer wanted.
    const take = (message) => source === this.source && this.#take(message);
    const ended = (error) => source === this.source && this.#end(error);
    const source = this.span
      ? new History({ ...this.options, from: textOf(this.span[0]), to: textOf(this.span[1]), speed: chosenSpeed() }, take, ended)
      : new Live(this.options, take, ended);
    this.source = source;
  }

  #take(message) {
    const reachedUs = timeUs(message.localTimestamp);
    // A seek led back: what was drawn is of a time to come.
    if (reachedUs < this.reachedUs - 1e6) this.#forget();
    this.reachedUs = reachedUs;
    if (message.type === "disconnect") return this.timeline?.lose(reachedUs);
    this.timeline?.reach(reachedUs);
    if (message.type === "error") return show(message.details ?? "an error of the live feed");
    this.hasData = true;
    switch (message.type) {
      case "trade":
        this.#learnDigits([message]);
        this.chart.trade(reachedUs, message.price);
        this.tape.trade(message);
        break;
      case "book_snapshot":
        this.book = [message.bids, message.asks].map((levels) => levels.filter(isThere));
        for (const levels of this.book) this.#learnDigits(levels.slice(0, LOOKED_AT));
        this.chart.book(reachedUs, ...this.book);
        break;
      case "liquidation":
        this.tape.liquidation(message);
        break;
    }
  }

  #learnDigits(items) {
    const digits = Math.max(this.digits, ...items.map(({ price }) => digitsOf(price)));
    if (digits === this.digits) return;
    this.digits = digits;
    this.chart.setDigits(digits);
  }

  #show() {
    this.chart.show();
    this.tape.show(this.digits);
    if (this.book) showLadder(...this.book, this.digits);
    this.book = null;
    note.hidden = this.hasData;
    if (this.span) {
      const [from, to] = this.span;
      const seek = part("seek");
      // Held, it says where somebody wants to be.
      if (!this.isSeeking && !seek.matches(":active")) seek.value = String(Math.round((1000 * (this.reachedUs - from)) / (to - from)));
      this.timeline.show();
    }
    setText(byId("position"), this.reachedUs ? textOf(this.reachedUs).replace("T", " ").slice(0, 19) : "");
    this.frame = requestAnimationFrame(() => this.#show());
  }

  #forget() {
    this.book = null;
    this.digits = 0;
    this.chart.setDigits(0);
    this.timeline?.leave();
    this.chart.clear();
    this.tape.clear();
    clearLadder();
  }

  /** Null where the replay has ended. */
  async #control(message) {
    try {
      const replay = await this.source.steer(message);
      this.isPaused = replay.paused;
      setText(part("pause"), replay.paused ? "Play" : "Pause");
      show("");
      return replay;
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  }

  async steer(message) {
    if (this.hasEnded) return;
    await this.#control(message).catch((error) => this.#complain(error));
  }

  toggle() {
    if (!this.hasEnded) return this.steer({ control: this.isPaused ? "resume" : "pause" });
    this.#forget();
    this.#play();
  }

  async seek(share) {
    const [from, to] = this.span;
    const us = Math.max(from, Math.min(to - 1e6, from + share * (to - from)));
    const message = { control: "seek", to: textOf(us) };
    this.#forget();
    this.isSeeking = true;
    try {
      // What has ended is begun again.
      if (this.hasEnded || !(await this.#control(message))) {
        this.#play();
        await this.#control(message);
        this.#forget();
      }
      // What was still on its way has been played where it was.
      this.timeline.leave();
      this.reachedUs = us;
    } catch (error) {
      this.#complain(error);
    } finally {
      this.isSeeking = false;
    }
  }

  #complain(error) {
    if (this === market && error.name !== "AbortError") show(error.message);
  }

  #end(error) {
    if (this !== market) return;
    this.hasEnded = true;
    show(error ? error.message : "");
    if (this.span) setText(part("pause"), "Play again");
    part("step").disabled = true;
    setText(note, error ? "" : `There is nothing of ${this.symbol} on ${this.options.exchange} in this time.`);
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
  shown(true);
  for (const element of panel.querySelectorAll(".history")) element.hidden = isLive;
  part("speed").value = String(FIRST_SPEED);
  market = new Market(exchange, form.symbol.value.trim(), Number(form.interval.value), span);
}

function close() {
  market?.close();
  market = null;
  shown(false);
}

function shown(isOpen) {
  panel.hidden = byId("market-view").hidden = !isOpen;
  byId("market-empty").hidden = isOpen;
}

/** `exchanges` is what `/ui/exchanges` will tell. */
export function startMarket(exchanges) {
  part("speed").append(...SPEEDS.map((speed) => new Option(speedText(speed), speed)));
  form.when.addEventListener("change", () => {
    for (const label of form.querySelectorAll(".history")) label.hidden = form.when.value === "live";
  });
  suggestSymbols(form.symbol, () => form.exchange.value, exchanges);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    open(exchanges).catch((error) => show(error.message));
  });
  part("pause").addEventListener("click", () => market?.toggle());
  part("step").addEventListener("click", () => market?.steer({ control: "step" }));
  part("speed").addEventListener("change", () => market?.steer({ control: "speed", speed: chosenSpeed() }));
  part("seek").addEventListener("change", ({ target }) => market?.seek(Number(target.value) / 1000));
  part("stop").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    // Keys that a field or a button takes are theirs; a slider takes no space.
    const isFree = event.target === part("seek") || !/^(INPUT|SELECT|BUTTON|TEXTAREA|A)$/.test(event.target.tagName);
    if (event.code === "Space" && isFree && !byId("market").hidden && market?.span) {
      event.preventDefault();
      market.toggle();
    }
  });
}
