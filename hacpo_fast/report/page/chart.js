// The frame of a chart: scales, ticks, grid.
function ticks(low, high, most, least) {
  const raw = Math.max((high - low) / most || 1, least || 0);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1)
    found.push(index * step);
  return { step, values: found };
}

function scale(from, to, start, end) {
  const factor = (end - start) / (to - from || 1);
  const position = (value) => start + (value - from) * factor;
  position.invert = (pixel) => from + (pixel - start) / factor;
  return position;
}

// Axes in `host`, with room for `right` pixels beside them. Gives the drawing and its scales.
function frame(host, xs, ys, kind, xLabel, right, whole) {
  const width = Math.max(host.clientWidth, 160),
    height = Math.max(host.clientHeight, 120);
  const unit = kind === "bytes" ? 1024 ** Math.floor(Math.log2(Math.max(ys[1], 1)) / 10) : 1;
  const yTicks = ticks(ys[0] / unit, ys[1] / unit, Math.max(2, Math.floor(height / 38)));
  yTicks.values = yTicks.values.map((value) => value * unit);
  const labels = yTicks.values.map((value) => tickLabel(kind, value, yTicks.step));
  const left = 10 + 6.4 * Math.max(...labels.map((label) => label.length), 2);
  const box = { left, right: width - right, top: 10, bottom: height - 34, width, height };
  const x = scale(xs[0], xs[1], box.left, box.right),
    y = scale(ys[0], ys[1], box.bottom, box.top);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  yTicks.values.forEach((value, index) => {
    drawing.append(svg("line", { class: "gridline", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    drawing.append(svg("text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, labels[index]));
  });
  const xTicks = ticks(xs[0], xs[1], Math.max(2, Math.floor((box.right - box.left) / 70)), whole ? 1 : 0);
  for (const value of xTicks.values) {
    drawing.append(
      svg(
        "text",
        { x: x(value), y: box.bottom + 16, "text-anchor": "middle" },
        tickLabel("number", value, xTicks.step),
      ),
    );
  }
  drawing.append(svg("text", { x: box.right, y: height - 3, "text-anchor": "end" }, xLabel));
  return { drawing, box, x, y };
}

const tip = {
  // Beside a point of the window, inside it.
  show(left, top, title, rows) {
    const box = byId("tip");
    box.replaceChildren(
      el("h4", {}, title),
      ...rows.map((row) => el("div", {}, row.mark, el("span", {}, row.name), el("b", {}, row.value))),
    );
    box.hidden = false;
    const width = box.offsetWidth,
      height = box.offsetHeight;
    box.style.left = Math.max(4, left + 16 + width > innerWidth ? left - 16 - width : left + 16) + "px";
    box.style.top = Math.max(4, Math.min(top + 12, innerHeight - height - 4)) + "px";
    byId("spoken").textContent = title + ": " + rows.map((row) => row.name + " " + row.value).join(", ");
  },
  hide() {
    byId("tip").hidden = true;
  },
};

// Arrow keys, Home, End and Escape move through the `count()` places of a chart.
function byKeyboard(figure, count, current, go, leave) {
  figure.addEventListener("keydown", (event) => {
    const at = current(),
      last = count() - 1;
    const next = { ArrowLeft: at < 0 ? last : at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") leave();
    else if (next !== undefined && last >= 0) {
      event.preventDefault();
      go(Math.max(0, Math.min(last, next)));
    }
  });
  figure.addEventListener("blur", leave);
}

// Position in sorted `values` of what is nearest to `value`; -1 if there are none.
function nearest(values, value) {
  let low = 0,
    high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - values[low - 1] < values[low] - value ? low - 1 : values.length ? low : -1;
}
