// What the runs were asked to do, and on what they did it.
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
            ["Setting", ...RUNS.map((run, index) => el("span", { title: wholeName(index) }, run.label))],
            DATA.differences.map(([key, values]) => [
              el("code", {}, key),
              ...values.map((value) => el("code", {}, visible(value))),
            ]),
            { words: true },
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
