"use strict";
const said = document.getElementById("said"), root = document.documentElement;
const at = (id) => document.getElementById(id);

// A page from a file is no secure context everywhere: then its text is selected and copied as by hand.
async function copy(button) {
  const from = at(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(from.textContent);
  } catch {
    getSelection().selectAllChildren(from);
    document.execCommand("copy");
  }
  said.textContent = button.textContent = "Copied";
}

const scheme = at("scheme");
function isDark() {
  return (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}
function name() {
  scheme.textContent = isDark() ? "Light" : "Dark";
}
scheme.hidden = false;
name();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);

// The letters of a map as words: each is a bound, and z all beyond it.
const figures = at("head-dialog").dataset.figures.split(" ");
function words(sign) {
  if (sign === "-") return "masked";
  if (sign === ".") return "right";
  return figures[sign.toLowerCase().charCodeAt(0) - 97] + (sign < "a" ? " (0)" : "");
}
function kindOf(level) {
  return level < 2 ? "t-r0" : level === 2 ? "t-r1" : "t-w" + Math.min(4, 1 + ((level - 3) >> 2));
}
function classOf(sign) {
  return sign === "-" ? "t-hidden" : sign === "." ? "t-r0" : kindOf(sign.toLowerCase().charCodeAt(0) - 97);
}
function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
// A table of rows of cells, with names of rows and columns and a caption.
function tableOf(caption, corner, columns, rows) {
  const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  if (caption) table.createCaption().textContent = caption;
  head.append(element("th", corner), ...columns.map((words) => element("th", words)));
  for (const one of head.cells) one.scope = "col";
  for (const [name, cells] of rows) {
    const row = body.insertRow(), first = element("th", name);
    first.scope = "row";
    row.append(first, ...cells);
  }
  return table;
}

// Numbers as the rest of the page writes them: four digits.
function value(number) {
  if (Number.isNaN(number)) return "nan";
  if (!Number.isFinite(number)) return number > 0 ? "inf" : "-inf";
  if (number === 0) return "0";
  const short = number.toExponential(3), power = Number(short.slice(short.indexOf("e") + 1));
  if (power >= -4 && power < 4) return String(Number(short));
  const sign = power < 0 ? "-" : "+";
  return String(Number(short.slice(0, short.indexOf("e")))) + "e" + sign + String(Math.abs(power)).padStart(2, "0");
}
// What is kept of whole heads, by the id of their map; see tile_values.py.
function headOf(id) {
  const kept = at(id).closest(".every-map").querySelector(".values");
  return kept && JSON.parse(kept.textContent)[id.slice(id.indexOf("map-"))];
}
function read(head, row, col) {
  const [rows, cols] = head.tile, y = Math.floor(row / rows), x = Math.floor(col / cols), key = y + "," + x;
  head.read = head.read || {};
  if (!head.read[key] && head.tiles[key]) {
    const bytes = Uint8Array.from(atob(head.tiles[key]), (letter) => letter.charCodeAt(0));
    head.read[key] = new DataView(bytes.buffer);
  }
  const view = head.read[key];
  if (!view) return null;
  const wide = Math.min(cols, head.shape[1] - x * cols), count = view.byteLength / 9;
  const here = (row - y * rows) * wide + col - x * cols;
  const actual = view.getFloat32(4 * here, true), second = view.getFloat32(4 * (count + here), true);
  const sign = view.getUint8(8 * count + here), alone = sign & 0x80;
  return { actual, expected: alone ? second : actual - second, difference: alone ? NaN : second, level: sign & 0x7f };
}
function valuesOf(head, [row, col], [rows, cols]) {
  const until = [Math.min(row + rows, head.shape[0]), Math.min(col + cols, head.shape[1])], found = [], columns = [];
  for (let x = col; x < until[1]; x++) columns.push("col " + x);
  for (let y = row; y < until[0]; y++) {
    const line = [];
    for (let x = col; x < until[1]; x++) line.push(read(head, y, x));
    found.push([head.lines.length ? head.lines[y] : y, line]);
  }
  const cells = (line, part) => line.map((one) => {
    const kind = one.level > 2 ? part === "difference" ? "wrong " + kindOf(one.level) : "wrong" : "";
    return element("td", value(one[part]), kind);
  });
  const parts = ["actual", "expected", "difference"];
  if (columns.length === 1) {
    return tableOf("", "row", parts, found.map(([name, line]) => [name, parts.flatMap((part) => cells(line, part))]));
  }
  const made = found.flatMap(([name, line]) => parts.map((part) => [`row ${name} ${part}`, cells(line, part)]));
  return tableOf("", "", columns, made);
}
function showValues(head, from, span) {
  const into = at("head-values");
  into.replaceChildren(valuesOf(head, from, span));
  into.scrollIntoView({ block: "start" });
}

