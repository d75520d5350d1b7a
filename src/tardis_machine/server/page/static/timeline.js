// The span of a replay: what of it was played, and where the recorder had lost its connection.

import { make, placeMark } from "./elements.js";

/** Marks on a lane; times are microseconds of local time. */
export class Timeline {
  #lane;
  #from;
  #length;
  /** Stretches with their marks: the one that grows, the gap that has not ended, and all gaps by their beginning. */
  #played = null;
  #gap = null;
  #gaps = new Map();
  #changed = new Set();

  constructor(lane, [from, to]) {
    this.#lane = lane;
    this.#from = from;
    this.#length = to - from;
    lane.replaceChildren();
  }

  /** Something of this time was played. */
  reach(timeUs) {
    this.#played ??= this.#begin(timeUs, "played");
    this.#grow(this.#played, timeUs);
    if (this.#gap) this.#grow(this.#gap, timeUs);
    this.#gap = null;
  }

  /** From here on nothing was recorded, until something is reached. */
  lose(timeUs) {
    this.#gap = this.#gaps.get(timeUs) ?? this.#begin(timeUs, "gap");
    this.#gaps.set(timeUs, this.#gap);
  }

  /** What comes next does not follow what came last. */
  leave() {
    this.#played = this.#gap = null;
  }

  /** Draws what changed since it was last called. */
  show() {
    const share = (timeUs) => Math.min(1, Math.max(0, (timeUs - this.#from) / this.#length));
    for (const { mark, from, to } of this.#changed) placeMark(mark, share(from), share(to));
    this.#changed.clear();
  }

  #begin(timeUs, kind) {
    const stretch = { mark: make("i", { className: kind }), from: timeUs, to: timeUs };
    this.#lane.append(stretch.mark);
    this.#changed.add(stretch);
    return stretch;
  }

  #grow(stretch, timeUs) {
    stretch.to = Math.max(stretch.to, timeUs);
    this.#changed.add(stretch);
  }
}
