// The first view: what the machine does now.

import { byId, bytes, duration, fillRows, make, placeMark, setText, whole } from "./elements.js";
import { control, speedText } from "./player.js";

const LANE_MS = 600_000;
// A bus in one of these confirms nothing.
const DEAD = ["retrying", "spooling", "paused", "closed"];

export function showNow(state, mayControl) {
  showMachine(state);
  showFeeds(state);
  showBuses(state);
  showLake(state);
  showReplays(state, mayControl);
  for (const note of document.querySelectorAll(".empty[data-for]")) note.hidden = byId(note.dataset.for).tBodies[0].rows.length > 0;
}

function showMachine(state) {
  const figures = {
    "Messages/s": whole(state.messagesPerSecond),
    WebSockets: whole(state.webSockets),
    Workers: whole(state.workers),
    Up: duration(state.uptimeSeconds),
  };
  const list = byId("machine");
  for (const [name, value] of Object.entries(figures)) {
    let entry = list.querySelector(`[data-name="${name}"]`);
    if (!entry) {
      entry = make("div", { dataset: { name } }, make("dt", {}, name), make("dd"));
      list.append(entry);
    }
    setText(entry.lastChild, value);
  }
}

const lanes = new Map();

function laneOf(key, outages, now) {
  const lane = lanes.get(key) ?? make("div", { className: "lane" });
  lanes.set(key, lane);
  const from = now - LANE_MS;
  const place = (moment) => Math.min(1, Math.max(0, (moment - from) / LANE_MS));
  const shown = outages.filter(([, ended]) => ended === null || ended > from);
  while (lane.children.length > shown.length) lane.lastChild.remove();
  shown.forEach(([began, ended], number) => placeMark(lane.children[number] ?? lane.appendChild(make("i")), place(began), place(ended ?? now)));
  lane.title = shown.length ? `${shown.length} times without all connections` : "nothing lost";
  return lane;
}

function showFeeds({ feeds, timestampMs: now }) {
  const key = (feed) => [feed.exchange, feed.dataTypes, feed.symbols, feed.isPublished].join(" ");
  for (const known of [...lanes.keys()]) if (!feeds.some((feed) => key(feed) === known)) lanes.delete(known);
  fillRows(byId("feeds").tBodies[0], feeds, key, (feed) => {
    const age = feed.lastMessageMs === null ? null : Math.max(0, now - feed.lastMessageMs) / 1000;
    return [
      feed.exchange,
      feed.symbols.join(", ") || "all",
      feed.dataTypes.join(", ") + (feed.isPublished ? "" : " (not published)"),
      [whole(feed.clients), "number"],
      [whole(feed.messagesPerSecond), "number"],
      [age === null ? "none yet" : duration(age), `number ${feed.isHearing ? "good" : "bad"}`],
      [whole(feed.losses), feed.losses ? "number warn" : "number"],
      laneOf(key(feed), feed.outagesMs, now),
    ];
  });
}

function showBuses({ buses }) {
  const isDead = (bus) => DEAD.includes(bus.state);
  fillRows(
    byId("buses").tBodies[0],
    buses,
    (bus) => bus.bus,
    (bus) => [
      bus.bus,
      [bus.state, isDead(bus) ? "bad" : bus.state === "connected" ? "good" : "warn"],
      [whole(bus.confirmed_per_second), "number"],
      [bus.confirm_ms ? `${+bus.confirm_ms.p50.toFixed(1)} / ${+bus.confirm_ms.p99.toFixed(1)} ms` : "", "number"],
      [`${whole(bus.queue_events)} (${bytes(bus.queue_bytes)})`, "number"],
      [`${whole(bus.spool_events)} (${bytes(bus.spool_bytes)})`, bus.spool_events ? "number warn" : "number"],
      [whole(bus.published), "number"],
      [whole(bus.confirmed), "number"],
      [whole(bus.unconfirmed), bus.unconfirmed && isDead(bus) ? "number bad" : "number"],
      [whole(bus.dead_lettered), bus.dead_lettered ? "number bad" : "number"],
      [whole(bus.dropped), bus.dropped ? "number bad" : "number"],
      bus.last_error ?? "",
    ],
    (bus) => (isDead(bus) ? "dead" : ""),
  );
}

