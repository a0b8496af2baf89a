// The page, from top to bottom.

function chip(text, mark, pressed, toggle, { suffix = "", title = null } = {}) {
  return el(
    "button",
    { class: "chip", type: "button", title, "aria-pressed": String(pressed), onclick: toggle },
    mark,
    el("span", {}, text + suffix),
  );
}

function toggled(set, key) {
  const next = new Set(set);
  if (!next.delete(key)) next.add(key);
  return next;
}

function showControls() {
  const again = (values) => {
    change(values);
    showControls();
  };
  const focused = document.activeElement?.dataset?.key;
  const parts = [];
  const add = (key, node) => {
    node.dataset.key = key;
    parts.push(node);
  };
  AGENTS.forEach((agent) =>
    add(
      "agent " + agent,
      chip(agent, chipMark("agent", agent), !state.hiddenAgents.has(agent), () =>
        again({ hiddenAgents: toggled(state.hiddenAgents, agent) }),
      ),
    ),
  );
  if (SEVERAL)
    RUNS.forEach((run, index) =>
      add(
        "run " + index,
        chip(
          run.label,
          chipMark("run", index),
          !state.hiddenRuns.has(index),
          () => again({ hiddenRuns: toggled(state.hiddenRuns, index) }),
          { title: wholeName(index) },
        ),
      ),
    );
  parts.push(el("span", { class: "gap" }));
  if (state.zoom) add("zoom", el("button", { type: "button", onclick: () => again({ zoom: null }) }, "Show all steps"));
  if (DATA.groups.some((group) => group.charts.some((chart) => chart.lines.some((line) => line.trend)))) {
    const box = el("input", {
      type: "checkbox",
      checked: state.trends,
      onchange: () => again({ trends: box.checked }),
    });
    add("trends", el("label", { title: "means over a tenth of the steps" }, box, "trends"));
  }
  if (SEVERAL && AGENTS.length > 1) {
    const colour = select(
      "Colours",
      [
        ["agent", "agents"],
        ["run", "runs"],
      ],
      (value) => again({ colour: value }),
    );
    colour.control.value = state.colour;
    add("colour", colour.label);
  }
  const axes = Object.entries(AXES).filter(
    ([key]) =>
      key === "step" || RUNS.every((run) => (key === "hours" ? run.hours[0].length : Object.keys(run.updates).length)),
  );
  if (RUNS.length && axes.length > 1) {
    const axis = select("Over", axes, (value) => again({ axis: value, zoom: null }));
    axis.control.value = state.axis;
    add("axis", axis.label);
  }
  byId("controls").replaceChildren(...parts);
  const back = parts.find((part) => focused && part.dataset.key === focused);
  back?.focus();
}

// In a legend, agents show their colour and runs their dashes, or the other way round.
function chipMark(kind, key) {
  const run = kind === "run" ? key : 0,
    agent = kind === "agent" ? key : AGENTS[0];
  if (!SEVERAL) return swatch(run, agent);
  const coloured = kind === state.colour;
  return strokeOf(coloured ? colourOf(run, agent) : "var(--ink-2)", coloured ? "none" : dashOf(run, agent));
}

function facts() {
  return RUNS.map((run) => {
    const parts = [
      SEVERAL ? el("b", {}, run.name) : null,
      [run.algorithm, run.task].filter(Boolean).join(" on ") || null,
      counted(run.agents.length, "agent"),
      run.planned && run.planned !== run.steps
        ? `${run.steps} of ${counted(run.planned, "step")}`
        : counted(run.steps, "step"),
      run.finished ? null : "not finished",
      run.seconds ? `${duration(run.seconds)} of computing` : null,
      run.seconds_per_step ? `${significant(run.seconds_per_step, 3)}${NARROW}s per step` : null,
      run.started ? `started ${run.started}` : null,
      run.resumed.length ? `resumed after step ${run.resumed.join(", ")}` : null,
    ].filter(Boolean);
    return el(
      "p",
      { class: "fact" },
      parts.flatMap((part, index) => (index ? [" \u00b7 ", part] : [part])),
    );
  });
}

// Whether some curve has more points than the page holds.
function isThinned() {
  return DATA.groups.some((group) => group.charts.some((chart) => chart.lines.some((line) => line.of)));
}

function chartGroup(group, first) {
  const drawn = group.charts.filter((chart) => chart.constant === null),
    flat = group.charts.filter((chart) => chart.constant !== null);
  const figures = drawn.map((chart, index) => curveChart(chart, first && index === 0));
  if (group.title === "Throughput") figures.unshift(...DATA.times.map(timeChart));
  const same = flat.map((chart) => `${chart.title.toLowerCase()} ${written(chart.kind, chart.constant)}`).join("; ");
  return [
    figures.length ? el("div", { class: "grid" }, figures) : null,
    same ? el("p", { class: "note" }, `The same throughout: ${same}.`) : null,
  ];
}

const FOLDED = "Time by agent"; // many charts, wanted by few

// What is large and wanted seldom, under a line that opens it.
function folded(summary, body) {
  return el("details", {}, el("summary", {}, summary), body);
}

function build() {
  const sections = RUNS.length ? [["Results", resultsTable]] : [];
  DATA.tables.forEach((one) => sections.push([one.title, () => comparisonTable(one)]));
  const groups =
    DATA.groups.some((group) => group.title === "Throughput") || !DATA.times.length
      ? DATA.groups
      : DATA.groups.concat([{ title: "Throughput", charts: [] }]);
  const changing = groups.filter(
    (group) => group.title === "Throughput" || group.charts.some((chart) => chart.constant === null),
  );
  const section = (group) => [group.title, () => chartGroup(group, group === changing[0])];
  const fold = (group) => [
    group.title,
    () => folded(counted(group.charts.length, "chart"), chartGroup(group, false)),
  ];
  sections.push(...changing.filter((group) => group.title !== FOLDED).map(section));
  if (RUNS.length)
    sections.push(
      ["Rollouts", samplesSection],
      ...changing.filter((group) => group.title === FOLDED).map(fold),
      ["Settings", settingsSection],
      ["Environment", environmentSection],
      ["Numbers", () => folded(`${DATA.numbers.length} curves in numbers`, numbersTable())],
    );

  byId("facts").replaceChildren(
    ...facts(),
    isThinned()
      ? el("p", { class: "note" }, "Long curves are drawn with all their peaks, but not with every step.")
      : "",
  );
  const alone = sections.length === 1; // under the title of the page
  sections.forEach(([title, make], index) => {
    const id = "section-" + index;
    if (!alone) byId("nav").append(el("a", { href: "#" + id }, title));
    byId("content").append(el("section", { id, "aria-label": title }, alone ? null : el("h2", {}, title), make()));
  });
  byId("bar").hidden = alone;
  byId("footer").append(
    ...(RUNS.length
      ? [
          "Drag across a chart to look closer, double-click to go back. ",
          "Arrow keys read the values of a chart in focus. ",
        ]
      : []),
    "Tables are sorted by a click on the head of a column.",
  );
  showControls();
  change({});
  let waiting = 0;
  new ResizeObserver(() => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => change({}));
  }).observe(byId("content"));
}

build();
