// The playground: one or two pattern expressions with a common length, query and head, all of it in the address.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const form = document.getElementById("setting");
  const note = document.getElementById("limits");
  const LONGEST = 512;
  const SIDES = ["left", "right"];
  const START = { left: "Causal() & (Band(4) | Strided(8))", right: "Causal() & Fixed(8, 1)", length: 48, query: 40 };
  const hosts = SIDES.map(() => document.createElement("div"));
  document.querySelector(".views").append(...hosts);
  // the query of the setting may be beyond a short row; then the last query is shown
  const setting = { left: START.left, right: null, length: START.length, query: START.query, head: 0 };
  let lastSide = "left"; // the field that was used last gets examples and patterns

  const views = SIDES.map((side, n) => {
    const onText = (text) => change({ [side]: text });
    return new Atlas.PatternView(hosts[n], side, (query) => change({ query }), onText);
  });
  views.forEach((view, n) => view.input.addEventListener("focus", () => (lastSide = SIDES[n])));
  for (let h = 0; h < Atlas.HEADS; h += 1) form.elements.head.append(new Option(String(h), String(h)));

  const isWhole = (text, least, most) => /^\d+$/.test(text ?? "") && Number(text) >= least && Number(text) <= most;
  const whole = (text, least, most, otherwise) => {
    return /^\d+$/.test(text ?? "") ? Math.max(least, Math.min(most, Number(text))) : otherwise;
  };

  function change(changes) {
    Object.assign(setting, changes);
    const values = new URLSearchParams({ left: setting.left });
    if (setting.right !== null) values.set("right", setting.right);
    for (const name of ["length", "query"]) values.set(name, setting[name]);
    if (setting.head) values.set("head", setting.head);
    Atlas.replaceAddress("playground", values);
    render();
  }

  // Write a value into a box, but not while the reader types in it or while it holds a refused value.
  function write(box, value) {
    if (document.activeElement !== box && box.getAttribute("aria-invalid") !== "true") box.value = value;
  }

  function render() {
    const { left, right, length, head } = setting;
    const query = Math.min(setting.query, length - 1);
    write(form.elements.positions, length);
    write(form.elements.query, query);
    form.elements.query.max = length - 1;
    document.getElementById("last-query").textContent = `0 to ${length - 1}`;
    form.elements.both.checked = right !== null;
    hosts[1].hidden = right === null;
    hosts[1].parentElement.classList.toggle("two", right !== null);
    views[0].show(left, length, query, head);
    if (right !== null) views[1].show(right, length, query, head);
    const differs = views.some((view, n) => (n === 0 || right !== null) && view.pattern && view.differsByHead);
    form.elements.head.value = head;
    form.elements.head.closest("label").hidden = !differs;
  }

  // An address without a length, a query or expressions leaves them as they are.
  function showPlayground(settings) {
    const hasText = settings.has("left");
    refuse(form.elements.positions, false);
    refuse(form.elements.query, false);
    Object.assign(setting, {
      left: settings.get("left") ?? setting.left,
      right: hasText ? settings.get("right") : setting.right,
      length: whole(settings.get("length"), 1, LONGEST, setting.length),
      query: whole(settings.get("query"), 0, LONGEST - 1, setting.query),
      head: whole(settings.get("head"), 0, Atlas.HEADS - 1, 0),
    });
    note.textContent = "";
    if (whole(settings.get("length"), 0, Infinity, 1) > LONGEST) note.textContent = tooLong(settings.get("length"));
    render();
  }

  const tooLong = (text) => `Length ${text} is over the maximum; the drawing has ${setting.length} positions.`;

  function refuse(box, isRefused) {
    box.setAttribute("aria-invalid", String(isRefused));
  }

  // Apply the boxes as they are typed. A value outside the limits is not applied, and the note says why.
  function readBoxes() {
    const { positions, query, head } = form.elements;
    const goodLength = isWhole(positions.value, 1, LONGEST);
    refuse(positions, !goodLength);
    if (goodLength) setting.length = Number(positions.value);
    const last = setting.length - 1;
    const goodQuery = isWhole(query.value, 0, last) || document.activeElement !== query;
    refuse(query, !goodQuery);
    const changes = { head: Number(head.value) };
    if (goodQuery && document.activeElement === query) changes.query = Number(query.value);
    const texts = [];
    if (!goodLength) {
      const isLong = isWhole(positions.value, LONGEST + 1, Infinity);
      const drawn = `the drawing still has ${setting.length} positions`;
      texts.push(
        isLong
          ? `Length ${positions.value} is over the maximum of ${LONGEST}; ${drawn}.`
          : `A length is a whole number from 1 to ${LONGEST}; ${drawn}.`,
      );
    }
    if (!goodQuery) {
      const drawn = `the drawing still shows query ${Math.min(setting.query, last)}`;
      texts.push(`A query is a whole number from 0 to ${last}; ${drawn}.`);
    }
    note.textContent = texts.join(" ");
    change(changes);
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => event.target.type === "number" && readBoxes());
  form.elements.head.addEventListener("change", readBoxes);
  form.elements.both.addEventListener("change", ({ target }) => {
    change({ right: target.checked ? setting.right ?? START.right : null });
    const isBelow = target.checked && hosts[1].getBoundingClientRect().top > innerHeight - 100; // as on a phone
    if (isBelow) hosts[1].scrollIntoView({ block: "start" });
  });

  const side = () => (setting.right !== null ? lastSide : "left");

  function setText(text) {
    views[SIDES.indexOf(side())].input.value = text;
    change({ [side()]: text });
    hosts[SIDES.indexOf(side())].scrollIntoView({ block: "start" });
  }

  document.querySelector(".examples").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) setText(button.dataset.text);
  });

  // Add a pattern to the expression: in place of a selected part, or at the end. An empty expression or an example that
  // nobody changed is replaced.
  const examples = new Set([...document.querySelectorAll(".examples button")].map((button) => button.dataset.text));
  for (const text of [START.left, START.right, ...ATLAS.patterns.map(({ example }) => example)]) examples.add(text);
  function addPattern(example) {
    const { input } = views[SIDES.indexOf(side())];
    const text = input.value.trim();
    const [start, end] = [input.selectionStart, input.selectionEnd];
    if (!text || examples.has(text)) setText(example);
    else if (start < end) setText(input.value.slice(0, start) + example + input.value.slice(end));
    else setText(`${text} | ${example}`);
  }

  function patternItem({ name, sentence, example, ideas }) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    const code = document.createElement("code");
    button.type = "button";
    button.title = `add ${example}`;
    code.textContent = Atlas.usage(name);
    button.append(code);
    button.addEventListener("click", () => addPattern(example));
    item.append(button, ` ${sentence}`);
    for (const key of ideas) {
      const link = document.createElement("a");
      link.href = `#idea/${key}`;
      link.textContent = ATLAS.ideas.find((idea) => idea.key === key).title;
      item.append(item.querySelector("a") ? ", " : " Idea: ", link);
    }
    if (ideas.length) item.append(".");
    return item;
  }

  document.getElementById("patterns").append(...ATLAS.patterns.map(patternItem));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => hosts[0].offsetParent && render());

  Object.assign(Atlas, { showPlayground });
})();
