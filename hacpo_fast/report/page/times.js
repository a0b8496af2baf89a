// Where the time of a step goes: stacked columns, one chart per run.
const PHASE_COLOURS = ["rollout", "verify", "recompute", "learn", "validate", "other"];

const phaseColour = (name) => `var(--phase-${PHASE_COLOURS.includes(name) ? name : "other"})`;

function timeChart(times) {
  const plot = el("div", { class: "plot" }),
    legend = el("div", { class: "legend" });
  const hidden = new Set(),
    names = Object.keys(times.phases),
    count = times.steps.length;
  const total = Object.values(times.totals).reduce((sum, value) => sum + value, 0);
  const about = [
    "seconds by phase",
    SEVERAL ? RUNS[times.run].label : null,
    times.mean_of > 1 ? `columns are means of ${times.mean_of} steps` : null,
  ];
  const shares = names.map((name) => `${name} ${Math.round((100 * times.totals[name]) / total)} percent`).join(", ");
  const figure = el(
    "figure",
    { class: "card", tabindex: 0, "aria-label": `Time per step: ${shares}. Arrow keys read values.` },
    el("figcaption", {}, el("b", {}, "Time per step"), el("span", {}, about.filter(Boolean).join("; "))),
    plot,
    legend,
  );
  let view = null,
    at = -1;

  function draw() {
    figure.hidden = state.hiddenRuns.has(times.run);
    if (figure.hidden) return;
    const chosen = names.filter((name) => !hidden.has(name));
    const heights = times.steps.map((_, index) => chosen.reduce((sum, name) => sum + times.phases[name][index], 0));
    const apartness = count > 1 ? times.steps[1] - times.steps[0] : 1;
    const xs = [times.steps[0] - apartness / 2, times.steps[count - 1] + apartness / 2];
    const { drawing, box, x, y } = frame(
      plot,
      xs,
      [0, Math.max(...heights) * 1.05 || 1],
      "number",
      AXES.step,
      12,
      true,
    );
    const width = Math.max(x(xs[0] + apartness) - x(xs[0]), 0.5),
      gap = width > 4 ? 1 : 0;
    const floor = times.steps.map(() => 0);
    for (const name of chosen) {
      let text = "";
      times.phases[name].forEach((value, index) => {
        const bottom = y(floor[index]),
          top = y(floor[index] + value),
          left = x(times.steps[index]) - width / 2 + gap / 2;
        floor[index] += value;
        const [from, to, start, across] = [bottom, top, left, width - gap].map((pixels) => pixels.toFixed(1));
        text += `M${start} ${from}V${to}h${across}V${from}Z`;
      });
      const column = svg("path", { d: text });
      column.style.fill = phaseColour(name);
      drawing.append(column);
    }
    const marks = svg("g", {});
    drawing.append(marks);
    view = { box, x, marks, chosen, heights };
    plot.replaceChildren(drawing);
    legend.replaceChildren(
      ...names.map((name) =>
        chip(
          name,
          phaseMark(name),
          !hidden.has(name),
          () => {
            if (!hidden.delete(name)) hidden.add(name);
            draw();
          },
          { suffix: ` ${Math.round((100 * times.totals[name]) / total)}${NARROW}%` },
        ),
      ),
    );
  }

  function point(index) {
    at = index;
    const where = view.x(times.steps[index]);
    view.marks.replaceChildren(
      svg("line", { class: "cursor", x1: where, x2: where, y1: view.box.top, y2: view.box.bottom }),
    );
    const rows = view.chosen
      .slice()
      .reverse()
      .map((name) => ({ mark: phaseMark(name), name, value: FORMATS.seconds(times.phases[name][index]) }));
    rows.push({ mark: el("span"), name: "together", value: FORMATS.seconds(view.heights[index]) });
    const bounds = plot.getBoundingClientRect();
    tip.show(bounds.left + where, bounds.top + 10, `step ${written("number", times.steps[index])}`, rows);
  }

  function leave() {
    at = -1;
    tip.hide();
    view?.marks.replaceChildren();
  }

  plot.addEventListener("pointermove", (event) => {
    const index = nearest(times.steps, view.x.invert(event.clientX - plot.getBoundingClientRect().left));
    if (index !== at) point(index);
  });
  plot.addEventListener("pointerleave", leave);
  byKeyboard(
    figure,
    () => count,
    () => at,
    point,
    leave,
  );
  charts.push({ figure, plot, draw, mark() {} });
  return figure;
}

function phaseMark(name) {
  const mark = svg("rect", { width: 11, height: 11, rx: 2, y: 0.5 });
  mark.style.fill = phaseColour(name);
  return svg("svg", { class: "swatch", width: 11, height: 12, "aria-hidden": "true" }, mark);
}