function numbers(words) {
  return words ? words.split(",").map(Number) : [];
}
function openHead(button) {
  const { name: title, words: told, tiles } = button.dataset, { size, lines } = button.closest(".chapter").dataset;
  const [rows, cols] = numbers(size), rowNames = numbers(lines), signs = tiles ? tiles.split("|") : [];
  const kept = headOf(button.id), opens = (y, x) => kept && kept.tiles[y + "," + x];
  at("head-title").textContent = title;
  const beyond = /z/i.test(tiles) ? ` (${words("z")} is also what is not finite)` : "";
  at("head-words").textContent = told + "; each tile as a multiple of what is allowed" + beyond;
  at("head-values").replaceChildren();
  const cellOf = (sign, y, x) => {
    const made = element("td", opens(y, x) ? "" : words(sign), classOf(sign));
    if (opens(y, x)) {
      const open = element("button", words(sign), "tile");
      open.type = "button";
      open.addEventListener("click", () => showValues(kept, [y * rows, x * cols], [rows, cols]));
      made.append(open);
    }
    return made;
  };
  const made = signs.map((line, y) => [rowNames.length ? rowNames[y] : y * rows, [...line].map((sign, x) => cellOf(sign, y, x))]);
  at("head-table").replaceChildren(...(signs.length ? [tableOf("", "row, col", [...signs[0]].map((_, x) => x * cols), made)] : []));
  at("head-dialog").showModal();
}

// A wide box that scrolls shows at which edge it goes on: when it comes, when it is resized, and as it is scrolled.
function markEdges(box) {
  box.classList.toggle("more-left", box.scrollLeft > 1);
  box.classList.toggle("more-right", box.scrollWidth - box.clientWidth - box.scrollLeft > 1);
}
const resized = new ResizeObserver((boxes) => boxes.forEach((one) => markEdges(one.target)));
function watchEdges(part) {
  for (const box of part.querySelectorAll(".scroll, .closeup")) resized.observe(box);
}
document.addEventListener("scroll", (event) => {
  if (event.target.matches && event.target.matches(".scroll, .closeup")) markEdges(event.target);
}, true);
watchEdges(document);

// What stands behind a cell of a matrix, whole, where the page has it: it is unpacked when it is opened.
const wholes = at("wholes") ? JSON.parse(at("wholes").textContent) : {};
async function unpack(box) {
  const packed = wholes[box.id];
  if (!packed || !box.open || unfolded.includes(box) || !globalThis.DecompressionStream) return;
  delete wholes[box.id];
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const whole = document.createElement("div");
  whole.className = "whole";
  whole.innerHTML = await new Response(plain).text();
  for (const short of box.querySelectorAll(":scope > .short")) short.remove();
  box.querySelector("summary").after(whole);
  watchEdges(whole);
}
document.addEventListener("toggle", (event) => unpack(event.target), true);

// On paper everything is unfolded.
let unfolded = [];
function unfold() {
  unfolded = unfolded.length ? unfolded : [...document.querySelectorAll("details:not([open])")];
  for (const box of unfolded) box.open = true;
}
function fold() {
  for (const box of unfolded) box.open = false;
  unfolded = [];
}
addEventListener("beforeprint", unfold);
addEventListener("afterprint", fold);
const paper = matchMedia("print");
paper.addEventListener("change", () => (paper.matches ? unfold() : fold()));

// What a link leads to is opened and gets the focus, and Escape goes back to the link.
let from = null;
function open() {
  const to = location.hash && at(decodeURIComponent(location.hash.slice(1))), box = to && to.closest("details");
  if (box && !box.open) {
    box.open = true;
    box.querySelector("summary").focus();
  }
}
addEventListener("hashchange", open);
open();
document.addEventListener("click", (event) => {
  const on = (what) => event.target.closest(what);
  from = on("a[href^='#']") || from;
  if (on("a[href^='#']")) setTimeout(open); // also where it leads to what was opened and closed before
  if (on("#scheme")) {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  } else if (on(".copy")) copy(on(".copy"));
  else if (on(".head")) openHead(on(".head"));
  else if (on("[data-opens]")) {
    event.preventDefault();
    at(on("[data-opens]").dataset.opens).showModal();
  } else if (on("[data-head]")) {
    const { head, from: first, span } = on("[data-head]").dataset;
    event.preventDefault();
    openHead(at(head));
    showValues(headOf(head), numbers(first), numbers(span));
  } else if (on(".overview a")) {
    const map = at(on(".overview a").getAttribute("href").slice(1));
    if (!map) return;
    event.preventDefault();
    const box = map.closest("details");
    if (box) box.open = true;
    map.scrollIntoView({ block: "center" });
    map.focus();
  }
});
document.addEventListener("keydown", (event) => {
  const box = event.key === "Escape" && event.target.closest("details[open]");
  if (box) {
    box.open = false;
    (box.closest(".whole") ? box.querySelector("summary") : from || box.querySelector("summary")).focus();
  }
});
