"use strict";
const root = document.documentElement;
const theme = document.getElementById("theme");

function isDark() {
  const chosen = root.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameTheme() {
  theme.querySelector(".sr").textContent = isDark() ? "Light theme" : "Dark theme";
}

theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();

document.getElementById("copy")?.addEventListener("click", async () => {
  const code = document.getElementById("command");
  const status = document.getElementById("copied");
  try {
    await navigator.clipboard.writeText(code.textContent);
    status.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(code);
    status.textContent = "Selected: copy it with the keyboard.";
  }
});

// On a small screen the first verdicts leave room for the picture and the table.
if (matchMedia("(max-width: 44rem)").matches) {
  for (const few of document.querySelectorAll("details.few")) few.open = false;
}

// What is folded is printed all the same.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll(".fold, .more, .each, .summary details")].filter((one) => !one.open);
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});

for (const button of document.querySelectorAll(".legend button")) {
  const curves = button.closest("figure").querySelectorAll(`g[data-line="${button.dataset.line}"]`);
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(shown));
    for (const curve of curves) curve.classList.toggle("off", !shown);
  });
  for (const [kind, lit] of [["pointerenter", true], ["pointerleave", false], ["focus", true], ["blur", false]]) {
    button.addEventListener(kind, () => {
      for (const curve of curves) curve.classList.toggle("lit", lit);
    });
  }
}

for (const button of document.querySelectorAll("button.notes")) {
  button.addEventListener("click", () => {
    const shown = button.closest(".block").classList.toggle("with-notes");
    button.setAttribute("aria-pressed", String(shown));
  });
}

// Sorting: a button in each column's head; upwards, downwards, as it was. What has no figure stays below.
const order = { none: "ascending", ascending: "descending", descending: "none" };

function value(row, column) {
  const cell = row.cells[column];
  if (cell.tagName === "TH") return cell.textContent;
  const number = Number((cell.dataset.number ?? "nan").replace("inf", "Infinity"));
  return Number.isNaN(number) ? null : number;
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "string" ? a.localeCompare(b) : a === b ? 0 : a - b);
}

for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0];
  const asItWas = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const next = order[head.getAttribute("aria-sort")];
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", next);
      const sign = next === "descending" ? -1 : 1;
      const rows = [...asItWas];
      if (next !== "none") rows.sort((a, b) => compare(value(a, column), value(b, column), sign));
      body.append(...rows);
    });
  });
}
