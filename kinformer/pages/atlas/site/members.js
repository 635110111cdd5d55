// The cards of all members: sorted, filtered, or one alone.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const byName = new Map(ATLAS.members.map((member) => [member.name, member]));
  const cards = new Map([...document.querySelectorAll(".card")].map((card) => [card.dataset.name, card]));
  const list = document.querySelector(".cards");
  const bar = document.getElementById("bar");
  let topicOfAddress = ""; // the topic that filters the cards; the search sets it

  // Members in an order; those without the number come last.
  function sorted(key) {
    const members = [...ATLAS.members];
    const order = (member) => (member[key] === null ? Infinity : member[key]);
    return members.sort((a, b) => {
      if (key !== "name" && order(a) !== order(b)) return order(a) - order(b);
      return a.name < b.name ? -1 : 1;
    });
  }

  function isWanted(member, { family, reads, topic }) {
    if (family && member.family !== family) return false;
    if (reads && member.reads !== reads) return false;
    return !topic || member.topics.includes(topic);
  }

  const UNITS = {
    flops: " FLOPs per token",
    state: " bytes of decoding state",
    keys: " keys per query",
    parameters: " parameters",
  };

  // The first members of an order in words, so that the cheapest are named above the cards.
  function describe(members, key) {
    const known = members.filter((member) => member[key] !== null);
    if (!(key in UNITS) || !known.length) return "";
    const star = (member) => (key === "flops" && member.isEstimated ? "*" : "");
    const count = (member) => `${member[key].toLocaleString("en")}${star(member)}`;
    const ends = known.slice(0, 3).map((member) => `${member.name} (${count(member)})`);
    const missing = members.length - known.length;
    const rest = missing ? ` ${missing} members have no such number and come last.` : "";
    return `Fewest${UNITS[key]}${key === "parameters" ? "" : " at 16,384 tokens"}: ${ends.join(", ")}.${rest}`;
  }

  // Show all cards that pass the filters of an address such as "sort=flops&family=memory".
  function showMembers(settings) {
    const key = settings.get("sort") || "name";
    const filters = Object.fromEntries(["family", "reads", "topic"].map((name) => [name, settings.get(name) || ""]));
    bar.elements.sort.value = key;
    bar.elements.family.value = filters.family;
    bar.elements.reads.value = filters.reads;
    list.classList.remove("alone");
    const members = sorted(key);
    const wanted = members.filter((member) => isWanted(member, filters));
    for (const member of members) {
      const card = cards.get(member.name);
      card.hidden = !isWanted(member, filters);
      list.append(card);
    }
    topicOfAddress = filters.topic;
    showFilter(filters);
    document.getElementById("count").textContent = `${wanted.length} of ${members.length} members`;
    document.getElementById("lead-sort").textContent = describe(wanted, key);
  }

  // Say by what the cards are filtered, beside a button that shows all of them again.
  function showFilter({ family, reads, topic }) {
    const entry = ATLAS.topics.find(({ name }) => name === topic);
    const parts = [
      family && `of the family "${family}"`,
      reads && `that read "${reads}"`,
      entry && `of the topic "${topic}"`,
    ].filter(Boolean);
    document.getElementById("filter").hidden = !parts.length;
    document.getElementById("filter-text").textContent = `Only members ${parts.join(", and ")} are shown. ${
      entry ? entry.says : ""
    }`;
  }

  document.getElementById("show-all").addEventListener("click", () => {
    const { value } = bar.elements.sort;
    Atlas.go("members", value === "name" ? new URLSearchParams() : new URLSearchParams({ sort: value }));
  });

  // Show the whole card of one member.
  function showMember(name) {
    list.classList.add("alone");
    document.getElementById("filter").hidden = true;
    for (const [other, card] of cards) card.hidden = other !== name;
    document.getElementById("count").textContent = "";
    document.getElementById("lead-sort").textContent = "";
  }

  bar.addEventListener("change", () => {
    const values = new URLSearchParams();
    for (const name of ["sort", "family", "reads", "topic"]) {
      const value = name === "topic" ? topicOfAddress : bar.elements[name].value;
      if (value && value !== "name") values.set(name, value);
    }
    Atlas.go("members", values);
  });

  // Links at the end of a card, which need the other parts of the page.
  for (const [name, card] of cards) {
    const line = document.createElement("p");
    line.className = "more links";
    line.innerHTML =
      `<a href="#members">all members</a> <a href="#lineage?name=${name}">on the map</a> ` +
      `<a href="#compare?left=${name}">compare with another</a>`;
    card.append(line);
  }

  Object.assign(Atlas, { byName, cards, showMembers, showMember });
})();
