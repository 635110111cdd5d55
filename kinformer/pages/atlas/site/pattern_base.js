// Patterns: sets of pairs of query and key. Each pattern fills a row: the keys that one query reads in one head.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});

  // Bytes as words of four bytes, which are handled faster. The words are kept, because rows are reused.
  const views = new WeakMap();
  function wordsOf(row) {
    if (!views.has(row)) views.set(row, new Uint32Array(row.buffer, 0, row.length / 4));
    return views.get(row);
  }

  // Base class. `fill(q, h, row)` sets row[k] to 1 if query q reads key k in head h, and to 0 otherwise. `work` is the
  // number of passes over a row that this takes, about. `byHead` is 0 if all heads read the same keys, and otherwise
  // the largest number of patterns that heads take in turn, or 1 for a pattern drawn at random for each head.
  class Pattern {
    // The keys that query q reads among the first `length` positions, as bytes of 0 and 1. The array is reused.
    row(q, h, length) {
      if (!this.buffer || this.buffer.length !== length) this.buffer = new Uint8Array(length);
      this.fill(q, h, this.buffer);
      return this.buffer;
    }
  }

  class Pair extends Pattern {
    constructor(sign, left, right) {
      super();
      Object.assign(this, { sign, left, right, text: `(${left.text} ${sign} ${right.text})` });
      Object.assign(this, { work: left.work + right.work + 1, byHead: Math.max(left.byHead, right.byHead) });
    }

    fill(q, h, row) {
      const rows = [row, this.left.row(q, h, row.length), this.right.row(q, h, row.length)];
      const [to, left, right] = row.length % 4 ? rows : rows.map(wordsOf);
      if (this.sign === "&") for (let n = 0; n < to.length; n += 1) to[n] = left[n] & right[n];
      else for (let n = 0; n < to.length; n += 1) to[n] = left[n] | right[n];
    }
  }

  class Not extends Pattern {
    constructor(pattern) {
      super();
      Object.assign(this, { pattern, text: `~${pattern.text}`, work: pattern.work + 1, byHead: pattern.byHead });
    }

    fill(q, h, row) {
      const rows = [row, this.pattern.row(q, h, row.length)];
      const [to, inner] = row.length % 4 ? rows : rows.map(wordsOf);
      const ones = row.length % 4 ? 1 : 0x01010101;
      for (let n = 0; n < to.length; n += 1) to[n] = inner[n] ^ ones;
    }
  }

  // A pattern of the table PATTERNS, with its arguments by name. `costing` gives its `fill` a work and byHead.
  class Named extends Pattern {
    constructor(text, fill) {
      super();
      Object.assign(this, { text, fill, work: fill.work ?? 1, byHead: Number(fill.byHead ?? 0) });
    }
  }

  const costing = (fill, work, byHead) => Object.assign(fill, { work, byHead });

  // The same for a `fill` that uses the rows of other patterns.
  function costingOf(fill, patterns) {
    const work = patterns.reduce((sum, pattern) => sum + pattern.work, 1);
    return costing(fill, work, Math.max(0, ...patterns.map((pattern) => pattern.byHead)));
  }

  // A pattern whose row is a run of keys, from..to with both ends.
  function fillRun(row, from, to) {
    row.fill(0);
    if (to >= from) row.fill(1, Math.max(0, from), Math.max(0, to + 1));
  }

  const isWhole = (value) => typeof value === "number" && Number.isInteger(value);

  // Checks of arguments. Each throws an error whose message names the argument, its value and the expected values.
  function refuse(name, value, expected) {
    throw new Atlas.PatternError(`${name}=${Atlas.spell(value)}: give ${expected}`);
  }

  const checks = {
    whole(name, value) {
      return isWhole(value) ? value : refuse(name, value, "a whole number");
    },
    atLeast(name, value, least) {
      return isWhole(value) && value >= least ? value : refuse(name, value, `a whole number of at least ${least}`);
    },
    between(name, value, low, high) {
      const good = isWhole(value) && value >= low && value <= high;
      return good ? value : refuse(name, value, `a whole number from ${low} to ${high}`);
    },
    wholes(name, value, least) {
      if (!Array.isArray(value)) refuse(name, value, `a tuple of whole numbers of at least ${least}`);
      value.forEach((item, n) => checks.atLeast(`${name}[${n}]`, item, least));
      return value;
    },
    flag(name, value) {
      return typeof value === "boolean" ? value : refuse(name, value, "True or False");
    },
    pattern(name, value) {
      return value instanceof Pattern ? value : refuse(name, value, "a pattern, such as Causal() & Band(64)");
    },
    positions(name, value) {
      return Array.isArray(value) ? checks.wholes(name, value, 0) : checks.atLeast(name, value, 0);
    },
  };

  const REQUIRED = Symbol("required");

  // Return a pattern of the table from its arguments, as Python binds them to the fields of the dataclass.
  function makePattern(name, positional, named, wrong) {
    const { fields, make } = Atlas.PATTERNS[name];
    if (name === "Heads") return makeHeads(positional, named, wrong);
    const names = Object.keys(fields);
    if (positional.length > names.length) {
      throw wrong(`takes at most ${names.length} arguments, but ${positional.length} are given`);
    }
    const values = Object.fromEntries(positional.map((value, n) => [names[n], value]));
    for (const [key, value] of named) {
      if (!names.includes(key)) throw wrong(`got an unexpected argument '${key}'`);
      if (key in values) throw wrong(`got several values for '${key}'`);
      values[key] = value;
    }
    const missing = names.filter((key) => !(key in values) && fields[key] === REQUIRED);
    if (missing.length) throw wrong(`missing ${missing.map((key) => `'${key}'`).join(" and ")}`);
    for (const key of names) if (!(key in values)) values[key] = defaultOf(fields[key]);
    const written = names.filter((key) => key in values).map((key) => `${key}=${Atlas.spell(values[key])}`);
    return new Named(`${name}(${written.join(", ")})`, make(values, name));
  }

  // a default that is a pattern is made anew, because a pattern reuses its row
  const defaultOf = (value) => (typeof value === "function" ? value() : value);

  function makeHeads(positional, named, wrong) {
    const unknown = named.find(([key]) => key !== "patterns");
    if (unknown) throw wrong(`got an unexpected argument '${unknown[0]}'`);
    const patterns = positional.length ? positional : (named[0] || [null, []])[1];
    if (!Array.isArray(patterns)) throw wrong("'patterns' is not a tuple");
    if (!patterns.length) {
      throw new Atlas.PatternError("Heads got no pattern; give one for each head, or fewer that the heads use in turn");
    }
    patterns.forEach((pattern, n) => checks.pattern(`pattern ${n} of Heads`, pattern));
    const fill = (q, h, row) => row.set(patterns[h % patterns.length].row(q, h, row.length));
    const work = 1 + Math.max(...patterns.map((pattern) => pattern.work));
    const turns = Math.max(patterns.length, ...patterns.map((pattern) => pattern.byHead));
    return new Named(`Heads(${patterns.map((pattern) => pattern.text).join(", ")})`, costing(fill, work, turns));
  }

  // How to write a pattern: its name and the names of its arguments.
  function usage(name) {
    return `${name}(${Object.keys(Atlas.PATTERNS[name].fields).join(", ")})`;
  }

  // The whole matrix of one head, as bytes of 0 and 1 in the order of rows.
  function matrix(pattern, length, h = 0) {
    const cells = new Uint8Array(length * length);
    for (let q = 0; q < length; q += 1) cells.set(pattern.row(q, h, length), q * length);
    return cells;
  }

  Object.assign(Atlas, { Pattern, Pair, Not, REQUIRED, checks, costing, costingOf, fillRun, makePattern, matrix });
  Object.assign(Atlas, { usage, wordsOf });
})();
