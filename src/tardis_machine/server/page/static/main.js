// The page: which view is shown, and the connection that feeds it.

import { byId, make, setText } from "./elements.js";
import { showNow } from "./now.js";
import { startMarket } from "./market.js";
import { startRequest } from "./request.js";
import { askJson, watch } from "./server.js";

const VIEWS = ["now", "market", "request"];

function showView() {
  const chosen = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : VIEWS[0];
  for (const view of VIEWS) byId(view).hidden = view !== chosen;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${chosen}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

const THEMES = ["", "light", "dark"];

function nextTheme() {
  const root = document.documentElement;
  root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme ?? "") + 1) % THEMES.length];
  setText(byId("theme"), root.dataset.theme ? `Theme: ${root.dataset.theme}` : "Theme");
  document.dispatchEvent(new CustomEvent("theme"));
}

const connection = byId("connection");

function tell(text, isLost) {
  setText(connection, text);
  connection.classList.toggle("lost", isLost);
  // What is shown was true once.
  byId("now").classList.toggle("stale", isLost);
}

window.addEventListener("hashchange", showView);
byId("theme").addEventListener("click", nextTheme);
showView();

const { mayControl } = await askJson("/ui/abilities");
watch(
  (state) => {
    tell(`connected, version ${state.version}`, false);
    showNow(state, mayControl);
  },
  (reason) => tell(reason, true),
);

const exchanges = askJson("/ui/exchanges");
startMarket(exchanges);
startRequest(exchanges);
exchanges.then(
  (known) => byId("exchange-names").replaceChildren(...known.map(({ exchange }) => make("option", { value: exchange }))),
  (error) => tell(error.message, true),
);
