// Patterns on a binary tree of spans, as in kinformer/core/span_tree.py and kinformer/nn/patterns/tree.py.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const HIGHEST = 31;

  // The node at a position of the post-order of all nodes: a span of 2^level tokens with the number `number`.
  function node(position) {
    let rest = position;
    let first = 0;
    for (let m = HIGHEST; m > 0; m -= 1) {
      const half = 2 ** m - 1; // nodes of a span of level m - 1; two such spans lie below a root
      if (rest >= half && rest < 2 * half) {
        first += (half + 1) / 2;
        rest -= half;
      }
    }
    const level = Math.max(Math.round(Math.log2(rest + 2)), 1) - 1;
    return { level, number: Math.floor(first / 2 ** level) };
  }

  const nodes = [];
  function nodeAt(position) {
    if (!nodes[position]) nodes[position] = node(position);
    return nodes[position];
  }

  // The number of the first span of a level that a token reads after itself. Shifts are divisions by powers of two,
  // because the shifts of JavaScript keep only 32 bits.
  function firstSpanAfter(token, k, level) {
    const size = 2 ** level;
    return Math.floor((token + 1 + k * (size - 1) + Math.floor(size / 2)) / size);
  }

  // The number after the last span of a level that a token reads before itself.
  function endOfSpansBefore(token, k, level) {
    const size = 2 ** level;
    return Math.floor((token - k * (size - 1) + Math.max(Math.floor(size / 2) - 1, 0)) / size);
  }

  function makeTree({ k }, name) {
    Atlas.checks.atLeast(`${name}.k`, k, 1);
    const fill = (q, h, row) => {
      const query = nodeAt(q);
      const ends = []; // by level: the runs of spans before and after the token
      for (let position = 0; position < row.length; position += 1) {
        const { level, number } = nodeAt(position);
        if (query.level > 0) {
          row[position] = level === 0 && Math.floor(number / 2 ** query.level) === query.number ? 1 : 0;
          continue;
        }
        const token = query.number;
        ends[level] ??= [
          2 * endOfSpansBefore(token, k, level + 1),
          endOfSpansBefore(token, k, level),
          firstSpanAfter(token, k, level),
          2 * firstSpanAfter(token, k, level + 1),
        ];
        const [earliest, before, after, latest] = ends[level];
        const reads = (earliest <= number && number < before) || (after <= number && number < latest);
        row[position] = reads || (level === 0 && number === token) ? 1 : 0;
      }
    };
    return Atlas.costing(fill, 100, false);
  }

  function makeTreeLevel({ k, level, causal }, name) {
    Atlas.checks.atLeast(`${name}.k`, k, 1);
    Atlas.checks.atLeast(`${name}.level`, level, 0);
    Atlas.checks.flag(`${name}.causal`, causal);
    return (q, h, row) => {
      const own = level === 0 ? 1 : 0; // on level 0 a token also reads itself
      Atlas.fillRun(row, 2 * endOfSpansBefore(q, k, level + 1), endOfSpansBefore(q, k, level) + own - 1);
      if (causal) return;
      const from = Math.max(0, firstSpanAfter(q, k, level));
      const to = 2 * firstSpanAfter(q, k, level + 1);
      if (to > from) row.fill(1, from, to);
    };
  }

  Object.assign(Atlas, { makeTree, makeTreeLevel });
})();
