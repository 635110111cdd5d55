// Two cards side by side: a table of the same facts.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const form = document.getElementById("pair");
  const table = document.getElementById("table");
  const names = ATLAS.members.map((member) => member.name);
  for (const select of [form.elements.left, form.elements.right]) {
    select.append(...names.map((name) => new Option(name, name)));
  }

  function cell(tag, html, scope) {
    const element = document.createElement(tag);
    element.innerHTML = html;
    if (scope) element.scope = scope;
    return element;
  }

  function facts(name) {
    const card = Atlas.cards.get(name);
    const pairs = [...card.querySelectorAll("dl.facts > div")];
    const caption = card.querySelector(".caption")?.outerHTML ?? "";
    const drawing = card.querySelector(".drawing").innerHTML;
    return new Map([
      ["paper", card.querySelector(".paper").innerHTML],
      ["in a sentence", card.querySelector(".says").innerHTML],
      ["drawing", `<div class="drawing">${drawing}</div>${caption}`],
      ...pairs.map((pair) => [pair.querySelector("dt").innerHTML, pair.querySelector("dd").innerHTML]),
    ]);
  }

  function showPair(settings) {
    const chosen = ["left", "right"].map((side, n) => {
      const name = settings.get(side);
      return Atlas.byName.has(name) ? name : ["gpt", "longformer"][n];
    });
    [form.elements.left.value, form.elements.right.value] = chosen;
    const [left, right] = chosen.map(facts);
    table.replaceChildren();
    const head = table.createTHead().insertRow();
    head.append(cell("td", ""));
    for (const name of chosen) head.append(cell("th", `<a href="#member/${name}">${name}</a>`, "col"));
    const body = table.createTBody();
    for (const [term, value] of left) {
      const row = body.insertRow();
      row.append(cell("th", term, "row"), cell("td", value), cell("td", right.get(term)));
      row.className = value === right.get(term) ? "equal" : "";
    }
  }

  form.addEventListener("change", () => {
    Atlas.go("compare", new URLSearchParams({ left: form.elements.left.value, right: form.elements.right.value }));
  });

  Object.assign(Atlas, { showPair });
})();
