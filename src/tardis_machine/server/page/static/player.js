// Plays a market for this page: history at a speed, which can be steered, or live data. Nothing of it is published.

import { linesOf, openSocket, post } from "./server.js";

export const SPEEDS = [0.5, 1, 10, 60, 600, "max"];
export const speedText = (speed) => (speed === "max" ? "max" : `${speed}x`);

/** Steers a replay; what the server says against it is a Refusal. */
export const control = async (id, message) => (await post(`/replays/${encodeURIComponent(id)}/control`, message)).json();

/** Messages handled before the page has its turn to draw. */
const BATCH = 2000;

/** A replay: `take` gets each message, `ended` how it ended (null: it is complete). */
export class History {
  #abort = new AbortController();
  #answer;
  #lead = Promise.resolve();

  constructor(options, take, ended) {
    this.#answer = post("/replay-normalized", { ...options, publish: false }, this.#abort.signal);
    this.#play(take).then(
      () => ended(null),
      (error) => error.name === "AbortError" || ended(error),
    );
  }

  async #play(take) {
    let taken = 0;
    for await (const line of linesOf(await this.#answer)) {
      take(JSON.parse(line));
      if (++taken % BATCH === 0) await new Promise(requestAnimationFrame);
    }
  }

  /** One control after the other, once the replay has begun; a Refusal of status 404 where it has ended. */
  async steer(message) {
    const steered = this.#lead
      .catch(() => {})
      .then(async () => control((await this.#answer).headers.get("X-Replay-Id"), message));
    this.#lead = steered;
    return steered;
  }

  stop() {
    this.#abort.abort();
  }
}

/** Live data. */
export class Live {
  #socket;

  constructor(options, take, ended) {
    const query = encodeURIComponent(JSON.stringify({ ...options, withErrorMessages: true, publish: false }));
    this.#socket = openSocket(`/ws-stream-normalized?options=${query}`);
    this.#socket.onmessage = ({ data }) => take(JSON.parse(data));
    this.#socket.onclose = ({ code, reason }) => ended(code === 1000 ? null : new Error(reason || `the connection ended (${code})`));
  }

  stop() {
    this.#socket.onclose = null;
    this.#socket.close();
  }
}
