// The depth of the book over time, drawn by the chart behind its candles: the more there is at a price, the more colour.

const COLUMNS = 2000;

/** A primitive of the chart's series (its plugin interface). */
export class Heatmap {
  #columns = new Map();
  #colors = ["green", "red"];
  #attached = null;

  attached(parameters) {
    this.#attached = parameters;
  }

  detached() {
    this.#attached = null;
  }

  setColors(bids, asks) {
    this.#colors = [bids, asks];
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
    target.useBitmapCoordinateSpace(({ context, horizontalPixelRatio: across, verticalPixelRatio: down }) => {
      context.save();
      for (const [time, sides] of this.#columns) {
        const x = scale.timeToCoordinate(time);
        if (x === null) continue;
        const most = Math.max(...sides.flat().map(({ amount }) => amount), Number.MIN_VALUE);
        sides.forEach((levels, side) => {
          context.fillStyle = this.#colors[side];
          for (const [place, { price, amount }] of levels.entries()) {
            const y = series.priceToCoordinate(price);
            const next = series.priceToCoordinate(levels[place + 1]?.price ?? price);
            if (y === null || next === null) continue;
            context.globalAlpha = 0.05 + (0.5 * amount) / most;
            const height = Math.max(1, Math.abs(next - y) * down);
            context.fillRect(Math.round((x - width / 2) * across), Math.round(Math.min(y, next) * down), Math.ceil(width * across), Math.ceil(height));
          }
        });
      }
      context.restore();
    });
  }
}
