// Random blocks by integer arithmetic, with the same numbers as kinformer/nn/patterns/random.py.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});

  // A 32-bit hash of four numbers. Math.imul keeps the low 32 bits of a product, which are all that the hash needs.
  function mix(seed, head, row, draw) {
    const start = BigInt(seed) * 0x9e3779b1n + BigInt(draw) * 0x85ebca6bn + 0x165667b1n;
    let x = Number(BigInt.asUintN(32, start));
    for (const value of [head, row]) {
      x = Math.imul(x ^ (value + 0x27d4eb2f), 0x45d9f3b) >>> 0;
      x = Math.imul(x ^ (x >>> 16), 0x45d9f3b) >>> 0;
      x = (x ^ (x >>> 16)) >>> 0;
    }
    return x;
  }

  // `keys` different random numbers from 0 .. count - 1 for a query block, by Floyd's method; -1 where there are fewer.
  function draws(keys, seed, head, row, count) {
    const last = count - 1;
    if (last < keys) return Array.from({ length: keys }, (_, n) => (last >= n ? n : -1));
    const chosen = [];
    for (let n = 0; n < keys; n += 1) {
      const top = last - keys + 1 + n;
      let candidate = mix(seed, head, row, n) % (Math.max(top, 0) + 1);
      for (const earlier of chosen) if (candidate === earlier) candidate = top;
      chosen.push(candidate);
    }
    return chosen;
  }

  // Random blocks from first .. among - 1 and outside the window around the query's block.
  function drawOutsideWindow(keys, seed, head, row, first, among, window_) {
    const low = Math.max(row - window_, first);
    const gap = Math.max(Math.min(row + window_, among - 1) - low + 1, 0);
    const ranks = draws(keys, seed, head, row, among - first - gap);
    return ranks.map((rank) => (rank < 0 ? -1 : rank + first)).map((block) => (block >= low ? block + gap : block));
  }

  function fillBlocks(row, blocks, size) {
    for (const block of blocks) if (block >= 0) row.fill(1, block * size, (block + 1) * size);
  }

  function makeRandom(values, name) {
    const { keys, block, seed, symmetric, first, back, head } = values;
    const { checks } = Atlas;
    checks.atLeast(`${name}.keys`, keys, 1);
    checks.atLeast(`${name}.block`, block, 1);
    checks.atLeast(`${name}.first`, first, 0);
    checks.atLeast(`${name}.back`, back, 0);
    checks.whole(`${name}.seed`, seed);
    checks.flag(`${name}.symmetric`, symmetric);
    checks.atLeast(`${name}.head`, head === null ? 0 : head, 0);
    const drawn = new Map(); // the blocks that a query block drew, by head and query block
    function drawBlocks(h, row) {
      const place = `${h},${row}`;
      if (!drawn.has(place)) {
        const numbers = draws(keys, seed, h, row, row - back - first + 1);
        drawn.set(place, numbers.map((number) => (number < 0 ? -1 : number + first)));
      }
      return drawn.get(place);
    }
    const readers = new Map(); // for each block the query blocks that drew it, by head and number of query blocks
    function readersOf(h, blocks) {
      const place = `${h},${blocks}`;
      if (!readers.has(place)) {
        const lists = Array.from({ length: blocks }, () => []);
        for (let row = 0; row < blocks; row += 1) {
          for (const drawn of drawBlocks(h, row)) if (drawn >= 0 && drawn < blocks) lists[drawn].push(row);
        }
        readers.set(place, lists);
      }
      return readers.get(place);
    }
    const fill = (q, h, row) => {
      const own = head === null ? h : head;
      const block_ = Math.floor(q / block);
      row.fill(0);
      fillBlocks(row, drawBlocks(own, block_), block);
      if (symmetric) fillBlocks(row, readersOf(own, Math.ceil(row.length / block))[block_], block);
    };
    return Atlas.costing(fill, 1, head === null);
  }

  function makePublishedRandom(values, name) {
    const { keys, block, seed, among, first, window: window_, head } = values;
    const { checks } = Atlas;
    checks.atLeast(`${name}.keys`, keys, 1);
    checks.atLeast(`${name}.block`, block, 1);
    checks.atLeast(`${name}.first`, first, 0);
    checks.atLeast(`${name}.window`, window_, 0);
    checks.atLeast(`${name}.among`, among, first + 1);
    checks.whole(`${name}.seed`, seed);
    checks.atLeast(`${name}.head`, head === null ? 0 : head, 0);
    const fill = (q, h, row) => {
      const block_ = Math.floor(q / block);
      row.fill(0);
      const own = head === null ? h : head;
      fillBlocks(row, drawOutsideWindow(keys, seed, own, block_, first, among, window_), block);
    };
    return Atlas.costing(fill, 1, head === null);
  }

  Object.assign(Atlas, { makeRandom, makePublishedRandom });
})();
