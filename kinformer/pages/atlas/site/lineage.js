// The map of descent: the ancestors and descendants of a member are marked, the others fade.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const map = document.getElementById("map");
  const frame = map.parentElement;
  const boxes = new Map([...map.querySelectorAll("a[data-name]")].map((box) => [box.dataset.name, box]));
  const lines = [...map.querySelectorAll(".line")];
  const families = map.querySelector(".families");
  const select = document.getElementById("kin").elements.name;
  const status = document.getElementById("descent");
  const HINT = status.innerHTML;
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

  // Mark a member and its relatives. The list and the sentence name the same member. The sentence has a fixed room
  // above the map, so the map does not move.
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
    select.value = name || "";
    status.innerHTML = name ? sentence(name, above, below) : HINT;
    status.scrollTop = 0;
  }

  const links = (names) => names.map((name) => `<a href="#member/${name}">${name}</a>`).join(", ");

  function sentence(name, above, below) {
    const { parents, children } = Atlas.byName.get(name);
    const earlier = [...above].filter((other) => !parents.includes(other)).sort();
    const later = [...below].filter((other) => !children.includes(other)).sort();
    const up = parents.length ? `builds on ${links(parents)}` : "builds on no other member";
    const first = `<a href="#member/${name}"><b>${name}</b></a> ${up}`;
    const down = children.length ? `From ${name} descend ${links(children)}` : `No member descends from ${name}`;
    return (
      `${first}${earlier.length ? `, and through them on ${links(earlier)}` : ""}. ` +
      `${down}${later.length ? `; through them ${links(later)}` : ""}.`
    );
  }

  // Keep a member marked, and write it into the address. The map is not scrolled: the member is where the reader is.
  function pin(name) {
    chosen = name;
    Atlas.replaceAddress("lineage", name ? new URLSearchParams({ name }) : new URLSearchParams());
    highlight(name);
  }

  for (const [name, box] of boxes) {
    box.addEventListener("mouseenter", () => highlight(name));
    box.addEventListener("focus", () => highlight(name));
    box.addEventListener("mouseleave", () => highlight(chosen));
    box.addEventListener("blur", () => highlight(chosen));
    box.addEventListener("click", (event) => {
      const opensCard = event.detail === 0 || event.ctrlKey || event.metaKey || event.shiftKey; // Enter, or a new tab
      if (opensCard) return;
      event.preventDefault();
      pin(name);
    });
  }
  map.addEventListener("click", (event) => event.target.closest("a") || pin(null));
  select.addEventListener("change", () => {
    Atlas.go("lineage", select.value ? new URLSearchParams({ name: select.value }) : new URLSearchParams());
  });
  // the names of the families stay at the left end of the frame
  frame.addEventListener("scroll", () => {
    const scale = map.getBoundingClientRect().width / map.viewBox.baseVal.width;
    families.setAttribute("transform", `translate(${frame.scrollLeft / scale} 0)`);
  });

  function showLineage(settings) {
    const name = settings.get("name");
    chosen = boxes.has(name) ? name : null;
    highlight(chosen);
    if (chosen) boxes.get(chosen).scrollIntoView({ block: "nearest", inline: "center" });
  }

  Object.assign(Atlas, { showLineage });
})();
