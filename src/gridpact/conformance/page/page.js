"use strict";
// Filters, links and what is rendered when it is opened. All that comes from records goes into the page as text.

const data = JSON.parse(document.getElementById("records").textContent);
const filters = document.getElementById("filters");
const NAMES = ["family", "verdict", "subject"];

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children); // strings become text nodes
  return element;
}

// ------------------------------------------------------------------------------------------------------------ filters

function chosen(name) {
  return new Set([...filters.querySelectorAll(`input[name=${name}]:checked`)].map((box) => box.value));
}

// Nothing chosen of a kind is no filter.
function filter() {
  const families = chosen("family"), verdicts = chosen("verdict"), subjects = chosen("subject");
  const shown = data.subjects.map((name) => subjects.size === 0 || subjects.has(name));
  for (const element of document.querySelectorAll("[data-subject]")) {
    element.hidden = !shown[element.dataset.subject];
  }
  let count = 0;
  for (const row of document.querySelectorAll(".matrix tbody tr")) {
    let isFound = verdicts.size === 0;
    for (const cell of row.querySelectorAll("td")) {
      const isOf = verdicts.size === 0 || verdicts.has(cell.classList[0]);
      cell.classList.toggle("faint", !isOf);
      isFound ||= isOf && !cell.hidden;
    }
    row.hidden = !isFound || (families.size > 0 && !families.has(row.dataset.family));
    count += row.hidden ? 0 : 1;
    document.getElementById(row.dataset.clause).hidden = row.hidden;
  }
  for (const cell of document.querySelectorAll(".answers td")) {
    cell.classList.toggle("faint", verdicts.size > 0 && !verdicts.has(cell.classList[0]));
  }
  document.getElementById("none").hidden = count > 0;
  document.getElementById("found").textContent = `${count} of ${Object.keys(data.clauses).length} clauses`;
  document.getElementById("chosen").textContent = `${shown.filter(Boolean).length} of ${shown.length}`;
}

// ------------------------------------------------------------------------------- the address: #ANCHOR?case=..&family=..

function address() {
  const [anchor, query] = location.hash.slice(1).split(/\?(.*)/s);
  return { anchor, query: new URLSearchParams(query || "") };
}

function addressOf(anchor, found) {
  const query = new URLSearchParams();
  if (found) query.set("case", found);
  for (const name of NAMES) {
    for (const value of chosen(name)) query.append(name, value);
  }
  const text = query.toString().replaceAll("%3A", ":");
  return `#${anchor}${text ? `?${text}` : ""}`;
}

function follow() {
  const { anchor, query } = address();
  for (const box of filters.querySelectorAll("input")) box.checked = query.getAll(box.name).includes(box.value);
  filter();
  if (query.has("subject")) filters.querySelector("details").open = true;
  const target = anchor && document.getElementById(anchor);
  if (!target) return;
  const clause = target.closest(".clause");
  if (clause) {
    clause.hidden = target.hidden = false; // a link leads there, whatever the filters say
    clause.open = true;
  }
  const [number, subject] = anchor.split("--");
  if (query.has("case") && subject !== undefined && openRecord(number, query.get("case"), Number(subject))) return;
  target.scrollIntoView();
  (clause === target ? target.querySelector("summary") : target).focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const [anchor, query] = link.getAttribute("href").slice(1).split(/\?(.*)/s);
  const next = addressOf(anchor, new URLSearchParams(query || "").get("case"));
  if (location.hash === next) follow();
  else location.hash = next;
});

function keep() {
  filter();
  const { anchor, query } = address();
  history.replaceState(null, "", addressOf(anchor, query.get("case")));
}

filters.addEventListener("change", keep);
filters.addEventListener("reset", () => setTimeout(keep)); // after the boxes are cleared
filters.addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", follow);

// ---------------------------------------------------------------------------------- tables that arrow keys move through

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function holdsFocus(table, selector) {
  // One stop of the tab key for the whole table: the cell that was visited last.
  const cells = () => [...table.rows].filter((row) => !row.hidden && !row.querySelector(".record-of"))
    .map((row) => [...row.cells].filter((cell) => !cell.hidden).map((cell) => cell.querySelector(selector)));
  table.querySelectorAll(selector).forEach((cell, at) => { cell.tabIndex = at ? -1 : 0; });
  table.addEventListener("focusin", (event) => {
    if (!event.target.matches(selector)) return;
    table.querySelectorAll(`${selector}[tabindex="0"]`).forEach((cell) => { cell.tabIndex = -1; });
    event.target.tabIndex = 0;
  });
  table.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || !event.target.matches(selector)) return;
    event.preventDefault();
    const rows = cells();
    let y = rows.findIndex((row) => row.includes(event.target)), x = rows[y].indexOf(event.target);
    do { y += step[0]; x += step[1]; } while (rows[y] && x in rows[y] && !rows[y][x]); // over cells that were not asked
    if (rows[y] && rows[y][x]) rows[y][x].focus();
  });
}

for (const table of document.querySelectorAll(".grid")) holdsFocus(table, "a");

