// Search over members, patterns, ideas and words of the field, with the keyboard.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const input = document.getElementById("search");
  const results = document.getElementById("results");
  const MOST = 12;
  let active = -1;

  const plain = (text) => text.toLowerCase().replace(/[_-]+/g, " ").replace(/\s+/g, " ").trim();

  // All results of the search: a label, a kind, an address, and texts in the order of their weight.
  function entries() {
    const list = [];
    const words = (name) => Object.keys(ATLAS.words).filter((word) => ATLAS.words[word] === name);
    for (const { name, sentence, topics } of ATLAS.members) {
      const texts = [name, words(name).join(" | "), topics.join(" | "), sentence];
      const fields = ["", "also called", "topic", ""];
      list.push({ label: name, kind: "member", about: sentence, address: `#member/${name}`, texts, fields });
    }
    for (const { name, sentence, example } of ATLAS.patterns) {
      const address = `#playground?${new URLSearchParams({ left: example })}`;
      const texts = [name, words(name).join(" | "), sentence];
      list.push({ label: name, kind: "pattern", about: sentence, address, texts, fields: ["", "also called", ""] });
    }
    for (const { key, title, sentence, names } of ATLAS.ideas) {
      const parts = title.split(/[()]/).map((part) => part.trim()).filter(Boolean); // "LSH attention (Reformer)"
      const texts = [title, [key, ...parts, ...names].join(" | "), sentence];
      const fields = ["", "also called", ""];
      list.push({ label: title, kind: "idea", about: sentence, address: `#idea/${key}`, texts, fields });
    }
    for (const { name, says, also, members, patterns, draws } of ATLAS.topics) {
      if (!members.length && !patterns.length && !draws) continue;
      const draw = draws || (ATLAS.patterns.find(({ file }) => file === patterns[0]) || {}).example || "";
      const address = members.length
        ? `#members?${new URLSearchParams({ topic: name })}`
        : `#playground?${new URLSearchParams({ left: draw })}`;
      const kind = members.length ? `topic, ${members.length} member${members.length > 1 ? "s" : ""}` : "topic";
      const fields = ["", "also called", ""];
      const texts = [name, also.join(" | "), says];
      list.push({ label: name, kind, about: says, address, texts, fields, isTopic: true });
    }
    return list.map((entry) => ({ ...entry, written: entry.texts, texts: entry.texts.map(plain) }));
  }
  const everything = entries();

  // A smaller number is a better match; Infinity is none. Every word must occur in some text.
  function distance(entry, query) {
    const [name] = entry.texts;
    const late = entry.isTopic ? 1.5 : 0; // a member, pattern or idea of exactly this name comes before a topic
    if (name === query) return late;
    const words = query.split(" ");
    const alike = (other) => other === query || `${other}s` === query || other === `${query}s`;
    if (entry.texts[1].split(/ \| /).some(alike)) return 1 + late;
    if (name.startsWith(query)) return 2;
    if (words.every((word) => name.includes(word))) return 3;
    const places = words.map((word) => entry.texts.findIndex((text) => text.includes(word)));
    if (places.every((place) => place >= 0)) return 4 + Math.max(...places);
    if (query.length > 3 && Atlas.editDistance(name.slice(0, query.length + 2), query) <= query.length / 4) return 9;
    return Infinity;
  }

  function find(text) {
    const query = plain(text);
    if (!query) return [];
    return everything
      .map((entry) => ({ entry, rank: distance(entry, query) }))
      .filter(({ rank }) => rank < Infinity)
      .sort((a, b) => a.rank - b.rank)
      .slice(0, MOST)
      .map(({ entry, rank }) => ({ ...entry, why: explain(entry, query, rank) }));
  }

  // Why an entry matches, if its name and its sentence do not show it.
  function explain(entry, query, rank) {
    if (rank === 9) return "a similar name";
    const words = query.split(" ");
    const shown = `${entry.texts[0]} ${entry.texts.at(-1)}`;
    const hidden = words.filter((word) => !shown.includes(word));
    if (!hidden.length) return "";
    for (let n = 1; n < entry.texts.length - 1; n += 1) {
      const parts = entry.written[n].split(" | ");
      const whole = parts.find((part) => plain(part).includes(query));
      const matching = hidden.map((word) => parts.find((part) => plain(part).includes(word))).filter(Boolean);
      if (whole || matching.length) return `${entry.fields[n]}: ${whole || [...new Set(matching)].join(", ")}`;
    }
    return "";
  }

  function show(entries) {
    active = entries.length ? 0 : -1;
    results.replaceChildren(
      ...entries.map((entry, n) => {
        const item = document.createElement("li");
        item.id = `result-${n}`;
        item.setAttribute("role", "option");
        const link = document.createElement("a");
        link.href = entry.address;
        link.tabIndex = -1;
        const [name, kind, about] = ["b", "span", "small"].map((tag) => document.createElement(tag));
        [name.textContent, kind.textContent, about.textContent] = [entry.label, ` ${entry.kind} `, entry.about];
        link.append(name, kind);
        if (entry.why) {
          const why = document.createElement("em");
          why.textContent = entry.why;
          link.append(why);
        }
        link.append(about);
        item.append(link);
        return item;
      }),
    );
    if (!entries.length && input.value.trim()) {
      const item = document.createElement("li");
      item.className = "none";
      item.textContent = "nothing of this name; try a word of a paper, such as window, memory or hash";
      results.append(item);
    }
    results.hidden = !results.children.length;
    input.setAttribute("aria-expanded", String(!results.hidden));
    mark();
  }

  function mark() {
    [...results.children].forEach((item, n) => item.setAttribute("aria-selected", String(n === active)));
    if (active >= 0) {
      input.setAttribute("aria-activedescendant", `result-${active}`);
      results.children[active].scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  }

  function close() {
    show([]);
    results.replaceChildren();
    results.hidden = true;
    input.setAttribute("aria-expanded", "false");
  }

  input.addEventListener("input", () => show(find(input.value)));
  input.addEventListener("focus", () => input.value && show(find(input.value)));
  input.addEventListener("keydown", (event) => {
    const count = results.querySelectorAll("[role=option]").length;
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && count) {
      active = (active + (event.key === "ArrowDown" ? 1 : -1) + count) % count;
      mark();
    } else if (event.key === "Enter") {
      if (active >= 0) results.children[active].querySelector("a").click();
    } else if (event.key === "Escape") {
      if (results.hidden) input.blur();
      input.value = "";
      close();
    } else return;
    event.preventDefault();
  });
  results.addEventListener("click", () => {
    input.value = "";
    input.blur();
    close();
  });
  document.querySelector(".search").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => !event.target.closest(".search") && close());
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      input.focus();
      event.preventDefault();
    }
  });

  Object.assign(Atlas, { findEntries: find });
})();
