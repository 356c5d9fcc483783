// What is around every page of ours: the help, and keys, which do nothing while something is typed.

const dialog = document.getElementById("keys");
const help = () => dialog.open || dialog.showModal();

/** Begin to do what is asked by keys, { key: action }, and by the bar's buttons. */
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
  document.getElementById("help").addEventListener("click", help);
}
