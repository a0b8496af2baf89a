// A chart of curves, and what a person can do with it.
function curveChart(chart, wide) {
  const plot = el("div", { class: "plot" });
  const ranged = chart.lines.every((line) => RUNS[line.run].ranges[chart.name]);
  const about = [chart.about, ranged ? "dotted: clip range" : null].filter(Boolean).join("; ");
  const figure = el(
    "figure",
    { class: wide ? "card wide" : "card", tabindex: 0, "aria-label": described(chart) },
    el("figcaption", {}, el("b", {}, chart.title), about ? el("span", {}, about) : null),
    plot,
  );
  let view = null,
    at = -1;

  function draw() {
    const lines = chart.lines.filter(shown).map(points);
    const xs = state.zoom || commonRange();
    const ys = heightRange(chart, lines, xs);
    const labelled = wide ? lines.filter(({ line }) => line.y.some(isNumber)) : [];
    const labels = endLabels(chart, labelled, plot.clientWidth);
    const right = labels.length ? labelWidth(labels) : 12;
    const { drawing, box, x, y } = frame(plot, xs, ys, chart.kind, AXES[state.axis], right, state.axis !== "hours");
    references(chart, drawing, box, y, ys);
    const clip = "clip-" + charts.indexOf(self);
    drawing.append(
      svg(
        "clipPath",
        { id: clip },
        svg("rect", {
          x: box.left - 4,
          y: box.top - 4,
          width: box.right - box.left + 8,
          height: box.bottom - box.top + 8,
        }),
      ),
    );
    const layer = svg("g", { "clip-path": `url(#${clip})` });
    for (const [index, { line, at: places, trend }] of lines.entries()) {
      const one = svg("g", {});
      one.style.setProperty("--wider", `${4 * later(lines, index, x, y)}px`);
      one.style.setProperty("--c", colourOf(line.run, line.agent));
      if (line.spread) one.append(svg("path", { class: "band", d: band(line, places, x, y) }));
      const dense = line.y.length > 3 * (box.right - box.left) ? " dense" : "";
      const curve = svg("path", { class: trend ? "curve faint" + dense : "curve", d: path(places, line.y, x, y) });
      one.append(curve);
      if (trend) {
        const smooth = svg("path", {
          class: "curve",
          d: path(
            trend.map((each) => each[0]),
            trend.map((each) => each[1]),
            x,
            y,
          ),
        });
        smooth.style.strokeDasharray = dashOf(line.run, line.agent);
        one.append(smooth);
      } else curve.style.strokeDasharray = dashOf(line.run, line.agent);
      one.append(svg("path", { class: "dots", d: dots(line, places, x, y) }));
      layer.append(one);
    }
    drawing.append(layer);
    if (!state.zoom) drawEnds(labelled, labels, drawing, box, x, y);
    const marks = svg("g", {});
    drawing.append(marks);
    const known = new Set();
    for (const { line, at: places } of lines)
      line.y.forEach((value, index) => {
        if (isNumber(value) && places[index] !== null && places[index] >= xs[0] && places[index] <= xs[1])
          known.add(places[index]);
      });
    view = { lines, box, x, y, marks, places: [...known].sort((a, b) => a - b) };
    plot.replaceChildren(drawing, ...(view.places.length ? [] : [el("div", { class: "none" }, "nothing to show")]));
    at = -1;
  }

  // The same place in all charts gets a line, this one a box with the values as well.
  function point(index) {
    at = index;
    const where = view.places[index];
    charts.forEach((other) => other.mark(where));
    const rows = [];
    let header = null;
    for (const { line, at: places } of view.lines) {
      const found = nearestKnown(line, places, where);
      if (found < 0 || Math.abs(view.x(places[found]) - view.x(where)) > 14) continue;
      const spread =
        line.spread && isNumber(line.spread[found]) ? ` ${PLUS_MINUS} ${significant(line.spread[found], 2)}` : "";
      header = header === null ? line.x[found] : header;
      rows.push({
        mark: swatch(line.run, line.agent),
        name: nameOf(line.run, line.agent),
        value: written(chart.kind, line.y[found]) + spread,
      });
    }
    const title = state.axis === "step" ? `step ${where}` : `${significant(where, 4)} ${AXES[state.axis]}`;
    const bounds = plot.getBoundingClientRect();
    tip.show(bounds.left + view.x(where), bounds.top + 10, title, rows);
  }

  function mark(where) {
    if (!view) return;
    view.marks.replaceChildren();
    if (where === null || view.x(where) < view.box.left - 1 || view.x(where) > view.box.right + 1) return;
    view.marks.append(
      svg("line", { class: "cursor", x1: view.x(where), x2: view.x(where), y1: view.box.top, y2: view.box.bottom }),
    );
    for (const { line, at: places } of view.lines) {
      const found = nearestKnown(line, places, where);
      if (found < 0 || Math.abs(view.x(places[found]) - view.x(where)) > 14) continue;
      const dot = svg("circle", { class: "at", r: 4.5, cx: view.x(places[found]), cy: view.y(line.y[found]) });
      dot.style.setProperty("--c", colourOf(line.run, line.agent));
      view.marks.append(dot);
    }
  }

  function leave() {
    at = -1;
    tip.hide();
    charts.forEach((chart) => chart.mark(null));
  }

  let drag = null;
  const inside = (event) => event.clientX - plot.getBoundingClientRect().left;
  plot.addEventListener("pointermove", (event) => {
    if (!view.places.length) return;
    const pixel = Math.max(view.box.left, Math.min(view.box.right, inside(event)));
    const index = nearest(view.places, view.x.invert(pixel));
    if (index !== at) point(index);
    if (drag !== null) {
      const [from, to] = [Math.min(drag, pixel), Math.max(drag, pixel)];
      view.marks.querySelector(".zoom")?.remove();
      view.marks.append(
        svg("rect", {
          class: "zoom",
          x: from,
          y: view.box.top,
          width: to - from,
          height: view.box.bottom - view.box.top,
        }),
      );
    }
  });
  plot.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0)
      drag = Math.max(view.box.left, Math.min(view.box.right, inside(event)));
  });
  plot.addEventListener("pointerup", (event) => {
    const pixel = Math.max(view.box.left, Math.min(view.box.right, inside(event)));
    const start = drag;
    drag = null;
    if (start !== null && Math.abs(pixel - start) > 8) {
      leave();
      change({ zoom: [view.x.invert(Math.min(start, pixel)), view.x.invert(Math.max(start, pixel))] });
      showControls();
    }
  });
  plot.addEventListener("pointerleave", () => {
    drag = null;
    leave();
  });
  plot.addEventListener("dblclick", () => {
    change({ zoom: null });
    showControls();
  });
  byKeyboard(
    figure,
    () => view.places.length,
    () => at,
    point,
    leave,
  );

  const self = { figure, plot, draw, mark };
  charts.push(self);
  return figure;
}

