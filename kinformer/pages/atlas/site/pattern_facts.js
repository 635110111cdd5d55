// The numbers of a pattern in words: keys per query, cost against full attention, layers, and a long row.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
  const percent = (share) => `${(100 * share).toLocaleString("en", { maximumSignificantDigits: 3 })}%`;

  // Mean keys per query as shares of causal attention, if no query reads ahead, and of full attention.
  function shares(keys, length, ahead) {
    const causal = `${percent(keys / ((length + 1) / 2))} of causal attention, `;
    return `${ahead ? "" : causal}${percent(keys / length)} of full attention`;
  }

  // Write the numbers of the pattern of a view into its list. Return a function that stops the counting of a long row.
  function showFacts(view) {
    const { length, matrices, pattern } = view;
    const counted = Atlas.countPattern(pattern, length, matrices);
    const range = counted.least === counted.most ? "" : ` (${number(counted.least)} to ${number(counted.most)})`;
    const goal = counted.ahead ? "all positions" : "all earlier positions";
    const share = (keys, tokens) => shares(keys, tokens, counted.ahead);
    const heads = `0 to ${Atlas.HEADS - 1}`;
    const facts = [
      ["keys per query", `${number(counted.mean)} on average${range}`],
      ["pairs", `${number(Math.round(counted.mean * length))} per head: ${share(counted.mean, length)}`],
      [
        "connects",
        counted.steps === null
          ? `never: ${percent(counted.reached)} of the pairs connect, however many layers there are`
          : `${goal} after ${counted.steps} layer${counted.steps === 1 ? "" : "s"}`,
      ],
      [`at ${number(ATLAS.longest)} tokens`, "counting …"],
    ];
    if (pattern.byHead > Atlas.HEADS) {
      const missing = `${Atlas.HEADS} to ${pattern.byHead - 1}`;
      facts.unshift(["not counted", `heads ${missing}: this page counts the first ${Atlas.HEADS}`]);
    }
    if (view.differsByHead) {
      facts.unshift(["heads", `the drawing shows one head; these numbers are means over heads ${heads}, which differ`]);
    }
    view.host.querySelector("dl").replaceChildren(
      ...facts.map(([term, value]) => {
        const pair = document.createElement("div");
        const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
        [dt.textContent, dd.textContent] = [term, value];
        pair.append(dt, dd);
        return pair;
      }),
    );
    const long = view.host.querySelector("dl > div:last-child > dd");
    return Atlas.countLongRow(
      Atlas.parsePattern(view.text), // rows of another length need their own pattern, because a pattern reuses its row
      ATLAS.longest,
      (part) => (long.textContent = `counting … ${percent(Math.round(100 * part) / 100)}`),
      (keys, queries) => {
        const isSample = queries < ATLAS.longest;
        const size = `${number(queries)} of the ${number(ATLAS.longest)} queries`;
        const [about, note] = isSample ? ["about ", ` (a sample: ${size}, always the same)`] : ["", ""];
        long.textContent = `${about}${number(keys)} keys per query, ${share(keys, ATLAS.longest)}${note}`;
      },
    );
  }

  Object.assign(Atlas, { showFacts });
})();
