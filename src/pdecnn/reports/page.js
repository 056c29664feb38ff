"use strict";
// The theme: as the system has it until the reader chooses; the choice is kept where that is allowed.
const KEY = "pdecnn-theme";
function choose(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
function stored() {
  try { return localStorage.getItem(KEY); } catch { return null; }
}
for (const input of document.querySelectorAll("input[name=theme]")) {
  if (input.value === stored()) { input.checked = true; choose(input.value); }
  input.addEventListener("change", () => {
    choose(input.value);
    try { localStorage.setItem(KEY, input.value); } catch { /* a choice for this view only */ }
  });
}
// Volumes: the slice that the slider of a row says, in all of its columns.
for (const row of document.querySelectorAll(".fields > li")) {
  row.querySelector("input[type=range]")?.addEventListener("input", (event) => {
    for (const figure of row.querySelectorAll("figure")) {
      figure.querySelectorAll(".slice").forEach((slice, k) => {
        slice.hidden = k !== Number(event.target.value);
      });
    }
  });
}
