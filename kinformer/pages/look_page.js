"use strict";
(async () => {
  const page = JSON.parse(document.getElementById("look").textContent);
  const $ = (id) => document.getElementById(id);
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const number = (x, digits = 2) => (x === null ? "–" : x.toFixed(digits));
  const quote = (n, layer) => `${n} “${layer.n === page.tokens.length ? page.tokens[n] : "position"}”`;

  // Maps: bytes are 255 times the square root of a weight.
  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };
  const weightOf = (byte) => (byte / 255) ** 2;
  const average = (maps) => {
    const sum = new Float32Array(maps[0].length);
    for (const map of maps) for (let n = 0; n < sum.length; n++) sum[n] += map[n] / maps.length;
    return sum;
  };

  const rows = []; // each row of the grid is a list of maps: its mean, and its heads
  const loadMaps = async () => {
    const means = new Map();
    for (const layer of page.layers) {
      const bytes = await unpack(layer.map);
      const size = layer.c * layer.c;
      const heads = [];
      for (let head = 0; head < layer.heads; head++) {
        heads.push(Float32Array.from(bytes.subarray(head * size, (head + 1) * size), weightOf));
      }
      const mean = average(heads);
      const title = `${layer.name}, mean of ${layer.heads} heads`;
      const row = [{ layer, title, label: "mean", values: mean }];
      heads.forEach((values, head) =>
        row.push({ layer, title: `${layer.name}, head ${head}`, label: `head ${head}`, head, values }));
      rows.push(row);
      means.set(layer.c, [...(means.get(layer.c) || []), { layer, mean }]);
    }
    if (page.layers.length > 1 && means.size === 1) {
      const [[{ layer }]] = [...means.values()];
      const values = average([...means.values()][0].map((entry) => entry.mean));
      const name = `mean of ${page.layers.length} layers`;
      rows.unshift([{ layer: { ...layer, name }, title: name, label: "all heads", values }]);
    }
  };

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    return { map: value("--map").split(",").map(Number), ink: value("--soft"), mark: value("--mark"), line: value("--line") };
  };
  const picture = (map) => {
    const { c } = map.layer;
    const canvas = make("canvas", { width: c, height: c });
    const image = new ImageData(c, c);
    const [red, green, blue] = colours().map;
    for (let n = 0; n < c * c; n++) {
      image.data.set([red, green, blue, Math.round(255 * Math.sqrt(Math.min(map.values[n], 1)))], 4 * n);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  };

  // Words for a cell, a head and a token
  const block = (n, layer) => {
    if (layer.cell === 1) return quote(n, layer);
    const first = n * layer.cell, last = Math.min(first + layer.cell, layer.n) - 1;
    return first === last ? quote(first, layer) : `${quote(first, layer)} to ${quote(last, layer)}`;
  };
  const weight = (map, query, key) => {
    const value = map.values[query * map.layer.c + key];
    return value === 0 ? "0" : value < 0.001 ? "below 0.001" : value.toFixed(3);
  };
  const describeCell = (map, query, key) =>
    `query ${block(query, map.layer)}, key ${block(key, map.layer)}: weight ${weight(map, query, key)}`;
  const describeHead = ({ layer, head }) => {
    if (head === undefined) return "";
    const first = layer.first[head] === null ? "–" : `${Math.round(100 * layer.first[head])}%`;
    return `mean distance ${number(layer.distance[head], 1)} tokens, entropy ${number(layer.entropy[head])} bits, ` +
      `${first} of the weight on the first token`;
  };

  const tip = make("div", { className: "tip", hidden: true });
  document.body.append(tip);
  const showTip = (text, event, parent = document.body) => {
    parent.append(tip); // a dialog covers everything outside of it
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - box.width - 4);
    const y = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 8 : event.clientY + 18;
    tip.style.left = `${Math.max(x, 4)}px`;
    tip.style.top = `${Math.max(y, 4)}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  const cellAt = (box, c, event) => {
    const place = (value) => Math.max(0, Math.min(c - 1, Math.floor(value * c)));
    return [place((event.clientY - box.top) / box.height), place((event.clientX - box.left) / box.width)];
  };

  // The grid of maps
  const drawGrid = () => {
    $("grid").style.setProperty("--maps", Math.max(...rows.map((row) => row.length)));
    $("grid").replaceChildren(...rows.map((row, y) => make("div", { className: "layer" },
      make("div", { className: "name", textContent: row[0].layer.name }),
      ...row.map((map, x) => {
        const canvas = picture(map);
        const button = make("button", { className: "map", type: "button" }, canvas, map.label);
        button.setAttribute("aria-label", `Zoom ${map.title}. ${describeHead(map)}`);
        button.dataset.place = `${y},${x}`;
        canvas.addEventListener("pointermove", (event) =>
          showTip(describeCell(map, ...cellAt(canvas.getBoundingClientRect(), map.layer.c, event)), event));
        canvas.addEventListener("pointerleave", hideTip);
        button.addEventListener("click", () => openZoom(y, x));
        return button;
      }))));
  };
  $("grid")?.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const place = event.target.dataset.place;
    if (!step || !place) return;
    const [y, x] = place.split(",").map((part, n) => Number(part) + step[n]);
    const row = rows[Math.max(0, Math.min(rows.length - 1, y))];
    const column = Math.max(0, Math.min(row.length - 1, x));
    $("grid").querySelector(`[data-place="${rows.indexOf(row)},${column}"]`).focus();
    event.preventDefault();
  });

  // One map in a dialog
  const zoom = { y: 0, x: 0, query: 0, key: 0 };
  const dialog = $("zoom"), canvas = $("zoom-map");
  const zoomed = () => rows[zoom.y][zoom.x];
  const frame = () => { // the square of the map inside of the canvas, in its pixels
    const names = zoomed().layer.cell === 1 && zoomed().layer.n === page.tokens.length && zoomed().layer.c <= 64;
    return { names, left: names ? 110 : 6, top: names ? 110 : 6, side: canvas.width - (names ? 116 : 12) };
  };
  const drawZoom = () => {
    const map = zoomed(), { c } = map.layer, { names, left, top, side } = frame(), pen = canvas.getContext("2d");
    const { ink, mark, line } = colours(), unit = side / c;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture(map), left, top, side, side);
    pen.strokeStyle = line;
    pen.strokeRect(left - 1, top - 1, side + 2, side + 2);
    if (names) {
      const size = Math.min(20, Math.max(9, unit * 0.8));
      pen.font = `${size}px ui-monospace, monospace`;
      pen.textBaseline = "middle";
      for (let n = 0; n < c; n++) {
        const word = [...page.tokens[n]].slice(0, 10).join(""), middle = (n + 0.5) * unit;
        pen.fillStyle = n === zoom.query ? mark : ink;
        pen.textAlign = "right";
        pen.fillText(word, left - 8, top + middle, left - 10);
        pen.save();
        pen.fillStyle = n === zoom.key ? mark : ink;
        pen.textAlign = "left";
        pen.translate(left + middle, top - 8);
        pen.rotate(-Math.PI / 2);
        pen.fillText(word, 0, 0, top - 10);
        pen.restore();
      }
    }
    pen.lineWidth = 3;
    pen.strokeStyle = mark;
    const width = Math.max(unit, 7);
    pen.strokeRect(left + (zoom.key + 0.5) * unit - width / 2, top + (zoom.query + 0.5) * unit - width / 2, width, width);
    pen.lineWidth = 1;
    $("zoom-title").textContent = map.title;
    $("zoom-numbers").textContent = describeHead(map);
    $("zoom-cell").textContent = describeCell(map, zoom.query, zoom.key);
    const row = Array.from({ length: c }, (_, key) => key).sort(
      (a, b) => map.values[zoom.query * c + b] - map.values[zoom.query * c + a]);
    const best = row.filter((key) => map.values[zoom.query * c + key] > 0).slice(0, 5);
    $("zoom-best").textContent = best.length
      ? `Most weight of this query: ${best.map((key) => `${block(key, map.layer)} ${weight(map, zoom.query, key)}`).join("; ")}.`
      : "This query reads no key.";
    canvas.setAttribute("aria-label", `Attention map of ${map.title}. Arrow keys move the cell.`);
  };
  const openZoom = (y, x) => {
    const { c } = rows[y][x].layer;
    Object.assign(zoom, { y, x, query: Math.min(dialog.open ? zoom.query : c - 1, c - 1) });
    zoom.key = Math.min(dialog.open ? zoom.key : 0, c - 1);
    hideTip();
    if (!dialog.open) dialog.showModal();
    drawZoom();
    canvas.focus();
  };
  const turn = (step) => { // to the next map in reading order
    const places = rows.flatMap((row, y) => row.map((_, x) => [y, x]));
    const now = places.findIndex(([y, x]) => y === zoom.y && x === zoom.x);
    openZoom(...places[(now + step + places.length) % places.length]);
  };
  const zoomCell = (event) => {
    const box = canvas.getBoundingClientRect(), ratio = box.width / canvas.width, { left, top, side } = frame();
    const square = { left: box.left + left * ratio, top: box.top + top * ratio, width: side * ratio, height: side * ratio };
    const inside = event.clientX >= square.left && event.clientX <= square.left + square.width &&
      event.clientY >= square.top && event.clientY <= square.top + square.height;
    return inside ? cellAt(square, zoomed().layer.c, event) : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = zoomCell(event);
    if (cell) showTip(describeCell(zoomed(), ...cell), event, dialog);
    else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const cell = zoomCell(event);
    if (!cell) return;
    [zoom.query, zoom.key] = cell;
    drawZoom();
  });
  dialog.addEventListener("keydown", (event) => {
    const { c } = zoomed().layer, keys = { PageUp: -1, PageDown: 1 };
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key in keys) turn(keys[event.key]);
    else if (event.key in steps && event.target === canvas) {
      const [down, right] = steps[event.key];
      zoom.query = Math.max(0, Math.min(c - 1, zoom.query + down));
      zoom.key = Math.max(0, Math.min(c - 1, zoom.key + right));
      drawZoom();
    } else return;
    event.preventDefault();
  });
  dialog.addEventListener("close", () => {
    hideTip();
    $("grid").querySelector(`[data-place="${zoom.y},${zoom.x}"]`)?.focus();
  });
  $("zoom-previous").addEventListener("click", () => turn(-1));
  $("zoom-next").addEventListener("click", () => turn(1));
  $("zoom-close").addEventListener("click", () => dialog.close());

  // The text: a chosen token, and its colour by loss or depth
  const spans = [...document.querySelectorAll("#tokens span")];
  let chosen = spans.length - 1;
  const describeToken = (n) => [`token ${n} “${page.tokens[n]}”`,
    ...page.tints.map(({ values, unit }) => `${number(values[n], unit === "bits" ? 2 : 0)} ${unit}`)].join(", ");
  const choose = (n) => {
    spans[chosen]?.classList.remove("chosen");
    chosen = n;
    spans[n].classList.add("chosen");
    $("token").textContent = describeToken(n);
    showRetrieved();
  };
  const letters = page.letters ?? page.tokens; // without the bytes of a letter before its last one
  const context = (source, place) => source.texts ? source.texts[place] : [
    letters.slice(Math.max(place - 12, 0), place).join(""), page.tokens[place],
    letters.slice(place + 1, place + 7).join("")];
  const showRetrieved = () => {
    for (const [index, source] of page.retrieved.entries()) {
      const lines = source.keys[chosen].map(([head, place, weight, distance]) => {
        const [before, token, after] = context(source, place);
        const numbers = [[weight, 3], [distance, 2]].filter((_, column) => source.columns[column]);
        return make("tr", {},
          make("td", { textContent: source.texts ? place : `head ${head}, token ${place}` }),
          make("td", {}, before, make("b", { textContent: token }), after),
          ...numbers.map(([value, digits]) => make("td", { textContent: number(value, digits) })));
      });
      const none = make("tr", {}, make("td", { colSpan: 4, textContent: "This token retrieved no key." }));
      $(`retrieved-${index}`).replaceChildren(...(lines.length ? lines : [none]));
    }
  };
  const colourBy = (place) => {
    const { values, top } = page.tints[place];
    spans.forEach((span, n) =>
      span.style.setProperty("--t", values[n] === null ? 0 : (0.85 * Math.max(0, Math.min(values[n] / top, 1))).toFixed(2)));
  };
  $("tint")?.addEventListener("change", (event) => colourBy(Number(event.target.value)));
  spans.forEach((span, n) => {
    span.addEventListener("pointermove", (event) => showTip(describeToken(n), event));
    span.addEventListener("pointerleave", hideTip);
    span.addEventListener("click", () => choose(n));
  });
  $("tokens").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -spans.length, End: spans.length }[event.key];
    if (step === undefined) return;
    choose(Math.max(0, Math.min(spans.length - 1, chosen + step)));
    spans[chosen].scrollIntoView({ block: "nearest" });
    event.preventDefault();
  });
  choose(chosen);

  // The table of heads, sorted by a click on a heading
  document.querySelectorAll(".numbers th button").forEach((button, column) => button.addEventListener("click", () => {
    const heading = button.parentElement, down = heading.getAttribute("aria-sort") === "descending";
    const value = (row) => Number(row.cells[column].dataset.value);
    const lines = [...$("heads").rows].sort((a, b) => (down ? 1 : -1) * (value(b) - value(a)));
    document.querySelectorAll(".numbers th").forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "ascending" : "descending");
    $("heads").append(...lines);
  }));

  if (!page.layers.length || !$("grid")) return;
  if (!("DecompressionStream" in window)) {
    $("grid").textContent = "This browser cannot read the maps. Open the page in a browser of 2023 or later.";
    return;
  }
  await loadMaps();
  drawGrid();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawGrid();
    if (dialog.open) drawZoom();
  });
  $("grid").dataset.ready = "true";
})();