// Behind by so much, a lake job has trouble, not a batch under way.
const LATE_S = 300;

function showLake({ lakeJobs }) {
  byId("lake").hidden = !lakeJobs.length;
  const red = (count) => [whole(count), count ? "number bad" : "number"];
  fillRows(
    byId("lake-jobs").tBodies[0],
    lakeJobs,
    ({ job }) => job,
    ({ job, problem, lagSeconds, commitAgeSeconds, left, rows, quarantined, lost }) =>
      problem
        ? [job, "", "", "", "", "", "", [problem, "bad"]]
        : [
            job,
            [duration(lagSeconds), `number ${lagSeconds > LATE_S ? "bad" : "good"}`],
            [Object.entries(left).map(([what, count]) => `${whole(count)} ${what}`).join(", "), "number"],
            [commitAgeSeconds === null ? "none yet" : `${duration(commitAgeSeconds)} ago`, "number"],
            [whole(rows["bronze.events"] ?? 0), "number"],
            red(quarantined),
            red(lost),
            "",
          ],
    ({ problem }) => (problem ? "dead" : ""),
  );
}

const shownReplays = new Map();

/** What of a replay's row is kept: where it is, and its buttons. */
class ReplayParts {
  #isPaused = false;
  #text = make("span");
  #played = make("i");
  #toggle = make("button", { type: "button" });
  position = make("div", { className: "position" }, this.#text, make("div", { className: "lane" }, this.#played));
  buttons = make("span", { className: "buttons" }, this.#toggle);

  constructor(id) {
    // It may have ended since it was shown; the next state says so.
    const steer = (message) => control(id, message).catch(() => {});
    const step = make("button", { type: "button", textContent: "Step" });
    this.#toggle.addEventListener("click", () => steer({ control: this.#isPaused ? "resume" : "pause" }));
    step.addEventListener("click", () => steer({ control: "step" }));
    this.buttons.append(step);
  }

  show({ paused, position, from, to }) {
    this.#isPaused = paused;
    setText(this.#toggle, paused ? "Resume" : "Pause");
    setText(this.#text, position.replace("T", " ").slice(0, 19));
    const [at, began, end] = [position, from, to].map(Date.parse);
    placeMark(this.#played, 0, (at - began) / (end - began));
    this.position.title = `from ${from} to ${to}`;
    return this;
  }
}

function partsOf(replay) {
  const parts = shownReplays.get(replay.id) ?? new ReplayParts(replay.id);
  shownReplays.set(replay.id, parts);
  return parts.show(replay);
}

/** Names, and how many there are where they are not all shown. */
const names = (shown, count) => shown.join(", ") + (count ? `, … (${whole(count)})` : "");

function describe(request) {
  const what = [request.exchange];
  if (request.dataTypes) what.push(names(request.symbols ?? ["all symbols"], request.symbolCount), request.dataTypes.join(", "));
  for (const { channel, symbols, symbolCount } of request.filters ?? []) what.push(`${channel} ${names(symbols ?? [], symbolCount)}`.trim());
  if (request.filterCount) what.push(`… (${whole(request.filterCount)} channels)`);
  return what.join(" · ");
}

function showReplays({ replays }, mayControl) {
  for (const known of [...shownReplays.keys()]) if (!replays.some(({ id }) => id === known)) shownReplays.delete(known);
  fillRows(
    byId("replays").tBodies[0],
    replays,
    (replay) => replay.id,
    (replay) => [
      replay.request.map(describe).join("; ") + (replay.requestCount > replay.request.length ? `; … (${whole(replay.requestCount)} requests)` : ""),
      partsOf(replay).position,
      [replay.state === "playing" ? speedText(replay.speed) : replay.state, "number"],
      [whole(replay.messagesPerSecond), "number"],
      [whole(replay.clients), "number"],
      mayControl ? partsOf(replay).buttons : "",
    ],
  );
}
