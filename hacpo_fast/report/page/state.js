// What is shown, and in which colours: one state for the whole page.
const DATA = JSON.parse(byId("data").textContent);
const RUNS = DATA.runs,
  AGENTS = DATA.agents,
  SEVERAL = RUNS.length > 1;
const COLOURS = 6,
  DASHES = ["none", "7 4", "2 4", "10 4 2 4", "4 2", "1 3"];

const state = {
  hiddenAgents: new Set(),
  hiddenRuns: new Set(),
  axis: "step",
  colour: SEVERAL && AGENTS.length === 1 ? "run" : "agent",
  trends: true,
  zoom: null,
};
const charts = [];

function change(values) {
  Object.assign(state, values);
  charts.forEach((chart) => chart.draw());
}

function shown(line) {
  return !state.hiddenRuns.has(line.run) && !state.hiddenAgents.has(line.agent);
}

// Colour variable of a curve; numbers of a run as a whole are grey.
function colourOf(run, agent) {
  const index = state.colour === "run" ? run : AGENTS.indexOf(agent);
  return index < 0 ? "var(--ink-2)" : `var(--agent-${index % COLOURS})`;
}

// Runs differ in dashes while colours are agents', and the other way round. Where colours begin anew, dashes go on.
function dashOf(run, agent) {
  const which = Math.max(AGENTS.indexOf(agent), 0);
  const index = state.colour === "run" ? which + rounds(run) : run + rounds(which);
  return DASHES[index % DASHES.length];
}

const rounds = (index) => Math.floor(index / COLOURS);

function nameOf(run, agent) {
  return [SEVERAL ? RUNS[run].label : null, agent || (SEVERAL ? null : "run")].filter(Boolean).join(" \u00b7 ");
}

// The whole name of a run, to be read by pointing at its label.
function wholeName(run) {
  return SEVERAL && RUNS[run].name !== RUNS[run].label ? RUNS[run].name : null;
}

// A piece of the curve as a legend shows it.
function swatch(run, agent) {
  return strokeOf(colourOf(run, agent), dashOf(run, agent));
}

function strokeOf(colour, dashes) {
  const line = svg("line", { x1: 1, x2: 19, y1: 6, y2: 6, "stroke-width": 3, "stroke-linecap": "round" });
  line.style.stroke = colour;
  line.style.strokeDasharray = dashes;
  return svg("svg", { class: "swatch", width: 20, height: 12, "aria-hidden": "true" }, line);
}

const AXES = { step: "training step", updates: "optimiser updates", hours: "hours of computing" };

// Where a step of a run stands on the chosen x axis.
function place(run, agent, step) {
  if (state.axis === "step") return step;
  const facts = RUNS[run];
  const known = state.axis === "hours" ? facts.hours : facts.updates[agent] || Object.values(facts.updates)[0];
  if (!known || !known[0].length) return null;
  return interpolated(known[0], known[1], step);
}

function interpolated(steps, values, step) {
  let low = -1,
    high = steps.length; // steps[low] <= step < steps[high]; before the first step everything is 0 at 0
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle;
    else high = middle;
  }
  if (high === steps.length) return values[low];
  const [fromStep, from] = low < 0 ? [0, 0] : [steps[low], values[low]];
  return from + ((values[high] - from) * (step - fromStep)) / Math.max(steps[high] - fromStep, 1);
}
