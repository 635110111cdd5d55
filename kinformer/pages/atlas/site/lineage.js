// The map of descent: the ancestors and descendants of a member stay bright, the others fade.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const map = document.getElementById("map");
  const boxes = new Map([...map.querySelectorAll("a[data-name]")].map((box) => [box.dataset.name, box]));
  const lines = [...map.querySelectorAll(".line")];
  const select = document.getElementById("kin").elements.name;
  const status = document.getElementById("descent");
  let chosen = null; // the member of the address; pointing at another one shows that one for a while

  select.append(new Option("choose a member", ""), ...[...boxes.keys()].sort().map((name) => new Option(name, name)));

  function reach(name, field) {
    const names = new Set();
    const rest = [...Atlas.byName.get(name)[field]];
    while (rest.length) {
      const next = rest.pop();
      if (names.has(next)) continue;
      names.add(next);
      rest.push(...Atlas.byName.get(next)[field]);
    }
    return names;
  }

  function highlight(name) {
    map.classList.toggle("chosen", Boolean(name));
    const above = name ? reach(name, "parents") : new Set();
    const below = name ? reach(name, "children") : new Set();
    for (const [other, box] of boxes) {
      box.classList.toggle("self", other === name);
      box.classList.toggle("above", above.has(other));
      box.classList.toggle("below", below.has(other));
    }
    for (const line of lines) {
      const { parent, child } = line.dataset;
      line.classList.toggle("above", (above.has(child) || child === name) && above.has(parent));
      line.classList.toggle("below", (below.has(parent) || parent === name) && below.has(child));
    }
    status.innerHTML = name ? sentence(name, above, below) : "";
  }

  const links = (names) => names.map((name) => `<a href="#member/${name}">${name}</a>`).join(", ");

  function sentence(name, above, below) {
    const children = Atlas.byName.get(name).children;
    const later = [...below].filter((other) => !children.includes(other)).sort();
    const parents = above.size ? `Ancestors: ${links([...above].sort())}.` : "It has no ancestor among the members.";
    const from = children.length ? `From ${name} descend ${links(children)}` : `No member descends from ${name}`;
    return `<b>${name}</b>. ${from}${later.length ? `; through them ${links(later)}` : ""}. ${parents}`;
  }

  for (const [name, box] of boxes) {
    box.addEventListener("mouseenter", () => highlight(name));
    box.addEventListener("focus", () => highlight(name));
    box.addEventListener("mouseleave", () => highlight(chosen));
    box.addEventListener("blur", () => highlight(chosen));
  }
  select.addEventListener("change", () => {
    Atlas.go("lineage", select.value ? new URLSearchParams({ name: select.value }) : new URLSearchParams());
  });

  function showLineage(settings) {
    const name = settings.get("name");
    chosen = boxes.has(name) ? name : null;
    select.value = chosen || "";
    highlight(chosen);
    if (chosen) boxes.get(chosen).scrollIntoView({ block: "nearest", inline: "center" });
  }

  Object.assign(Atlas, { showLineage });
})();
