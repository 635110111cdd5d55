// The playground: one or two pattern expressions with a common length, query and head, all of it in the address.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const form = document.getElementById("setting");
  const LONGEST = 512;
  const START = { left: "Causal() & (Band(4) | Strided(8))", right: "Causal() & Fixed(8, 1)", length: 48, query: 40 };
  const hosts = ["left", "right"].map(() => document.createElement("div"));
  document.querySelector(".views").append(...hosts);
  const setting = { left: START.left, right: null, length: START.length, query: START.query, head: 0 };

  const views = ["left", "right"].map((side, n) => {
    const onText = (text) => change({ [side]: text });
    return new Atlas.PatternView(hosts[n], side, (query) => change({ query }), onText);
  });
  for (let h = 0; h < Atlas.HEADS; h += 1) form.elements.head.append(new Option(String(h), String(h)));

  const whole = (text, least, most, otherwise) => {
    const value = Number(text);
    return Number.isInteger(value) && text !== "" && text !== null ? Math.max(least, Math.min(most, value)) : otherwise;
  };

  function change(changes) {
    Object.assign(setting, changes);
    setting.query = Math.min(setting.query, setting.length - 1);
    const values = new URLSearchParams({ left: setting.left });
    if (setting.right !== null) values.set("right", setting.right);
    for (const name of ["length", "query"]) values.set(name, setting[name]);
    if (setting.head) values.set("head", setting.head);
    Atlas.replaceAddress("playground", values);
    render();
  }

  function render() {
    const { left, right, length, query, head } = setting;
    form.elements.positions.value = length;
    form.elements.query.value = query;
    form.elements.query.max = length - 1;
    form.elements.both.checked = right !== null;
    hosts[1].hidden = right === null;
    hosts[1].parentElement.classList.toggle("two", right !== null);
    views[0].show(left, length, query, head);
    if (right !== null) views[1].show(right, length, query, head);
    const differs = views.some((view, n) => (n === 0 || right !== null) && view.pattern && view.differsByHead);
    form.elements.head.value = head;
    form.elements.head.closest("label").hidden = !differs;
  }

  function showPlayground(settings) {
    Object.assign(setting, {
      left: settings.get("left") ?? setting.left,
      right: settings.get("right"),
      length: whole(settings.get("length"), 1, LONGEST, START.length),
      query: whole(settings.get("query"), 0, LONGEST - 1, START.query),
      head: whole(settings.get("head"), 0, Atlas.HEADS - 1, 0),
    });
    setting.query = Math.min(setting.query, setting.length - 1);
    render();
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => {
    const { elements } = form;
    change({
      length: whole(elements.positions.value, 1, LONGEST, setting.length),
      query: whole(elements.query.value, 0, LONGEST - 1, setting.query),
      head: Number(elements.head.value),
      right: elements.both.checked ? setting.right ?? START.right : null,
    });
  });
  document.querySelector(".examples").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    // the field that was used last gets the example
    change({ [setting.right !== null && lastSide === "right" ? "right" : "left"]: button.dataset.text });
    document.querySelector(".views").scrollIntoView({ block: "start" });
  });
  let lastSide = "left";
  views.forEach((view, n) => view.input.addEventListener("focus", () => (lastSide = ["left", "right"][n])));

  document.getElementById("patterns").append(
    ...ATLAS.patterns.flatMap(({ name, sentence, example }) => {
      const link = document.createElement("a");
      link.href = `#playground?${new URLSearchParams({ left: example })}`;
      link.title = sentence;
      link.textContent = Atlas.usage(name);
      return [link, " "];
    }),
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => hosts[0].offsetParent && render());

  Object.assign(Atlas, { showPlayground });
})();
