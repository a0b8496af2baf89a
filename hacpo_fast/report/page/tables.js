// Everything that is a table.
function table(columns, rows, words) {
  return el(
    "div",
    { class: words ? "scroll words" : "scroll", tabindex: 0, role: "region", "aria-label": "Table" },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          columns.map((column) => el("th", { scope: "col" }, column)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((cell, index) => (index ? el("td", {}, cell) : el("th", { scope: "row" }, cell))),
          ),
        ),
      ),
    ),
  );
}

function named(run, agent) {
  return el("span", { class: "named" }, swatch(run, agent), nameOf(run, agent));
}

// Final and best values; among several runs the best of each agent is bold.
function resultsTable() {
  const rows = DATA.results,
    validated = rows.some((row) => isNumber(row.final));
  const kind = rows.every((row) => !isNumber(row.final) || (row.start >= 0 && row.best <= 1)) ? "share" : "number";
  const best = (row, key) =>
    SEVERAL &&
    isNumber(row[key]) &&
    rows.filter((other) => other.agent === row.agent && isNumber(other[key])).length > 1 &&
    rows.every((other) => other.agent !== row.agent || !isNumber(other[key]) || other[key] <= row[key]);
  const score = (row, key) => el("span", { class: best(row, key) ? "best" : null }, written(kind, row[key]));
  const small = (text) => el("small", {}, text);
  const scores = [...new Set(rows.map((row) => row.score).filter(Boolean))];
  const what = scores.length === 1 ? scores[0] : "validation";
  const columns = [
    [["Agent"], (row) => named(row.run, row.agent)],
    ...(validated
      ? [
          [["Start", el("br"), small(what)], (row) => [written(kind, row.start)]],
          [
            ["Final", el("br"), small(what)],
            (row) => [
              score(row, "final"),
              isNumber(row.final) && row.final_step !== RUNS[row.run].steps ? small(" step " + row.final_step) : "",
            ],
          ],
          [
            ["Best", el("br"), small(what)],
            (row) => [score(row, "best"), isNumber(row.best) ? small(" step " + row.best_step) : ""],
          ],
        ]
      : []),
    ...(rows.some((row) => isNumber(row.accuracy))
      ? [[["Training accuracy", el("br"), small("last tenth of the steps")], (row) => written("share", row.accuracy)]]
      : []),
    ...(rows.some((row) => row.reward !== row.accuracy)
      ? [[["Reward", el("br"), small("last tenth")], (row) => brief(row.reward)]]
      : []),
    [["Entropy", el("br"), small("last tenth")], (row) => brief(row.entropy)],
    [["Length", el("br"), small("tokens")], (row) => written("count", row.response_tokens)],
    [["Updates", el("br"), small("in all")], (row) => (isNumber(row.updates) ? String(row.updates) : DASH)],
    [["Generated", el("br"), small("tokens/s, mean")], (row) => written("count", row.generated_tokens_per_second)],
    [["Trained", el("br"), small("tokens/s, mean")], (row) => written("count", row.trained_tokens_per_second)],
  ];
  return [
    table(
      columns.map(([head]) => head),
      rows.map((row) => columns.map(([, cell]) => cell(row))),
    ),
    scores.length > 1 ? el("p", { class: "note" }, `Validation: ${scores.join("; ")}.`) : null,
  ];
}

// A mean and half of its interval, both with the digits of the second.
function interval(mean, half) {
  const decimals = half > 0 ? Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(half)))) : 3;
  return `${signed(mean.toFixed(decimals))} ${PLUS_MINUS} ${half.toFixed(decimals)}`;
}

const brief = (value) => (isNumber(value) ? significant(value, 3) : DASH);

function anyCell(value) {
  if (Array.isArray(value) && value.length === 2 && value.every(isNumber)) return interval(...value);
  if (isNumber(value)) return Number.isInteger(value) ? signed(String(value)) : brief(value);
  return value === null || value === undefined
    ? DASH
    : visible(typeof value === "object" ? JSON.stringify(value) : String(value));
}

function numbersTable() {
  const columns = ["Number", "", "First", "Last", "Lowest", "Highest", "Mean"];
  const sorted = DATA.numbers.map((row) => [
    el(
      "span",
      { title: row.about },
      row.title + (row.name.startsWith("validation.") ? ` (${row.name.split(".")[1]})` : ""),
    ),
    named(row.run, row.agent),
    ...["first", "last", "low", "high", "mean"].map((key) => written(row.kind, row[key])),
  ]);
  const others = DATA.words.map((row) => [
    row.name,
    named(row.run, row.agent),
    DASH,
    el("span", {}, visible(row.value)),
    DASH,
    DASH,
    DASH,
  ]);
  return table(columns, sorted.concat(others));
}

