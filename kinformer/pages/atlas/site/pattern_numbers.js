// Numbers of a pattern, as kinformer.lab.cost.sparsity counts them: keys per query, share of all pairs, and layers.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const HEADS = 4; // heads that are counted, as `kinformer show` does

  // The matrices of the first heads; heads with equal matrices are kept once, with their number.
  function headMatrices(pattern, length) {
    return Array.from({ length: HEADS }, (_, h) => Atlas.matrix(pattern, length, h));
  }

  function countPattern(pattern, length, matrices = headMatrices(pattern, length)) {
    let total = 0;
    let least = Infinity;
    let most = 0;
    let ahead = false;
    for (const cells of matrices) {
      for (let q = 0; q < length; q += 1) {
        let keys = 0;
        for (let k = 0; k < length; k += 1) {
          if (!cells[q * length + k]) continue;
          keys += 1;
          if (k > q) ahead = true;
        }
        total += keys;
        least = Math.min(least, keys);
        most = Math.max(most, keys);
      }
    }
    const mean = total / (matrices.length * length);
    return { length, mean, least, most, share: mean / length, ahead, ...layersToReach(matrices, length, ahead) };
  }

  // A square matrix of bits: a row of 32-bit words for each query.
  class BitMatrix {
    constructor(length) {
      this.length = length;
      this.words = Math.ceil(length / 32);
      this.bits = new Int32Array(length * this.words);
    }

    set(q, k) {
      this.bits[q * this.words + (k >> 5)] |= 1 << (k & 31);
    }

    get(q, k) {
      return (this.bits[q * this.words + (k >> 5)] >> (k & 31)) & 1;
    }

    // The pairs that this matrix and then another matrix connect.
    times(other) {
      const product = new BitMatrix(this.length);
      for (let q = 0; q < this.length; q += 1) {
        for (let k = 0; k < this.length; k += 1) {
          if (!this.get(q, k)) continue;
          for (let w = 0; w < this.words; w += 1) product.bits[q * this.words + w] |= other.bits[k * this.words + w];
        }
      }
      return product;
    }

    contains(other) {
      return other.bits.every((word, n) => (word & ~this.bits[n]) === 0);
    }

    equals(other) {
      return other.bits.every((word, n) => word === this.bits[n]);
    }
  }

  // Layers until information passes from every position to every other, or to every later one if no query reads
  // ahead. Each position also keeps its own information. `steps` is null if some pairs never connect.
  function layersToReach(matrices, length, ahead) {
    const wanted = new BitMatrix(length);
    const layer = new BitMatrix(length);
    for (let q = 0; q < length; q += 1) {
      for (let k = 0; k < length; k += 1) {
        if (!ahead && k > q) continue;
        wanted.set(q, k);
        if (k === q || matrices.some((cells) => cells[q * length + k])) layer.set(q, k);
      }
    }
    const powers = [layer]; // powers[n] is 2^n layers
    while (!powers.at(-1).contains(wanted)) {
      const twice = powers.at(-1).times(powers.at(-1));
      if (twice.equals(powers.at(-1))) return { steps: null, reached: countBits(twice) / countBits(wanted) };
      powers.push(twice);
    }
    let steps = 0; // the largest number of layers that does not suffice, from its highest bit on
    let reached = new BitMatrix(length);
    for (let q = 0; q < length; q += 1) reached.set(q, q);
    if (reached.contains(wanted)) return { steps: 1, reached: 1 };
    for (let n = powers.length - 1; n >= 0; n -= 1) {
      const tried = reached.times(powers[n]);
      if (!tried.contains(wanted)) {
        reached = tried;
        steps += 2 ** n;
      }
    }
    return { steps: steps + 1, reached: 1 };
  }

  function countBits(matrix) {
    let count = 0;
    for (let word of matrix.bits) for (; word; word &= word - 1) count += 1;
    return count;
  }

  // For each position, the number of layers after which query q has its information: 0 for itself, null for never.
  function layersToQuery(matrices, length, q) {
    const layers = new Array(length).fill(null);
    layers[q] = 0;
    let border = [q];
    for (let layer = 1; border.length; layer += 1) {
      const next = [];
      for (const reader of border) {
        for (let k = 0; k < length; k += 1) {
          if (layers[k] === null && matrices.some((cells) => cells[reader * length + k])) {
            layers[k] = layer;
            next.push(k);
          }
        }
      }
      border = next;
    }
    return layers;
  }

  Object.assign(Atlas, { HEADS, headMatrices, countPattern, layersToQuery });
})();
