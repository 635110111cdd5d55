// A pattern on the page: the expression, its matrix, its numbers, and what one query reads.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const WIDEST = 520; // pixels of a drawing
  const STRIP = 14; // pixels of the strip of layers below the matrix
  const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
  const percent = (share) => `${(100 * share).toLocaleString("en", { maximumSignificantDigits: 3 })}%`;

  const TEMPLATE = `
    <label class="expression"><span class="side"></span>
      <input spellcheck="false" autocapitalize="off" autocomplete="off"></label>
    <p class="error" role="alert" hidden></p>
    <div class="shown">
      <canvas tabindex="0" role="img"></canvas>
      <p class="query" role="status"></p>
      <dl class="facts"></dl>
    </div>`;

  class PatternView {
    // host: the element to fill; side: "left" or "right".
    // onQuery(q) is called when a query is chosen, and onText(text) when the expression changes.
    constructor(host, side, onQuery, onText) {
      host.innerHTML = TEMPLATE;
      host.className = "view";
      Object.assign(this, { host, onQuery, length: 0, query: 0, head: 0, text: null, stop: () => {} });
      host.querySelector(".side").textContent = side === "left" ? "expression" : "second expression";
      this.input = host.querySelector("input");
      this.input.id = `expression-${side}`;
      this.canvas = host.querySelector("canvas");
      let waiting = null;
      this.input.addEventListener("input", () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => onText(this.input.value), 250);
      });
      this.input.addEventListener("change", () => {
        clearTimeout(waiting);
        onText(this.input.value);
      });
      this.canvas.addEventListener("pointermove", (event) => this.pointAt(event));
      this.canvas.addEventListener("pointerdown", (event) => this.pointAt(event));
      this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    }

    pointAt(event) {
      const box = this.canvas.getBoundingClientRect();
      const place = Math.floor(((event.clientY - box.top) / box.height) * (this.length + this.stripRows()));
      if (place >= 0 && place < this.length && place !== this.query) this.onQuery(place);
    }

    onKey(event) {
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
      const target = event.key === "Home" ? 0 : event.key === "End" ? this.length - 1 : this.query + step;
      if (step === undefined && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      this.onQuery(Math.max(0, Math.min(this.length - 1, target)));
    }

    // Show an expression. Everything is computed again only if the expression or the length changed.
    show(text, length, query, head) {
      if (document.activeElement !== this.input || this.text === null) this.input.value = text;
      const isNew = text !== this.text || length !== this.length;
      Object.assign(this, { text, length, query, head });
      if (isNew) this.evaluate();
      if (this.pattern) this.draw();
    }

    evaluate() {
      this.stop();
      const error = this.host.querySelector(".error");
      this.pattern = null;
      try {
        this.pattern = Atlas.parsePattern(this.text);
        this.matrices = Atlas.headMatrices(this.pattern, this.length);
      } catch (problem) {
        if (!(problem instanceof Atlas.PatternError) && !(problem instanceof RangeError)) throw problem;
        this.pattern = null;
        const isTooLarge = problem instanceof RangeError; // of an array or of the stack
        error.textContent = isTooLarge ? "this expression is too large for the page" : problem.message;
      }
      error.hidden = Boolean(this.pattern);
      this.input.setAttribute("aria-invalid", String(!this.pattern));
      this.host.querySelector(".shown").hidden = !this.pattern;
      if (this.pattern) this.count();
    }

    // True if the heads read different keys.
    get differsByHead() {
      const [first, ...others] = this.matrices || [];
      return others.some((cells) => cells.some((bit, n) => bit !== first[n]));
    }

    count() {
      const { length, matrices } = this;
      const counted = Atlas.countPattern(this.pattern, length, matrices);
      const pairs = Math.round(counted.mean * length);
      const dense = counted.ahead ? length * length : (length * (length + 1)) / 2;
      const where = counted.ahead ? "of full attention" : "of causal attention";
      const range = counted.least === counted.most ? "" : ` (${number(counted.least)} to ${number(counted.most)})`;
      const goal = counted.ahead ? "all positions" : "all earlier positions";
      const facts = [
        ["keys per query", `${number(counted.mean)} on average${range}`],
        ["pairs", `${number(pairs)} per head, ${percent(pairs / dense)} ${where}`],
        [
          "connects",
          counted.steps === null
            ? `never: ${percent(counted.reached)} of the pairs connect, however many layers there are`
            : `${goal} after ${counted.steps} layer${counted.steps === 1 ? "" : "s"}`,
        ],
        [`at ${number(ATLAS.longest)} tokens`, "counting …"],
      ];
      if (this.differsByHead) facts.push(["heads", "they differ; the numbers are means over the first 4 heads"]);
      this.host.querySelector("dl").replaceChildren(
        ...facts.map(([term, value]) => {
          const pair = document.createElement("div");
          const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
          [dt.textContent, dd.textContent] = [term, value];
          pair.append(dt, dd);
          return pair;
        }),
      );
      const long = this.host.querySelectorAll("dd")[3];
      // rows of another length need their own pattern, because a pattern reuses its row
      this.stop = Atlas.countLongRow(Atlas.parsePattern(this.text), ATLAS.longest, (keys, queries) => {
        const full = counted.ahead ? ATLAS.longest : (ATLAS.longest + 1) / 2;
        const about = queries < ATLAS.longest ? ` (from ${number(queries)} queries of the row)` : "";
        long.textContent = `${number(keys)} keys per query, ${percent(keys / full)} ${where}${about}`;
      });
    }

    stripRows() {
      return (STRIP / this.canvas.width) * this.length || 0;
    }

    draw() {
      const { length, query } = this;
      const cells = this.matrices[Math.min(this.head, this.matrices.length - 1)];
      const cell = Math.max(1, Math.floor(WIDEST / length));
      const canvas = this.canvas;
      canvas.width = cell * length;
      canvas.height = cell * length + STRIP;
      const style = getComputedStyle(document.documentElement);
      const colourOf = (name) => style.getPropertyValue(name).trim();
      const paint = canvas.getContext("2d");
      paint.fillStyle = colourOf("--box");
      paint.fillRect(0, 0, canvas.width, canvas.height);
      const gap = cell > 4 ? 1 : 0;
      for (let q = 0; q < length; q += 1) {
        paint.fillStyle = colourOf(q === query ? "--chosen" : "--cell");
        for (let k = 0; k < length; k += 1) {
          if (cells[q * length + k]) paint.fillRect(k * cell, q * cell, cell - gap, cell - gap);
        }
      }
      const layers = Atlas.layersToQuery(this.matrices, length, query);
      const deepest = Math.max(1, ...layers.filter((layer) => layer !== null));
      // the strip: positions whose information reaches the query, paler after more layers
      paint.fillStyle = colourOf("--chosen");
      layers.forEach((layer, k) => {
        if (layer === null) return;
        paint.globalAlpha = 1 - (0.8 * Math.max(0, layer - 1)) / deepest;
        paint.fillRect(k * cell, length * cell + 4, cell - gap, STRIP - 4);
      });
      paint.globalAlpha = 1;
      paint.strokeStyle = colourOf("--ink");
      paint.strokeRect(0.5, query * cell + 0.5, canvas.width - 1, Math.max(1, cell - 1));
      this.tell(cells, layers);
    }

    // The query in words: its keys, and how many positions reach it after each number of layers.
    tell(cells, layers) {
      const { length, query } = this;
      const keys = [];
      for (let k = 0; k < length; k += 1) if (cells[query * length + k]) keys.push(k);
      const count = `${keys.length} key${keys.length > 1 ? "s" : ""}`;
      const reads = keys.length ? `reads ${count}: ${runs(keys)}` : "reads no key";
      const counts = [];
      for (const layer of layers) if (layer) counts[layer] = (counts[layer] || 0) + 1;
      let total = 0;
      const after = [];
      for (let layer = 1; layer < counts.length; layer += 1) {
        total += counts[layer] || 0;
        if (layer <= 4 || layer === counts.length - 1) {
          after.push(`${number(total)} after ${layer} layer${layer > 1 ? "s" : ""}`);
        } else if (layer === 5) after.push("…");
      }
      const head = this.differsByHead ? ` in head ${this.head}` : "";
      const others = after.length ? ` Other positions that reach it, through all heads: ${after.join(", ")}.` : "";
      this.host.querySelector(".query").textContent = `Query ${query}${head} ${reads}.${others}`;
      const pairs = [...this.host.querySelectorAll("dl > div")].slice(0, 3);
      const summary = pairs.map((pair) => pair.innerText.replace("\n", " ")).join("; ");
      this.canvas.setAttribute(
        "aria-label",
        `matrix of ${this.text} with ${length} positions, rows are queries and columns are keys; ${summary}. ` +
          "Arrow keys choose a query.",
      );
    }
  }

  // Numbers as runs: "3, 5-9".
  function runs(numbers) {
    const texts = [];
    for (let start = 0; start < numbers.length; ) {
      let end = start;
      while (numbers[end + 1] === numbers[end] + 1) end += 1;
      texts.push(end - start > 1 ? `${numbers[start]}-${numbers[end]}` : numbers.slice(start, end + 1).join(", "));
      start = end + 1;
    }
    return texts.join(", ");
  }

  Object.assign(Atlas, { PatternView });
})();
