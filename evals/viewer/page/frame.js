// What is around every page of ours: the theme, the help, and keys, which do nothing while something is typed.

const THEMES = ["", "light", "dark"]; // "" is the system's

function theme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  document.querySelector("#theme span").textContent = `: ${chosen || "system"}`;
}

function nextTheme() {
  const chosen = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "") + 1) % THEMES.length];
  theme(chosen);
  store("theme", chosen);
}

const dialog = document.getElementById("keys");
const help = () => dialog.open || dialog.showModal();

/** Begin: show the theme that was chosen, and do what is asked by keys, { key: action }, and by the bar's buttons. */
function listen(actions) {
  const keys = { ...actions, "?": help, t: nextTheme };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || dialog.open) return;
    const field = event.target.closest?.("input:not([type=checkbox]), select, textarea");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const action = own(keys, event.key);
    if (!action) return;
    event.preventDefault();
    action(event);
  });
  document.getElementById("theme").addEventListener("click", nextTheme);
  document.getElementById("help").addEventListener("click", help);
  theme(THEMES.includes(stored("theme")) ? stored("theme") : "");
}
