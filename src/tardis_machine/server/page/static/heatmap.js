// The depth of the book over time, drawn by the chart behind its candles: the more there is at a price, the more colour.

const COLUMNS = 2000;

/** A primitive of the chart's series (its plugin interface). */
export class Heatmap {
  #columns = new Map();
  #color = "gray";
  #attached = null;

  attached(parameters) {
    this.#attached = parameters;
  }

  detached() {
    this.#attached = null;
  }

  setColor(color) {
    this.#color = color;
    this.#attached?.requestUpdate();
  }

  /** The book of a candle's time; the last one stays. */
  set(time, bids, asks) {
    this.#columns.set(time, [bids, asks]);
    if (this.#columns.size > COLUMNS) this.#columns.delete(this.#columns.keys().next().value);
    this.#attached?.requestUpdate();
  }

  clear() {
    this.#columns.clear();
    this.#attached?.requestUpdate();
  }

  paneViews() {
    return [{ zOrder: () => "bottom", renderer: () => ({ draw: (target) => this.#draw(target) }) }];
  }

  #draw(target) {
    if (!this.#attached) return;
    const { chart, series } = this.#attached;
    const scale = chart.timeScale();
    const width = scale.options().barSpacing;
    target.useBitmapCoordinateSpace(({ context, mediaSize, horizontalPixelRatio: across, verticalPixelRatio: down }) => {
      const seen = [];
      for (const [time, sides] of this.#columns) {
        const x = scale.timeToCoordinate(time);
        if (x !== null && x > -width && x < mediaSize.width + width) seen.push([x, sides]);
      }
      const most = seen.reduce((least, [, sides]) => Math.max(least, ...sides.flat().map(({ amount }) => amount)), Number.MIN_VALUE);
      context.save();
      context.fillStyle = this.#color;
      for (const [x, sides] of seen) {
        for (const levels of sides) {
          for (const [place, { price, amount }] of levels.entries()) {
            const y = series.priceToCoordinate(price);
            const next = series.priceToCoordinate(levels[place + 1]?.price ?? price);
            if (y === null || next === null) continue;
            // By the root, as a few amounts are far larger than the others.
            context.globalAlpha = 0.6 * Math.sqrt(amount / most);
            const height = Math.max(1, Math.abs(next - y) * down);
            context.fillRect(Math.round((x - width / 2) * across), Math.round(Math.min(y, next) * down), Math.ceil(width * across), Math.ceil(height));
          }
        }
      }
      context.restore();
    });
  }
}
