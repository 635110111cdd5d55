// Parser of pattern expressions such as "Causal() & Band(64)". It accepts what kinformer.core.pattern_parser accepts:
// calls of patterns with integers, True, False, None, tuples and patterns as arguments, joined by & | and ~.
"use strict";
(() => {
  const Atlas = (window.Atlas = window.Atlas || {});
  const VALUES = Object.assign(Object.create(null), { True: true, False: false, None: null });
  const EXAMPLE = "Causal() & Band(64)";
  const LARGEST = Number.MAX_SAFE_INTEGER;
  const SPACE = /\s+|#[^\n]*/;
  const WORD = /[A-Za-z_]\w*|\d[\w.]*|"[^"]*"|'[^']*'|./; // names, numbers, texts, and signs of one letter
  const TOKEN = new RegExp(`${SPACE.source}|${WORD.source}`, "gy");

  // An error that the page shows as one line.
  class PatternError extends Error {}

  function tokenize(text) {
    const tokens = [];
    let depth = 0;
    for (const [token] of text.matchAll(TOKEN)) {
      if (token === "(") depth += 1;
      if (token === ")") depth -= 1;
      if (/^\s/.test(token)) {
        if (token.includes("\n") && depth <= 0) throw unreadable(text, "a line ends outside brackets; write one line");
      } else if (!token.startsWith("#")) tokens.push(token);
    }
    return tokens;
  }

  // An error about the first name that is no pattern, or null. A reader corrects a name before brackets.
  function unknownName(text) {
    const tokens = [...text.matchAll(TOKEN)].map(([token]) => token).filter((token) => !/^[\s#]/.test(token));
    const isName = (token, n) => /^[A-Za-z_]/.test(token) && tokens[n + 1] !== "=" && !(token in VALUES);
    const name = tokens.find((token, n) => isName(token, n) && !isKnown(token));
    return name === undefined ? null : new PatternError(refusal(name));
  }

  const isKnown = (name) => Object.hasOwn(Atlas.PATTERNS, name);

  // The message about a name that is no pattern of this page.
  function refusal(name) {
    const signs = { and: "&", or: "|", not: "~" };
    if (name in signs) return `write ${signs[name]} instead of '${name}'`;
    if (Atlas.NEEDS_TENSOR.has(name)) {
      return `${name} takes a tensor of a batch, so it has no text form; use it in Python`;
    }
    return `there is no pattern ${name}${suggestName(name)}`;
  }

  function unreadable(text, reason) {
    return unknownName(text) ?? new PatternError(`${reason}. Write for example ${EXAMPLE}`);
  }

  // Recursive descent over the tokens. The result is a tree of {kind, ...}, which `build` turns into a pattern.
  class Parser {
    constructor(text) {
      this.text = text;
      this.tokens = tokenize(text);
      this.place = 0;
    }

    get next() {
      return this.tokens[this.place];
    }

    take(expected) {
      const token = this.next;
      if (expected !== undefined && token !== expected) {
        const names = { ")": "a closing bracket", ",": "a comma or a closing bracket" };
        const where = token === undefined ? "at the end" : `before '${token}'`;
        throw unreadable(this.text, `${names[expected] ?? `'${expected}'`} is missing ${where}`);
      }
      this.place += 1;
      return token;
    }

    parse() {
      const tree = this.tupleOf(() => this.next === undefined);
      if (this.next === ")") throw unreadable(this.text, "a closing bracket has no opening bracket");
      if (/^[\w(]/.test(this.next ?? "")) throw unreadable(this.text, `& or | is missing before '${this.next}'`);
      if (this.next !== undefined) throw unreadable(this.text, `'${this.next}' has no meaning there`);
      return tree;
    }

    // One expression, or a tuple if commas follow it.
    tupleOf(isEnd) {
      const first = this.union();
      if (this.next !== ",") return first;
      const items = [first];
      while (this.next === ",") {
        this.take();
        if (isEnd()) break;
        items.push(this.union());
      }
      return { kind: "tuple", items };
    }

    union() {
      return this.chain("|", () => this.chain("&", () => this.unary()));
    }

    chain(sign, operand) {
      let left = operand();
      while (this.next === sign) {
        this.take();
        left = { kind: "pair", sign, left, right: operand() };
      }
      return left;
    }

    unary() {
      if (this.next === "~" || this.next === "-") {
        const sign = this.take();
        return { kind: sign === "~" ? "not" : "minus", operand: this.unary() };
      }
      return this.call(this.atom());
    }

    call(tree) {
      while (this.next === "(") {
        this.take();
        const positional = [];
        const named = [];
        while (this.next !== ")") {
          const isNamed = /^[A-Za-z_]/.test(this.next ?? "") && this.tokens[this.place + 1] === "=";
          if (isNamed) {
            const name = this.take();
            this.take("=");
            if (named.some(([other]) => other === name)) throw unreadable(this.text, `'${name}' is given twice`);
            named.push([name, this.union()]);
          } else {
            if (named.length) throw unreadable(this.text, "a positional argument follows a named argument");
            positional.push(this.union());
          }
          if (this.next !== ")") this.take(",");
        }
        this.take(")");
        tree = { kind: "call", callee: tree, positional, named };
      }
      return tree;
    }

    atom() {
      const token = this.take();
      if (token === undefined) {
        const last = this.tokens.at(-1);
        const isEmpty = last === undefined;
        throw unreadable(this.text, isEmpty ? "the expression is empty" : `a pattern is missing after '${last}'`);
      }
      if (token === "(") {
        if (this.next === ")") {
          this.take();
          return { kind: "tuple", items: [] };
        }
        const tree = this.tupleOf(() => this.next === ")");
        this.take(")");
        return tree;
      }
      if (/^\d/.test(token)) return this.number(token);
      if (/^["']/.test(token)) return { kind: "other", text: token };
      if (token in VALUES) return { kind: "value", value: VALUES[token] };
      if (/^[A-Za-z_]/.test(token)) return { kind: "name", name: token };
      if (["&", "|"].includes(token) && this.tokens[this.place - 2] === token) {
        throw unreadable(this.text, `write '${token}' once`);
      }
      const isSign = ["&", "|", ")", ",", "="].includes(token);
      const missing = `a pattern or a number is missing before '${token}'`;
      throw unreadable(this.text, isSign ? missing : `'${token}' has no meaning`);
    }

    number(token) {
      const isDecimal = /^(0(_?0)*|[1-9](_?\d)*)$/.test(token);
      if (!isDecimal && !/^0([xX](_?[\da-fA-F])+|[bB](_?[01])+|[oO](_?[0-7])+)$/.test(token)) {
        if (/^\d+\.\d*$|^\d+(\.\d*)?[eE]\d+$/.test(token)) return { kind: "other", text: token };
        throw unreadable(this.text, `'${token}' is no whole number`);
      }
      const value = Number(token.replaceAll("_", ""));
      if (value > LARGEST) throw unreadable(this.text, `'${token}' is too large for this page`);
      return { kind: "value", value };
    }
  }

  // The text of a tree, for messages.
  function written(tree) {
    switch (tree.kind) {
      case "pair": return `${written(tree.left)} ${tree.sign} ${written(tree.right)}`;
      case "not": return `~${written(tree.operand)}`;
      case "minus": return `-${written(tree.operand)}`;
      case "tuple": return `(${tree.items.map(written).join(", ")}${tree.items.length === 1 ? "," : ""})`;
      case "name": return tree.name;
      case "value": return spell(tree.value);
      case "call": {
        const named = tree.named.map(([name, value]) => `${name}=${written(value)}`);
        return `${written(tree.callee)}(${[...tree.positional.map(written), ...named].join(", ")})`;
      }
      default: return tree.text;
    }
  }

  // A value as Python writes it.
  function spell(value) {
    if (value === null || value === undefined) return "None";
    if (value === true) return "True";
    if (value === false) return "False";
    if (Array.isArray(value)) return `(${value.map(spell).join(", ")}${value.length === 1 ? "," : ""})`;
    return value instanceof Atlas.Pattern ? value.text : String(value);
  }

  function build(tree, text) {
    switch (tree.kind) {
      case "value": return tree.value;
      case "tuple": return tree.items.map((item) => build(item, text));
      case "not": return new Atlas.Not(operand(tree.operand, text));
      case "pair": return new Atlas.Pair(tree.sign, operand(tree.left, text), operand(tree.right, text));
      case "minus":
        if (tree.operand.kind === "value" && tree.operand.value !== null) return 0 - Number(tree.operand.value);
        break;
      case "call":
        if (tree.callee.kind === "name") return buildCall(tree, text);
    }
    if (tree.kind === "name") {
      throw new PatternError(
        isKnown(tree.name) ? `${tree.name} needs brackets: write ${Atlas.usage(tree.name)}` : refusal(tree.name),
      );
    }
    throw new PatternError(
      `'${written(tree)}' has no meaning here; write patterns with their numbers in brackets, such as Band(64) or ` +
        "Causal(), and join them with & | ~",
    );
  }

  function operand(tree, text) {
    const value = build(tree, text);
    if (value instanceof Atlas.Pattern) return value;
    throw new PatternError(`${spell(value)} is no pattern; & | ~ join patterns, such as Causal()`);
  }

  function buildCall(tree, text) {
    const name = tree.callee.name;
    if (!isKnown(name)) throw new PatternError(refusal(name));
    const positional = tree.positional.map((argument) => build(argument, text));
    const named = tree.named.map(([key, argument]) => [key, build(argument, text)]);
    const wrong = (reason) =>
      new PatternError(`wrong arguments in ${written(tree)}: ${reason}. Write ${Atlas.usage(name)}`);
    return Atlas.makePattern(name, positional, named, wrong);
  }

  // The end of a message about an unknown name: the nearest name, or all names.
  function suggestName(name) {
    const names = Object.keys(Atlas.PATTERNS).sort();
    const words = window.ATLAS ? ATLAS.words : {};
    if (Object.hasOwn(words, name) && isKnown(words[name])) return `; use '${words[name]}' instead`;
    const distances = names.map((other) => [editDistance(name.toLowerCase(), other.toLowerCase()), other]);
    const [distance, nearest] = distances.reduce((best, entry) => (entry[0] < best[0] ? entry : best));
    // half of the letters wrong: no name is meant
    if (distance <= Math.max(name.length, nearest.length) / 2) return `; the nearest is '${nearest}'`;
    return `; there are ${names.join(", ")}`;
  }

  function editDistance(a, b) {
    let row = Array.from({ length: b.length + 1 }, (_, n) => n);
    for (let i = 1; i <= a.length; i += 1) {
      const next = [i];
      for (let j = 1; j <= b.length; j += 1) {
        next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] !== b[j - 1] ? 1 : 0)));
      }
      row = next;
    }
    return row[b.length];
  }

  // Return the pattern of an expression; throws PatternError, with a message of one line.
  function parsePattern(text) {
    const source = text.trim();
    const tree = new Parser(source).parse();
    const unknown = unknownName(source);
    if (unknown) throw unknown;
    const pattern = build(tree, source);
    if (!(pattern instanceof Atlas.Pattern)) {
      throw new PatternError(`${spell(pattern)} is no pattern. Write for example ${EXAMPLE}`);
    }
    return pattern;
  }

  Object.assign(Atlas, { PatternError, parsePattern, spell, editDistance });
})();
