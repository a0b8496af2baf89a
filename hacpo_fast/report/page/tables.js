// Results, comparisons and all numbers as tables.
function named(run, agent) {
  return el("span", { class: "named", title: wholeName(run) }, swatch(run, agent), nameOf(run, agent));
}

// The name of a column, and below it in which unit or of what it is.
function head(name, below) {
  return below ? [name, el("br"), el("small", {}, below)] : name;
}

const brief = (value) => (isNumber(value) ? significant(value, 3) : DASH);

// Final and best values; among several runs the best of each agent is bold.
function resultsTable() {
  const rows = DATA.results,
    validated = rows.some((row) => isNumber(row.final));
  const kind = rows.every((row) => !isNumber(row.final) || (row.start >= 0 && row.best <= 1)) ? "share" : "number";
  const rivals = (row, key) => rows.filter((other) => other.agent === row.agent && isNumber(other[key]));
  const best = (row, key) =>
    SEVERAL && rivals(row, key).length > 1 && rivals(row, key).every((other) => other[key] <= row[key]);
  const score = (row, key) =>
    el("span", { class: isNumber(row[key]) && best(row, key) ? "best" : null }, written(kind, row[key]));
  const when = (row, key) => (isNumber(row[key]) ? el("small", {}, ` step ${row[key + "_step"]}`) : "");
  const scores = [...new Set(rows.map((row) => row.score).filter(Boolean))];
  const what = scores.length === 1 ? scores[0] : "validation";
  const late = (row) => row.final_step !== RUNS[row.run].steps;
  const columns = [
    ["agent", head("Agent"), (row) => named(row.run, row.agent)],
    ...(validated
      ? [
          ["start", head("Start", what), (row) => written(kind, row.start)],
          ["final", head("Final", what), (row) => [score(row, "final"), late(row) ? when(row, "final") : ""]],
          ["best", head("Best", what), (row) => [score(row, "best"), when(row, "best")]],
        ]
      : []),
    ...(rows.some((row) => isNumber(row.accuracy))
      ? [["accuracy", head("Training accuracy", "last tenth"), (row) => written("share", row.accuracy)]]
      : []),
    ...(rows.some((row) => row.reward !== row.accuracy)
      ? [["reward", head("Reward", "last tenth"), (row) => brief(row.reward)]]
      : []),
    ["entropy", head("Entropy", "last tenth"), (row) => brief(row.entropy)],
    ["response_tokens", head("Length", "tokens, last tenth"), (row) => written("count", row.response_tokens)],
    ["updates", head("Updates", "in all"), (row) => (isNumber(row.updates) ? String(row.updates) : DASH)],
    ...[
      ["generated", "Generated"],
      ["trained", "Trained"],
    ].map(([name, title]) => {
      const key = name + "_tokens_per_second";
      return [key, head(title, "tokens/s, mean"), (row) => written("count", row[key])];
    }),
  ];
  const notes = [
    "Means are over steps, the last tenth of them where it says so.",
    scores.length > 1 ? `Validation: ${scores.join("; ")}.` : null,
    validated && rows.some((row) => best(row, "final")) ? "Bold: the best run of each agent." : null,
  ].filter(Boolean);
  return [
    table(
      columns.map(([, title]) => title),
      rows.map((row) => columns.map(([, , cell]) => cell(row))),
      { keys: rows.map((row) => columns.map(([key], at) => (at ? row[key] : nameOf(row.run, row.agent)))) },
    ),
    el("p", { class: "note" }, notes.join(" ")),
  ];
}

// A table that was made elsewhere; the texts that its rows begin with become their names.
function comparisonTable({ columns, rows, shares, about }) {
  const texts = Math.max(
    1,
    columns.findIndex((_, at) => rows.some((row) => typeof row[at] !== "string")),
  );
  const name = (row) => row.slice(0, texts).map(String).join(" \u00b7 ");
  const share = columns.map((column) => shares.includes(column));
  const cell = (value, at) => (share[at] ? percentCell(value) : anyCell(value));
  const key = (value) => (Array.isArray(value) ? value[0] : value);
  return [
    table(
      [name(columns), ...columns.map((column, at) => head(column, share[at] ? "percent" : "")).slice(texts)],
      rows.map((row) => [el("span", { class: "name" }, visible(name(row))), ...row.map(cell).slice(texts)]),
      { keys: rows.map((row) => [name(row), ...row.map(key).slice(texts)]) },
    ),
    about ? el("p", { class: "note" }, about) : null,
  ];
}

function percentCell(value) {
  const parts = [value].flat();
  return parts.every(isNumber) ? parts.map((part) => signed((100 * part).toFixed(1))).join(` ${PLUS_MINUS} `) : DASH;
}

// A mean and half of its interval, both with the digits of the second.
function interval(mean, half) {
  const decimals = half > 0 ? Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(half)))) : 3;
  return `${signed(mean.toFixed(decimals))} ${PLUS_MINUS} ${half.toFixed(decimals)}`;
}

function anyCell(value) {
  if (Array.isArray(value) && value.length === 2 && value.every(isNumber)) return interval(...value);
  if (isNumber(value)) return Number.isInteger(value) ? signed(String(value)) : brief(value);
  return value === null || value === undefined
    ? DASH
    : visible(typeof value === "object" ? JSON.stringify(value) : String(value));
}

function numbersTable() {
  const statistics = ["first", "last", "low", "high", "mean"];
  const title = (row) => row.title + (row.name.startsWith("validation.") ? ` (${row.name.split(".")[1]})` : "");
  const numbers = DATA.numbers.map((row) => ({
    cells: [
      el("span", { class: "name", title: row.about }, title(row)),
      named(row.run, row.agent),
      ...statistics.map((key) => written(row.kind, row[key])),
    ],
    keys: [title(row), nameOf(row.run, row.agent), ...statistics.map((key) => row[key])],
  }));
  const words = DATA.words.map((row) => ({
    cells: [row.name, named(row.run, row.agent), DASH, visible(row.value), DASH, DASH, DASH],
    keys: [row.name, nameOf(row.run, row.agent)],
  }));
  const rows = [...numbers, ...words];
  return table(
    ["Number", SEVERAL ? "Run and agent" : "Agent", "First", "Last", "Lowest", "Highest", "Mean"],
    rows.map((row) => row.cells),
    { keys: rows.map((row) => row.keys) },
  );
}
