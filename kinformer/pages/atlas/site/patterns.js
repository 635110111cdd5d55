// The table of patterns by name, with the same arguments and the same sets as the classes of kinformer.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const { checks, costing, costingOf, fillRun, REQUIRED } = Atlas;

  // A pattern that is a name for an expression of others: its rows are those of the expression.
  const spelled = (pattern) => costingOf((q, h, row) => row.set(pattern.row(q, h, row.length)), [pattern]);
  const make = (name, ...values) =>
    Atlas.makePattern(name, values, [], (reason) => new Atlas.PatternError(`${name}: ${reason}`));
  const and = (left, right) => new Atlas.Pair("&", left, right);
  const or = (left, right) => new Atlas.Pair("|", left, right);
  const full = () => make("Full");
  const blockOf = (position, size) => Math.floor(position / size);

  function refuseUnless(good, message) {
    if (!good) throw new Atlas.PatternError(message);
  }

  function isMarked(position, n) {
    return Array.isArray(n) ? n.includes(position) : position < n;
  }

  function makeBand({ left, right }, name) {
    checks.whole(`${name}.left`, left);
    if (right !== null) checks.whole(`${name}.right`, right);
    const ahead = right === null ? left : right;
    refuseUnless(left + ahead >= 0, `Band(${left}, ${ahead}) contains no key. Make left + right at least 0`);
    return (q, h, row) => fillRun(row, q - left, q + ahead);
  }

  function makeBlock({ size, back, ahead }, name) {
    checks.atLeast(`${name}.size`, size, 1);
    checks.whole(`${name}.back`, back);
    checks.whole(`${name}.ahead`, ahead);
    const written = `${name}(${size}, ${back}, ${ahead})`;
    refuseUnless(back + ahead >= 0, `${written} contains no block. Make back + ahead at least 0`);
    return (q, h, row) => {
      const block = blockOf(q, size);
      fillRun(row, (block - back) * size, (block + ahead + 1) * size - 1);
    };
  }

  function makeBlocks({ table, size }, name) {
    checks.atLeast(`${name}.size`, size, 1);
    refuseUnless(Array.isArray(table), `${name}.table=${Atlas.spell(table)}: give a tuple of tuples of key blocks`);
    table.forEach((blocks, n) => checks.wholes(`${name}.table[${n}]`, blocks, 0));
    return (q, h, row) => {
      row.fill(0);
      for (const block of table[blockOf(q, size)] || []) row.fill(1, block * size, (block + 1) * size);
    };
  }

  function makeBlockwise({ permutation, size }, name) {
    checks.atLeast(`${name}.size`, size, 1);
    checks.wholes(`${name}.permutation`, permutation, 0);
    const sorted = [...permutation].sort((a, b) => a - b);
    const good = sorted.every((block, n) => block === n);
    refuseUnless(good, `${name}.permutation must contain each of 0..${permutation.length - 1} once`);
    return spelled(make("Blocks", permutation.map((block) => [block]), size));
  }

  function makeAxial({ shape, axis }, name) {
    checks.wholes(`${name}.shape`, shape, 1);
    refuseUnless(shape.length, "Axial.shape=() has no axis. Pass the numbers of rows and columns of a picture");
    checks.between(`${name}.axis`, axis, 0, shape.length - 1);
    const step = shape.slice(axis + 1).reduce((product, size) => product * size, 1);
    const line = make("Block", step * shape[axis]);
    return spelled(step === 1 ? line : and(make("Strided", step), line));
  }

  function makeColumns({ block, summary, offset }, name) {
    checks.atLeast(`${name}.block`, block, 1);
    checks.atLeast(`${name}.summary`, summary, 1);
    checks.atLeast(`${name}.offset`, offset, 0);
    const sum = summary + offset;
    refuseUnless(sum <= block, `${name}: got summary + offset=${sum}, expected at most block=${block}`);
    let filled = null; // every query reads the same keys, so a row is filled once
    return (q, h, row) => {
      if (row === filled) return;
      row.fill(0);
      for (let start = 0; start < row.length; start += block) {
        row.fill(1, start + block - offset - summary, start + block - offset);
      }
      filled = row;
    };
  }

  // Local attention in a picture. Positions follow the blocks of the picture, and a query reads around its block.
  function makeGrid({ width, rows, columns, block }, name) {
    checks.atLeast(`${name}.rows`, rows, 0);
    checks.atLeast(`${name}.columns`, columns, 0);
    checks.atLeast("width", width, 1);
    checks.wholes("block", block, 1);
    refuseUnless(block.length === 2, `block=${Atlas.spell(block)} does not have 2 numbers; give rows and columns`);
    const [high, wide] = block;
    refuseUnless(width % wide === 0, `width=${width} is not a multiple of block[1]=${wide}; change one of them`);
    const size = high * wide;
    const across = width / wide; // blocks in a row of blocks
    const fill = (q, h, row) => {
      const number = blockOf(q, size);
      const top = Math.floor(number / across) * high;
      const left = (number % across) * wide;
      for (let k = 0; k < row.length; k += 1) {
        const keyBlock = blockOf(k, size);
        const inside = k % size;
        const below = Math.floor(keyBlock / across) * high + Math.floor(inside / wide) - top;
        const right = (keyBlock % across) * wide + (inside % wide) - left;
        row[k] = below >= -rows && below < rows + high && right >= -columns && right < columns + wide ? 1 : 0;
      }
    };
    return costing(fill, 30, false);
  }

  function makeImage2D({ width, block, memory }, name) {
    const good = Array.isArray(memory) && memory.length === 2;
    refuseUnless(good, `${name}: memory must be two numbers: the rows above and the columns to each side`);
    return spelled(and(make("Causal"), make("Grid", width, memory[0], memory[1], block)));
  }

  function makeOnHeads({ turn, of }, name) {
    checks.atLeast(`${name}.of`, of, 1);
    checks.atLeast(`${name}.turn`, turn, 0);
    refuseUnless(turn < of, `${name}.turn=${turn}: give a number below ${name}.of=${of}`);
    return costing((q, h, row) => row.fill(h % of === turn ? 1 : 0), 1, of);
  }

  function makePieces({ n, ...pieces }, name) {
    checks.atLeast(`${name}.n`, n, 0);
    for (const [piece, pattern] of Object.entries(pieces)) checks.pattern(`${name}.${piece}`, pattern);
    const fill = (q, h, row) => {
      const isGlobal = q < n;
      const cut = Math.min(n, row.length);
      const place = isGlobal ? q : q - n;
      if (cut > 0) row.set((isGlobal ? pieces.g2g : pieces.l2g).row(place, h, cut));
      if (row.length > n) row.set((isGlobal ? pieces.g2l : pieces.l2l).row(place, h, row.length - n), n);
    };
    return costingOf(fill, Object.values(pieces));
  }

  function makeShifted({ pattern, n }, name) {
    checks.pattern(`${name}.pattern`, pattern);
    checks.atLeast(`${name}.n`, n, 0);
    const fill = (q, h, row) => {
      row.fill(0);
      if (q >= n && row.length > n) row.set(pattern.row(q - n, h, row.length - n), n);
    };
    return costingOf(fill, [pattern]);
  }

  function makeStar({ n }, name) {
    checks.atLeast(`${name}.n`, n === null ? 1 : n, 1);
    const row = or(or(make("Band", 1), make("Tokens", 1)), make("Rows", 1));
    if (n === null) return spelled(row);
    const closing = and(make("Rows", [1, n]), make("Tokens", [1, n]));
    return spelled(and(and(or(row, closing), make("Rows", n + 1)), make("Tokens", n + 1)));
  }

  const counted = (name, ...fields) => (values) =>
    fields.forEach(([field, least]) => checks.atLeast(`${name}.${field}`, values[field], least));

  // A pattern with checks `check` and a function `rule` from its arguments to its rows.
  const simple = (fields, check, rule) => ({
    fields,
    make(values, name) {
      check(values, name);
      return rule(values);
    },
  });

  const none = () => {};
  Atlas.PATTERNS = {
    Axial: { fields: { shape: REQUIRED, axis: REQUIRED }, make: makeAxial },
    Band: { fields: { left: REQUIRED, right: null }, make: makeBand },
    Block: { fields: { size: REQUIRED, back: 0, ahead: 0 }, make: makeBlock },
    Blocks: { fields: { table: REQUIRED, size: 1 }, make: makeBlocks },
    Blockwise: { fields: { permutation: REQUIRED, size: REQUIRED }, make: makeBlockwise },
    Causal: simple({}, none, () => (q, h, row) => fillRun(row, 0, q)),
    Columns: { fields: { block: REQUIRED, summary: REQUIRED, offset: 0 }, make: makeColumns },
    Dilated: simple(
      { window: REQUIRED, dilation: REQUIRED },
      counted("Dilated", ["window", 0], ["dilation", 1]),
      ({ window: size, dilation }) => spelled(and(make("Band", size * dilation), make("Strided", dilation))),
    ),
    Fixed: simple({ block: REQUIRED, summary: REQUIRED, offset: 0 }, none, ({ block, summary, offset }) =>
      spelled(or(make("Block", block), make("Columns", block, summary, offset))),
    ),
    Full: simple({}, none, () => (q, h, row) => row.fill(1)),
    Grid: {
      fields: { width: REQUIRED, rows: REQUIRED, columns: REQUIRED, block: () => [1, 1] },
      make: makeGrid,
    },
    Heads: { fields: { "*by_head": REQUIRED } },
    Image1D: simple(
      { block: REQUIRED, memory: REQUIRED },
      counted("Image1D", ["block", 1], ["memory", 0]),
      ({ block, memory }) => spelled(and(make("Causal"), make("Segment", block, memory))),
    ),
    Image2D: { fields: { width: REQUIRED, block: REQUIRED, memory: REQUIRED }, make: makeImage2D },
    OnHeads: { fields: { turn: REQUIRED, of: REQUIRED }, make: makeOnHeads },
    Pieces: { fields: { n: REQUIRED, g2g: full, g2l: full, l2g: full, l2l: full }, make: makePieces },
    Prefix: simple({ n: REQUIRED }, counted("Prefix", ["n", 0]), ({ n }) => spelled(make("Tokens", n))),
    PublishedRandom: {
      fields: { keys: REQUIRED, block: 1, seed: 0, among: 16, first: 1, window: 1, head: null },
      make: Atlas.makePublishedRandom,
    },
    Random: {
      fields: { keys: REQUIRED, block: 1, seed: 0, symmetric: false, first: 0, back: 0, head: null },
      make: Atlas.makeRandom,
    },
    Rows: simple(
      { n: REQUIRED },
      ({ n }) => checks.positions("Rows.n", n),
      ({ n }) => (q, h, row) => row.fill(isMarked(q, n) ? 1 : 0),
    ),
    Segment: simple(
      { length: REQUIRED, memory: REQUIRED },
      counted("Segment", ["length", 1], ["memory", 0]),
      ({ length, memory }) => (q, h, row) => fillRun(row, blockOf(q, length) * length - memory, row.length - 1),
    ),
    Shifted: { fields: { pattern: REQUIRED, n: REQUIRED }, make: makeShifted },
    Star: { fields: { n: null }, make: makeStar },
    Strided: simple({ stride: REQUIRED }, counted("Strided", ["stride", 1]), ({ stride }) => (q, h, row) => {
      row.fill(0);
      for (let k = q % stride; k < row.length; k += stride) row[k] = 1;
    }),
    Tokens: simple(
      { n: REQUIRED },
      ({ n }) => checks.positions("Tokens.n", n),
      ({ n }) => (q, h, row) => {
        if (!Array.isArray(n)) return fillRun(row, 0, n - 1);
        row.fill(0);
        for (const position of n) if (position < row.length) row[position] = 1;
      },
    ),
    Tree: { fields: { k: REQUIRED }, make: Atlas.makeTree },
    TreeLevel: { fields: { k: REQUIRED, level: 0, causal: false }, make: Atlas.makeTreeLevel },
  };

  // Patterns that hold tensors of a batch: they exist, but not as text.
  Atlas.NEEDS_TENSOR = new Set([
    ...["Document", "Marked", "MarkedKeys", "MarkedRows", "OwnSegment", "PairMask", "RowRandom", "Since"],
    ...["Tail", "TailKeys", "TailRows"],
  ]);
})();
