// The theme that a reader has chosen for all pages of ours: the system's, light or dark.

const THEMES = { "": "(prefers-color-scheme: dark)", light: "not all", dark: "all" }; // when a plot is drawn for dark

/** What this browser keeps for the page; null where there is nothing, or no storage, as for some files on disk. */
function stored(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** Have the browser keep something; false where it does not. */
function store(key, value) {
  try {
    localStorage.setItem(key, value);
    return true;
  } catch {
    return false;
  }
}

function showTheme(chosen) {
  document.documentElement.dataset.theme = chosen;
  document.querySelector("#theme span").textContent = `: ${chosen || "system"}`;
  for (const dark of document.querySelectorAll("picture source")) dark.media = THEMES[chosen];
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const chosen = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  showTheme(chosen);
  store("theme", chosen);
}

document.getElementById("theme").addEventListener("click", nextTheme);
showTheme(Object.hasOwn(THEMES, stored("theme")) ? stored("theme") : "");
