"use strict";
const said = document.getElementById("said");

// A page from a file is no secure context everywhere: then its text is selected and copied as by hand.
async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(from);
    document.execCommand("copy");
  }
  said.textContent = "copied";
}
for (const button of document.querySelectorAll(".copy")) {
  const from = document.getElementById(button.dataset.copy);
  button.addEventListener("click", () => {
    copy(from.textContent, from).then(() => { button.textContent = "Copied"; });
  });
}

const scheme = document.getElementById("scheme"), root = document.documentElement;
function isDark() {
  return (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}
function name() {
  scheme.textContent = isDark() ? "Light" : "Dark";
}
scheme.hidden = false;
name();
scheme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
