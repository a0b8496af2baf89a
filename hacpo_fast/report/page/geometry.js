// Ranges and outlines of curves over the common x axis.
const FEW_POINTS = 40;

function points(line) {
  const at = line.x.map((step) => place(line.run, line.agent, step));
  const trend =
    line.trend && state.trends
      ? line.trend[0].map((step, index) => [place(line.run, line.agent, step), line.trend[1][index]])
      : null;
  return { line, at, trend };
}

// The x range of all charts, so that the same place is the same step everywhere.
function commonRange() {
  let low = Infinity,
    high = -Infinity;
  for (const group of DATA.groups)
    for (const chart of group.charts)
      for (const line of chart.lines) {
        if (!shown(line)) continue;
        for (const step of [line.x[0], line.x[line.x.length - 1]]) {
          const at = place(line.run, line.agent, step);
          if (at !== null) [low, high] = [Math.min(low, at), Math.max(high, at)];
        }
      }
  if (low > high) return [0, 1];
  const margin = low === high ? 0.5 : 0;
  return [low - margin, high + margin];
}

function heightRange(chart, visibleLines, xs) {
  let low = Infinity,
    high = -Infinity;
  const take = (value) => {
    if (isNumber(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  };
  for (const { line, at } of visibleLines) {
    line.y.forEach((value, index) => {
      if (at[index] === null || at[index] < xs[0] || at[index] > xs[1] || !isNumber(value)) return;
      const spread = line.spread && isNumber(line.spread[index]) ? line.spread[index] : 0;
      take(value - spread);
      take(value + spread);
    });
  }
  if (low > high) return [0, 1];
  if (low === high) {
    const around = Math.abs(low) * 0.1 || 1;
    [low, high] = [low - around, high + around];
  }
  const wasPositive = low >= 0,
    share = chart.kind === "share" && low >= 0 && high <= 1;
  const margin = 0.07 * (high - low);
  [low, high] = [low - margin, high + margin];
  if (wasPositive && low < 0.35 * high) low = 0;
  return share ? [Math.max(low, 0), Math.min(high, 1)] : [low, high];
}

function path(at, values, x, y) {
  let text = "",
    open = false;
  values.forEach((value, index) => {
    const known = isNumber(value) && at[index] !== null;
    if (known) text += `${open ? "L" : "M"}${x(at[index]).toFixed(1)} ${y(value).toFixed(1)}`;
    open = known;
  });
  return text;
}

function band(line, at, x, y) {
  const upper = [],
    lower = [];
  let text = "";
  const close = () => {
    if (upper.length > 1) text += "M" + upper.concat(lower.reverse()).join("L") + "Z";
    upper.length = lower.length = 0;
  };
  line.y.forEach((value, index) => {
    const spread = line.spread[index];
    if (!isNumber(value) || !isNumber(spread) || at[index] === null) return close();
    upper.push(`${x(at[index]).toFixed(1)} ${y(value + spread).toFixed(1)}`);
    lower.push(`${x(at[index]).toFixed(1)} ${y(value - spread).toFixed(1)}`);
  });
  close();
  return text;
}

// How many later curves would hide this one: at nine of ten of its places they are no further away than it is wide.
function later(lines, index, x, y) {
  const places = ({ line, at }) =>
    line.y.map((value, point) => (isNumber(value) && at[point] !== null ? [x(at[point]), y(value)] : null));
  const own = places(lines[index]);
  const near = (one, other) => (one && other ? Math.hypot(one[0] - other[0], one[1] - other[1]) < 1.8 : one === other);
  const hides = (others) =>
    others.length === own.length && own.filter((one, point) => near(one, others[point])).length >= 0.9 * own.length;
  return lines.slice(index + 1).map(places).filter(hides).length;
}

// Dots where there are few points, and where a point has no neighbour that a line could lead to.
function dots(line, at, x, y) {
  const few = line.y.filter(isNumber).length <= FEW_POINTS;
  let text = "";
  line.y.forEach((value, index) => {
    const lonely = !isNumber(line.y[index - 1]) && !isNumber(line.y[index + 1]);
    if (isNumber(value) && at[index] !== null && (few || lonely))
      text += `M${x(at[index]).toFixed(1)} ${y(value).toFixed(1)}h0`;
  });
  return text;
}

// Heights moved as little as needed to be `gap` apart, in their order, between two limits.
function apart(heights, gap, top, bottom) {
  const order = heights.map((_, index) => index).sort((a, b) => heights[a] - heights[b]);
  const moved = heights.slice();
  for (let round = 0; round < 60; round += 1) {
    for (let index = 1; index < order.length; index += 1) {
      const lack = gap - (moved[order[index]] - moved[order[index - 1]]);
      if (lack > 0) {
        moved[order[index]] += lack / 2;
        moved[order[index - 1]] -= lack / 2;
      }
    }
    for (const index of order) moved[index] = Math.max(top, Math.min(bottom, moved[index]));
  }
  return moved;
}