const EMPTY = ["null", "{}", "[]", "''"];

function settingsSection() {
  const only = el("input", { type: "checkbox", checked: true });
  const box = el("div", { class: "only" });
  only.addEventListener("change", () => box.classList.toggle("only", only.checked));
  const parts = RUNS.map((run, index) => {
    const lines = DATA.settings[index];
    const body = lines.length
      ? el(
          "div",
          { class: "card yaml", role: "region", "aria-label": `Settings of ${run.name}`, tabindex: 0 },
          yamlLines(lines),
        )
      : el("p", { class: "note" }, "The run has no config.yaml.");
    return SEVERAL ? el("details", { open: index === 0 }, el("summary", {}, run.name), body) : body;
  });
  box.append(...parts);
  const differing =
    SEVERAL && DATA.differences.length
      ? [
          el("h3", {}, "Where the runs differ"),
          table(
            [["Setting"], ...RUNS.map((run) => [run.name])],
            DATA.differences.map(([key, values]) => [
              el("code", {}, key),
              ...values.map((value) => el("code", {}, visible(value))),
            ]),
            true,
          ),
          el("h3", {}, "Each run"),
        ]
      : [];
  return [
    ...differing,
    el("div", { class: "filters" }, el("label", {}, only, "only what differs from the defaults, or has none")),
    box,
  ];
}

// Sections without a visible line are hidden with their lines.
function yamlLines(lines) {
  const differs = lines.map(([, , value, standard, changed]) => value !== null && (changed || standard === null));
  const needed = lines.map(([depth, , value], index) => {
    if (value !== null) return differs[index];
    for (let next = index + 1; next < lines.length && lines[next][0] > depth; next += 1) if (differs[next]) return true;
    return false;
  });
  const sections = [];
  lines.forEach(([depth, key, value, standard, changed], index) => {
    const kind = [needed[index] ? null : "same", changed ? "changed" : null, value === null ? "section" : null]
      .filter(Boolean)
      .join(" ");
    if (depth === 0 || !sections.length) sections.push(el("section"));
    sections[sections.length - 1].append(
      el(
        "div",
        { class: kind || null },
        "\u00a0".repeat(2 * depth),
        ...(value === null ? [key + ":"] : visible(`${key}: ${value}`)),
        changed && !EMPTY.includes(standard) ? el("span", { class: "default" }, `  # default ${standard}`) : null,
      ),
    );
  });
  return sections;
}

const FACTS = {
  command: ["Command", (value) => (Array.isArray(value) ? value.join(" ") : String(value))],
  started: ["Started", String],
  commit: ["Commit", (value) => (value.endsWith("+") ? value.slice(0, -1) + " and changes" : value)],
  device: ["Device", String],
  device_memory_gb: ["Device memory", (value) => value + " GiB"],
  cuda: ["CUDA", String],
  cpu: ["CPU", String],
  cores: ["Cores", String],
  threads: ["Threads", String],
  memory_gb: ["Memory", (value) => value + " GiB"],
  platform: ["Platform", String],
  python: ["Python", String],
  engine: ["Sampled by", String],
  packages: [
    "Packages",
    (value) =>
      Object.entries(value)
        .map(([name, version]) => `${name} ${version}`)
        .join(", "),
  ],
};

function environmentSection() {
  return RUNS.map((run, index) => {
    const starts = DATA.environments[index];
    const bodies = starts.map((start) => [
      starts.length > 1
        ? el("h3", {}, start.after_step ? `from step ${start.after_step + 1}` : "from the beginning")
        : null,
      el(
        "dl",
        { class: "card" },
        Object.entries(start)
          .filter(([key, value]) => key !== "after_step" && value !== null)
          .flatMap(([key, value]) => {
            const [label, text] = FACTS[key] || [
              key,
              (other) => (typeof other === "object" ? JSON.stringify(other) : String(other)),
            ];
            return [
              el("dt", {}, label),
              el("dd", { class: key === "command" || key === "commit" ? "mono" : null }, visible(text(value))),
            ];
          }),
      ),
    ]);
    return [
      SEVERAL ? el("h3", {}, run.name) : null,
      starts.length ? bodies : el("p", { class: "note" }, "The run did not record its environment."),
    ];
  });
}