// -------------------------------------------------------------------------------------- every case, when it is asked for

function openCases(details) {
  const anchor = details.dataset.cases;
  if (details.querySelector("table")) return;
  const { cases, records, number } = data.clauses[anchor];
  const subjects = [...new Set(records.map((record) => record[1]))].sort((a, b) => a - b);
  const rows = cases.map((name) => {
    const text = make("code", {}, name.startsWith(`${number}:`) ? name.slice(number.length + 1) : name);
    const row = make("tr", {}, make("th", { scope: "row" }, text));
    for (const subject of subjects) row.append(make("td", { "data-subject": subject, class: "empty" }));
    return row;
  });
  records.forEach((record, at) => {
    const [verdict, sign] = data.verdicts[record[2]];
    const label = `${cases[record[0]]}, ${data.subjects[record[1]]}: ${verdict}`;
    const button = make("button", { type: "button", "data-record": at, "aria-expanded": "false", "aria-label": label, class: verdict }, sign);
    const cell = rows[record[0]].cells[subjects.indexOf(record[1]) + 1];
    cell.className = verdict;
    cell.replaceChildren(button);
  });
  const headings = subjects.map((subject) => {
    const cell = make("th", { scope: "col", "data-subject": subject });
    data.subjects[subject].split(/(?<=[: ])/).forEach((part, at) => cell.append(part, make(at ? "wbr" : "br", {})));
    return cell;
  });
  const table = make("table", { class: "grid of-cases" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col", class: "corner" }, "case"), ...headings)), make("tbody", {}, ...rows));
  table.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-record]");
    if (button) toggleRecord(anchor, button);
  });
  holdsFocus(table, "button[data-record]");
  details.append(make("div", { class: "wide tall", role: "region", "aria-label": `Cases of ${number}`, tabindex: "0" }, table));
  filter();
}

function closeRecord(table) {
  table.querySelector(".record-of")?.parentElement.remove();
  table.querySelector("[aria-expanded=true]")?.setAttribute("aria-expanded", "false");
}

function toggleRecord(anchor, button) {
  const table = button.closest("table"), isOpen = button.getAttribute("aria-expanded") === "true";
  closeRecord(table);
  if (isOpen) return null;
  button.setAttribute("aria-expanded", "true");
  const shown = recordOf(anchor, data.clauses[anchor].records[button.dataset.record]);
  const row = button.closest("tr");
  row.after(make("tr", {}, make("td", { class: "record-of", colspan: row.cells.length }, shown)));
  return shown;
}

function recordOf(anchor, [number, subject, verdict, asked, due, seen, program, stderr, run]) {
  const clause = data.clauses[anchor], name = data.subjects[subject];
  const [device, driver, versions, command] = data.runs[run];
  const told = make("dl", { class: "told" });
  const tell = (what, ...value) => told.append(make("dt", {}, what), make("dd", { class: "text" }, ...value));
  tell("case", make("code", {}, clause.cases[number]));
  tell("launcher", name);
  tell("verdict", `${data.verdicts[verdict][1]} ${data.verdicts[verdict][0]}`);
  const texts = { asked, due, seen, "said last": stderr };
  for (const [what, text] of Object.entries(texts)) if (text) tell(what, data.texts[text]);
  if (program) tell("program", copied(data.texts[program]));
  if (device || driver || versions) tell("on", [device, driver, versions].filter(Boolean).join("; "));
  if (command) tell("asked by", copied(command));
  return make("div", { class: "record", tabindex: "-1" }, told);
}

function copied(text) {
  return make("div", { class: "program" }, make("button", { type: "button", class: "copy" }, "Copy"),
    make("pre", { tabindex: "0" }, make("code", {}, text)));
}

// Opens the record of a case and gives whether there is one.
function openRecord(anchor, name, subject) {
  const clause = data.clauses[anchor];
  const at = clause ? clause.records.findIndex((record) => clause.cases[record[0]] === name && record[1] === subject) : -1;
  if (at < 0) return false;
  const details = document.querySelector(`[data-cases="${CSS.escape(anchor)}"]`);
  openCases(details);
  details.open = true;
  const button = details.querySelector(`[data-record="${at}"]`);
  closeRecord(button.closest("table"));
  const shown = toggleRecord(anchor, button);
  button.closest("tr").scrollIntoView();
  shown.focus({ preventScroll: true });
  return true;
}

// toggle does not bubble
document.addEventListener("toggle", (event) => {
  if (event.target.matches?.(".all") && event.target.open) openCases(event.target);
}, true);

// --------------------------------------------------------------------------------------------------------- copy and print

document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  getSelection().selectAllChildren(code); // what is left to the reader where the clipboard is closed
  let isCopied = true;
  try { await navigator.clipboard.writeText(code.textContent); } catch { isCopied = document.execCommand("copy"); }
  button.textContent = isCopied ? "Copied" : "Selected";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll(".clause:not([open])")].filter((clause) => !clause.hidden);
  for (const clause of opened) clause.open = true;
});
addEventListener("afterprint", () => { for (const clause of opened) clause.open = false; });

follow();