function nearestKnown(line, places, where) {
  let best = -1,
    distance = Infinity;
  line.y.forEach((value, index) => {
    if (!isNumber(value) || places[index] === null) return;
    const away = Math.abs(places[index] - where);
    if (away < distance) [best, distance] = [index, away];
  });
  return best;
}

// Ratio 1, and the range within which nothing is clipped, where all runs have the same.
function references(chart, drawing, box, y, ys) {
  const line = (value, kind) => {
    if (value >= ys[0] && value <= ys[1])
      drawing.append(svg("line", { class: kind, x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
  };
  if (!chart.name.endsWith("_ratio_mean")) return;
  line(1, "unity");
  const ranges = chart.lines.map((each) => JSON.stringify(RUNS[each.run].ranges[chart.name] || null));
  if (ranges.every((range) => range === ranges[0]))
    for (const value of JSON.parse(ranges[0]) || []) line(value, "range");
}

const labelWidth = (labels) => 20 + 7.6 * Math.max(...labels.map((text) => text.length));

// Names and last values; the values alone where there is no room for names.
function endLabels(chart, lines, width) {
  const values = lines.map(({ line }) => written(chart.kind, ends(line)[1]));
  const labels = lines.map(({ line }, index) => `${nameOf(line.run, line.agent)}  ${values[index]}`);
  return labelWidth(labels) > 0.3 * width ? values : labels;
}

// First and last known value.
function ends(line) {
  const known = line.y.filter(isNumber);
  return [known[0], known[known.length - 1]];
}

function drawEnds(labelled, labels, drawing, box, x, y) {
  const last = labelled.map(({ line, at }) => {
    for (let index = line.y.length - 1; index >= 0; index -= 1)
      if (isNumber(line.y[index]) && at[index] !== null) return [x(at[index]), y(line.y[index])];
    return [box.right, box.bottom];
  });
  const heights = last.map((each) => each[1]);
  for (const column of new Set(last.map((each) => each[0]))) {
    const same = last.flatMap((each, index) => (each[0] === column ? [index] : []));
    const moved = apart(
      same.map((index) => heights[index]),
      17,
      box.top + 2,
      box.bottom - 2,
    );
    same.forEach((index, position) => (heights[index] = moved[position]));
  }
  labelled.forEach(({ line }, index) => {
    const label = svg("text", { class: "end", x: last[index][0] + 11, y: heights[index] + 4.5 }, labels[index]);
    const name = wholeName(line.run);
    if (name) label.append(svg("title", {}, name));
    label.style.setProperty("--c", colourOf(line.run, line.agent));
    drawing.append(label);
  });
}

function described(chart) {
  const parts = chart.lines.map((line) => {
    const [first, last] = ends(line).map((value) => written(chart.kind, value));
    return first === DASH ? null : `${nameOf(line.run, line.agent)} from ${first} to ${last}`;
  });
  return `${chart.title}, ${chart.about}: ${parts.filter(Boolean).join("; ")}. Arrow keys read values.`;
}
