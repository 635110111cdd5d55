// A pattern on the page: the expression, its matrix with numbered axes, and what one query reads.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const WIDEST = 520; // pixels of a drawing
  const STRIP = 14; // pixels of the strip of layers below the matrix
  const TICKS = 8; // numbers along an axis, at most
  const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });

  const TEMPLATE = `
    <label class="expression"><span class="side"></span>
      <input spellcheck="false" autocapitalize="off" autocomplete="off"></label>
    <div class="message"><p class="error" role="alert" hidden></p></div>
    <div class="shown" hidden>
      <div class="plot"><span class="axis-name across">key (position that is read) →</span>
        <span class="axis-name down">query (position that reads) →</span>
        <div class="axis across" aria-hidden="true"></div><div class="axis down" aria-hidden="true"></div>
        <canvas tabindex="0" role="img"></canvas>
        <ul class="key"><li><span class="swatch cell"></span>the query reads the key</li>
          <li><span class="swatch query-row"></span>the keys of the chosen query</li>
          <li><span class="swatch strip"></span>strip: positions that reach it, paler after more layers</li></ul></div>
      <p class="query" role="status"></p>
      <dl class="facts"></dl>
    </div>`;

  class PatternView {
    // host: the element to fill; side: "left" or "right".
    // onQuery(q) is called when a query is chosen, and onText(text) when the expression changes.
    constructor(host, side, onQuery, onText) {
      host.innerHTML = TEMPLATE;
      host.className = "view";
      Object.assign(this, { host, onQuery, length: 0, query: 0, head: 0, text: null, preview: null, stop: () => {} });
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
      // A mouse shows the query below it for a while. A click or a tap chooses; a swipe scrolls the page.
      this.canvas.addEventListener("pointermove", (event) => {
        if (event.pointerType === "mouse") this.showPreview(this.queryAt(event));
      });
      this.canvas.addEventListener("pointerleave", () => this.showPreview(null));
      this.canvas.addEventListener("click", (event) => {
        const query = this.queryAt(event);
        if (query !== null) this.onQuery(query);
      });
      this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    }

    // The query at a place of the drawing; null below the matrix.
    queryAt(event) {
      const box = this.canvas.getBoundingClientRect();
      const rows = (this.canvas.height * this.length) / this.canvas.width;
      const place = Math.floor(((event.clientY - box.top - 1) / (box.height - 2)) * rows);
      return this.pattern && place >= 0 && place < this.length ? place : null;
    }

    showPreview(query) {
      if (query === this.preview || !this.pattern) return;
      this.preview = query;
      this.draw();
    }

    onKey(event) {
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
      const target = event.key === "Home" ? 0 : event.key === "End" ? this.length - 1 : this.query + step;
      if (step === undefined && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      this.preview = null;
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

    // Compute the matrices. The last drawing stays, dimmed, while the expression has an error.
    evaluate() {
      this.stop();
      const error = this.host.querySelector(".error");
      const shown = this.host.querySelector(".shown");
      this.pattern = null;
      this.preview = null;
      try {
        const pattern = Atlas.parsePattern(this.text);
        this.matrices = Atlas.headMatrices(pattern, this.length);
        this.pattern = pattern;
        error.textContent = "";
        shown.hidden = false;
      } catch (problem) {
        if (!(problem instanceof Atlas.PatternError) && !(problem instanceof RangeError)) throw problem;
        const isTooLarge = problem instanceof RangeError; // of an array or of the stack
        const message = isTooLarge ? "this expression is too large for the page" : problem.message;
        error.textContent = message[0].toUpperCase() + message.slice(1);
      }
      error.hidden = Boolean(this.pattern);
      shown.classList.toggle("old", !this.pattern);
      this.input.setAttribute("aria-invalid", String(!this.pattern));
      if (this.pattern) this.stop = Atlas.showFacts(this);
    }

    // True if the heads read different keys.
    get differsByHead() {
      const [first, ...others] = this.matrices || [];
      return others.some((cells) => cells.some((bit, n) => bit !== first[n]));
    }

    draw() {
      const { length } = this;
      const query = this.preview ?? this.query;
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
      this.number(cell);
      this.tell(query, cells, layers);
    }

    // Write the numbers of positions along both axes.
    number(cell) {
      const step = [1, 2, 5, 10, 20, 50, 100].find((size) => this.length / size <= TICKS);
      const ends = { across: ["left", this.canvas.width], down: ["top", this.canvas.height] };
      for (const [axis, [side, size]] of Object.entries(ends)) {
        const ticks = [];
        for (let place = 0; place < this.length; place += step) {
          const tick = document.createElement("span");
          tick.textContent = place;
          tick.style[side] = `${(100 * (place + 0.5) * cell) / size}%`;
          ticks.push(tick);
        }
        this.host.querySelector(`.axis.${axis}`).replaceChildren(...ticks);
      }
    }

    // The query in words: its keys, and how many positions reach it after each number of layers.
    tell(query, cells, layers) {
      const { length } = this;
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
