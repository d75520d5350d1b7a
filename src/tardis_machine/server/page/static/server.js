// What the page asks of its server. The token, where there is one, is kept in this variable alone.

import { byId } from "./elements.js";

let token = "";
let login = null;

/** What the server said against a request: `field` names the option. */
export class Refusal extends Error {
  constructor(status, { message = `status ${status}`, field = "" }) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

export const hasToken = () => token !== "";

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

/** A response; asks for the token until it is right, and raises a Refusal for any other error. */
export async function ask(path, init = {}) {
  for (;;) {
    const used = token;
    const response = await fetch(path, { ...init, headers: { ...init.headers, ...headers() } });
    if (response.status === 401) {
      await (login ??= enter(used !== "").finally(() => (login = null)));
      continue;
    }
    if (!response.ok) throw new Refusal(response.status, await response.json().catch(() => ({})));
    return response;
  }
}

/** Shows the dialog until somebody enters something. */
function enter(wasWrong) {
  const dialog = byId("login");
  const field = dialog.querySelector("input");
  dialog.querySelector(".problem").hidden = !wasWrong;
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        token = field.value;
        field.value = "";
        resolve();
      },
      { once: true },
    );
  });
}

export const askJson = async (path, init) => (await ask(path, init)).json();

export const post = (path, body, signal) =>
  ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });

/** The lines of an answer, as they come. */
export async function* linesOf(response) {
  let rest = "";
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) yield line;
  }
  if (rest) yield rest;
}

/** The states of the machine, for ever; `onLost` is told why there is none. */
export async function watch(onState, onLost) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 10_000)) {
    let reason = "the server does not answer";
    try {
      for await (const line of linesOf(await ask("/ui/events"))) {
        pause = 500;
        onState(JSON.parse(line.slice("data: ".length)));
      }
    } catch (error) {
      if (error instanceof SyntaxError) throw error;
      if (error instanceof Refusal) reason = error.message;
    }
    onLost(reason);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** A WebSocket of this server. A handshake has no headers of ours, so the token travels as a subprotocol. */
export function openSocket(path) {
  const protocols = ["tardis-machine"];
  if (token) {
    const binary = String.fromCharCode(...new TextEncoder().encode(token));
    protocols.push("bearer." + btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", ""));
  }
  const url = new URL(path, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  return new WebSocket(url, protocols);
}
