"use strict";
const root = document.documentElement, scheme = document.getElementById("scheme");
const said = document.getElementById("said");

// A page from a file is no secure context everywhere: then its text is selected and copied as by hand.
async function copy(button) {
  const from = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(from.textContent);
  } catch {
    getSelection().selectAllChildren(from);
    document.execCommand("copy");
  }
  said.textContent = button.textContent = "Copied";
}

function isDark() {
  return (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}
function name() {
  scheme.textContent = isDark() ? "Light" : "Dark";
}
scheme.hidden = false;
name();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);

// On paper everything is unfolded.
let unfolded = [];
function unfold() {
  const folded = [...document.querySelectorAll("details:not([open])")];
  for (const box of folded) box.open = true;
  unfolded.push(...folded);
}
function fold() {
  for (const box of unfolded) box.open = false;
  unfolded = [];
}
addEventListener("beforeprint", unfold);
addEventListener("afterprint", fold);
const paper = matchMedia("print");
paper.addEventListener("change", () => (paper.matches ? unfold() : fold()));

// What a link leads to is opened.
function open() {
  const to = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const box = to && to.closest("details");
  if (box) box.open = true;
}
addEventListener("hashchange", open);
open();
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (event.target.closest("a[href^='#']")) setTimeout(open);
  if (button === scheme) {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  } else if (button) copy(button);
});
