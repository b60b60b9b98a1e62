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
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
scheme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });

// Where a link of a picture opens a dialog; Esc closes it, and the focus goes back.
for (const link of document.querySelectorAll("[data-opens]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById(link.dataset.opens).showModal();
  });
}

// The letters of a map as words: a is a quarter of the budget, each further one twice as much.
function words(sign) {
  if (sign === "-") return "masked";
  if (sign === ".") return "right";
  const level = sign.toLowerCase().charCodeAt(0) - 97, zero = sign < "a" ? " (0)" : "";
  if (level === 25) return "beyond" + zero;
  return (level < 2 ? ["≤¼", "≤½"][level] : "≤" + 2 ** (level - 2)) + zero;
}
function cell(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
function kindOf(sign) {
  const level = sign.toLowerCase().charCodeAt(0) - 97;
  return sign === "-" ? "t-hidden" : level < 2 || sign === "." ? "t-r0" : level === 2 ? "t-r1" : "t-w" + Math.min(4, 1 + ((level - 3) >> 2));
}
function numbers(words) {
  return words ? words.split(",").map(Number) : [];
}
function tableOf(tiles, [rows, cols], lines) {
  const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  head.append(cell("th", "row, col"), ...[...tiles[0]].map((_, at) => cell("th", at * cols)));
  tiles.forEach((line, at) => {
    const row = body.insertRow();
    row.append(cell("th", lines.length ? lines[at] : at * rows), ...[...line].map((sign) => cell("td", words(sign), kindOf(sign))));
  });
  for (const one of table.querySelectorAll("thead th")) one.scope = "col";
  for (const one of table.querySelectorAll("tbody th")) one.scope = "row";
  return table;
}
const shown = document.getElementById("head-dialog");
for (const button of document.querySelectorAll(".head")) {
  button.addEventListener("click", () => {
    const { name: title, words: told, tiles } = button.dataset, { size, lines } = button.closest(".chapter").dataset;
    document.getElementById("head-title").textContent = title;
    document.getElementById("head-words").textContent = told + "; each tile as a multiple of what is allowed";
    const into = document.getElementById("head-table");
    into.replaceChildren(...(tiles ? [tableOf(tiles.split("|"), numbers(size), numbers(lines))] : []));
    shown.showModal();
  });
}
// A cell of the overview leads to the map of its head, which gets the focus.
for (const link of document.querySelectorAll(".overview a")) {
  link.addEventListener("click", (event) => {
    const map = document.getElementById(link.getAttribute("href").slice(1));
    if (!map) return;
    event.preventDefault();
    map.closest("details").open = true;
    map.scrollIntoView({ block: "center" });
    map.focus();
  });
}

// What a link leads to is opened, and Escape goes back to the link.
let from = null;
document.addEventListener("click", (event) => { from = event.target.closest("a[href^='#']") || from; });
function open() {
  const to = location.hash && document.getElementById(location.hash.slice(1)), box = to && to.closest("details");
  if (box) {
    box.open = true;
    box.querySelector("summary").focus();
  }
}
addEventListener("hashchange", open);
open();
document.addEventListener("keydown", (event) => {
  const box = event.key === "Escape" && event.target.closest("details[open]");
  if (box) {
    box.open = false;
    (from || box.querySelector("summary")).focus();
  }
});
