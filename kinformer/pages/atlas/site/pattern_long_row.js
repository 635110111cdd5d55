// Keys per query in a long row. The same queries are counted on every machine, so the number is always the same.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const SLICE = 25; // milliseconds of counting between two frames of the page
  const MOST = 64; // passes over a row; a pattern that needs more for a query is counted in a sample of the queries
  const SAMPLE = 1024; // queries of a sample

  // The queries to count: all of them if a row takes few passes, or one query at random from each of 1,024 equal parts
  // of the row. The random numbers are fixed. A regular step would always meet the same place of a block.
  function queriesToCount(pattern, length, heads) {
    if (pattern.work * heads <= MOST || length <= SAMPLE) return Array.from({ length }, (_, q) => q);
    const part = Math.floor(length / SAMPLE);
    return Array.from({ length: SAMPLE }, (_, n) => n * part + ((Math.imul(n + 1, 0x9e3779b1) >>> 8) % part));
  }

  // The number of ones in a row of zeros and ones. Four bytes are added at a time, at most 255 times without a carry.
  function countOnes(row) {
    if (row.length % 4) return row.reduce((sum, bit) => sum + bit, 0);
    const words = Atlas.wordsOf(row);
    let total = 0;
    for (let start = 0; start < words.length; start += 255) {
      const end = Math.min(start + 255, words.length);
      let sum = 0;
      for (let n = start; n < end; n += 1) sum += words[n];
      total += (sum & 255) + ((sum >>> 8) & 255) + ((sum >>> 16) & 255) + (sum >>> 24);
    }
    return total;
  }

  // Count the keys per query of a long row, some queries at a time, so that the page stays responsive.
  // onProgress(share) is called while it counts, and onEnd(keys, queries) at the end with the mean number of keys per
  // query and head, and the number of counted queries. Return a function that stops it.
  function countLongRow(pattern, length, onProgress, onEnd) {
    const heads = pattern.byHead ? Atlas.HEADS : 1;
    const queries = queriesToCount(pattern, length, heads);
    let place = 0;
    let pairs = 0;
    let stopped = false;
    function slice() {
      if (stopped) return;
      const end = performance.now() + SLICE;
      while (place < queries.length && performance.now() < end) {
        for (let h = 0; h < heads; h += 1) pairs += countOnes(pattern.row(queries[place], h, length));
        place += 1;
      }
      if (place === queries.length) onEnd(pairs / heads / place, place);
      else {
        onProgress(place / queries.length);
        setTimeout(slice);
      }
    }
    setTimeout(slice);
    return () => (stopped = true);
  }

  Object.assign(Atlas, { countLongRow, queriesToCount });
})();
