// Candles of trades, with the depth behind them and the spread below, on TradingView's chart.

import { CandlestickSeries, LineSeries, createChart } from "./vendor/lightweight-charts/lightweight-charts.mjs";
import { Heatmap } from "./heatmap.js";

const color = (name) => {
  // Resolved: a canvas knows no variables.
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
};

/** One market's; times are microseconds of local time. */
export class MarketChart {
  #chart;
  #candles;
  #spread;
  #heatmap = new Heatmap();
  #interval;
  #candle = null;
  #spreadTime = 0;
  #changed = false;
  #paint = () => this.#setColors();

  constructor(element, intervalS) {
    this.#interval = intervalS;
    element.replaceChildren();
    this.#chart = createChart(element, {
      autoSize: true,
      // Named in the page's footer: the library would add a style of its own, which the page's policy forbids.
      layout: { attributionLogo: false },
      timeScale: { timeVisible: true, secondsVisible: intervalS < 60, rightOffset: 3 },
      crosshair: { mode: 0 },
    });
    this.#candles = this.#chart.addSeries(CandlestickSeries, {});
    this.#candles.attachPrimitive(this.#heatmap);
    this.#spread = this.#chart.addSeries(LineSeries, { lineWidth: 1, title: "spread", priceLineVisible: false }, 1);
    this.#chart.panes()[1]?.setStretchFactor(0.2);
    this.#setColors();
    document.addEventListener("theme", this.#paint);
  }

  #setColors() {
    const line = { color: color("line") };
    const border = { borderColor: line.color };
    this.#chart.applyOptions({
      layout: { background: { color: color("card") }, textColor: color("quiet"), panes: { separatorColor: line.color } },
      grid: { vertLines: line, horzLines: line },
      timeScale: border,
      rightPriceScale: border,
    });
    for (const series of [this.#candles, this.#spread]) series.priceScale().applyOptions(border);
    const [up, down] = [color("good"), color("bad")];
    this.#candles.applyOptions({ upColor: up, downColor: down, wickUpColor: up, wickDownColor: down, borderVisible: false });
    this.#spread.applyOptions({ color: color("accent") });
    this.#heatmap.setColor(color("depth"));
  }

  /** How many digits prices have after their point. */
  setDigits(digits) {
    const priceFormat = { type: "price", precision: digits, minMove: 10 ** -digits };
    for (const series of [this.#candles, this.#spread]) series.applyOptions({ priceFormat });
  }

  trade(timeUs, price) {
    // A recorder's clock may step back, a candle may not.
    const time = Math.max(this.#bucket(timeUs), this.#candle?.time ?? 0);
    if (this.#candle?.time === time) {
      const candle = this.#candle;
      candle.high = Math.max(candle.high, price);
      candle.low = Math.min(candle.low, price);
      candle.close = price;
    } else {
      this.#draw();
      this.#candle = { time, open: price, high: price, low: price, close: price };
    }
    this.#changed = true;
  }

  /** A book's best levels, dearest bid and cheapest ask first. */
  book(timeUs, bids, asks) {
    const time = this.#bucket(timeUs);
    this.#heatmap.set(time, bids, asks);
    if (bids.length && asks.length && time >= this.#spreadTime) {
      this.#spreadTime = time;
      this.#spread.update({ time, value: asks[0].price - bids[0].price });
    }
  }

  /** Draws what changed since it was last called. */
  show() {
    if (this.#changed) this.#draw();
  }

  #draw() {
    if (this.#candle) this.#candles.update(this.#candle);
    this.#changed = false;
  }

  #bucket(timeUs) {
    const seconds = Math.floor(timeUs / 1e6);
    return seconds - (seconds % this.#interval);
  }

  /** Forgets all: what comes next is of another time. */
  clear() {
    this.#candle = null;
    this.#spreadTime = 0;
    this.#changed = false;
    this.#candles.setData([]);
    this.#spread.setData([]);
    this.#heatmap.clear();
  }

  remove() {
    document.removeEventListener("theme", this.#paint);
    this.#chart.remove();
  }
}
