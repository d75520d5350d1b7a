// The third view: a request put together, tried, and taken elsewhere.

import { byId, make, setText } from "./elements.js";
import { Refusal, hasToken, linesOf, post } from "./server.js";
import { snippetsOf } from "./snippets.js";
import { suggestSymbols } from "./symbols.js";

const SHOWN_LINES = 20;

const form = byId("request-form");
const answer = byId("answer");
const answerNote = byId("answer-note");
let exchanges = [];
let abort = null;

const parts = (text) => text.split(",").map((item) => item.trim()).filter(Boolean);

/** The request as it stands in the form. */
function read() {
  const chosen = [...byId("data-types").querySelectorAll("input:checked")].map(({ value }) => value);
  const request = { exchange: form.exchange.value.trim() };
  const symbols = parts(form.symbols.value);
  if (symbols.length) request.symbols = symbols;
  Object.assign(request, { from: form.from.value.trim(), to: form.to.value.trim(), dataTypes: [...chosen, ...parts(form.computed.value)] });
  if (form.withDisconnectMessages.checked) request.withDisconnectMessages = true;
  return request;
}

function showDataTypes() {
  const known = exchanges.find(({ exchange }) => exchange === form.exchange.value.trim());
  const box = byId("data-types");
  const names = known?.dataTypes ?? ["trade", "book_change"];
  if (box.dataset.names === names.join()) return;
  box.dataset.names = names.join();
  box.replaceChildren(
    ...names.map((name) =>
      make("label", { className: "choice" }, make("input", { type: "checkbox", value: name, checked: name === "trade" }), name),
    ),
  );
}

function showSnippets() {
  const box = byId("snippets");
  for (const [place, [title, text]] of snippetsOf(read(), hasToken()).entries()) {
    const pre = box.children[place]?.querySelector("pre") ?? addSnippet(box, title);
    setText(pre, text);
  }
}

function addSnippet(box, title) {
  const pre = make("pre", { tabIndex: 0 });
  const copy = make("button", { type: "button" }, "Copy");
  copy.addEventListener("click", async () => {
    getSelection().selectAllChildren(pre);
    // A page that came from another machine without TLS has no clipboard but this old one.
    if (navigator.clipboard) await navigator.clipboard.writeText(pre.textContent);
    else document.execCommand("copy");
    setText(copy, "Copied");
    setTimeout(() => setText(copy, "Copy"), 1500);
  });
  box.append(make("div", { className: "snippet", dataset: { title } }, make("div", { className: "title" }, make("h4", {}, title), copy), pre));
  return pre;
}

/** The place for what is wrong with a field, as the server names it: `from`, `[0].symbols`, `dataTypes`. */
function placeOf(field) {
  const name = field.replace(/^\[\d+\]\./, "");
  const input = form.elements.namedItem(name);
  return {
    input: input instanceof HTMLInputElement ? input : null,
    note: input?.closest?.("label")?.querySelector(".problem") ?? form.querySelector(`[data-field="${CSS.escape(name)}"]`) ?? form.querySelector('[data-field=""]'),
  };
}

function clearProblems() {
  for (const note of form.querySelectorAll(".problem")) setText(note, "");
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

/** A sentence in the place of an answer. */
function tellAnswer(text) {
  answer.hidden = true;
  setText(answerNote, text);
}

async function run() {
  abort?.abort();
  const { signal } = (abort = new AbortController());
  clearProblems();
  tellAnswer("Waiting for the first lines…");
  try {
    const lines = [];
    for await (const line of linesOf(await post("/replay-normalized", { ...read(), publish: false }, signal))) {
      if (lines.push(line) === SHOWN_LINES) break;
    }
    if (!lines.length) return tellAnswer("The answer is empty: there is nothing of these symbols and data types in this time.");
    tellAnswer("");
    setText(answer, lines.join("\n"));
    answer.hidden = false;
  } catch (error) {
    if (signal.aborted) return;
    tellAnswer("Nothing was answered.");
    const { input, note } = placeOf(error instanceof Refusal ? error.field : "");
    setText(note, error.message);
    input?.setAttribute("aria-invalid", "true");
    input?.focus();
  } finally {
    // What is beyond the first lines is not wanted.
    if (!signal.aborted) abort.abort();
  }
}

/** `known` is what `/ui/exchanges` will tell. */
export function startRequest(known) {
  const refresh = () => {
    showDataTypes();
    showSnippets();
  };
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  suggestSymbols(form.symbols, () => form.exchange.value, known);
  refresh();
  const learn = (told) => {
    exchanges = told;
    refresh();
  };
  // Where nobody tells them, any may be typed.
  known.then(learn, () => {});
}
