// Responses to browse: by run, step, source, outcome and words.
const SHOWN_AT_ONCE = 60;

function samplesSection() {
  const total = DATA.samples.reduce((sum, each) => sum + each.items.length, 0);
  if (!total) return el("p", { class: "note" }, "No responses were written down (run.save_rollouts).");
  const choice = {
    run: DATA.samples.findIndex((each) => each.items.length),
    step: null,
    agent: "",
    outcome: "",
    words: "",
    shown: SHOWN_AT_ONCE,
  };
  const list = el("div", { class: "samples" }),
    count = el("p", { class: "note", "aria-live": "polite" }),
    more = el("div", { class: "more" });
  const slider = el("input", { type: "range", min: 0, step: 1, "aria-label": "Training step" }),
    output = el("output");
  const every = el("input", { type: "checkbox" });
  const source = select("Answered by", [["", "everyone"]], (value) => update({ agent: value }));
  const outcome = select(
    "Reward",
    [
      ["", "any"],
      ["right", "right"],
      ["partly", "in between"],
      ["wrong", "wrong"],
      ["error", "check failed"],
      ["cut", "cut off"],
    ],
    (value) => update({ outcome: value }),
  );
  const words = el("input", {
    type: "search",
    placeholder: "words in prompt or response",
    "aria-label": "Words in prompt or response",
    oninput: () => update({ words: words.value.toLowerCase() }),
  });
  let steps = [];

  function openRun(run) {
    choice.run = run;
    steps = [...new Set(DATA.samples[run].items.map((sample) => sample.step))].sort((a, b) => a - b);
    slider.max = Math.max(steps.length - 1, 0);
    slider.value = slider.max;
    const agents = [...new Set(DATA.samples[run].items.map((sample) => sample.agent))];
    source.control.replaceChildren(
      el("option", { value: "" }, "everyone"),
      ...agents.map((name) => el("option", { value: name }, name)),
    );
    update({ step: steps[steps.length - 1], agent: "" });
  }

  function update(values) {
    Object.assign(choice, { shown: SHOWN_AT_ONCE }, values);
    slider.disabled = every.checked;
    const at = steps[Number(slider.value)];
    output.textContent = every.checked ? "all steps" : `step ${at}`;
    slider.setAttribute("aria-valuetext", `step ${at}`);
    const { items, total: written } = DATA.samples[choice.run],
      most = RUNS[choice.run].reward_max;
    const fitting = items.filter(
      (sample) =>
        (every.checked || sample.step === at) &&
        (!choice.agent || sample.agent === choice.agent) &&
        (!choice.outcome ||
          (choice.outcome === "cut" ? sample.truncated : outcomeOf(sample, most) === choice.outcome)) &&
        (!choice.words ||
          (plainText(sample.prompt) + "\n" + plainText(sample.response)).toLowerCase().includes(choice.words)),
    );
    list.replaceChildren(...fitting.slice(0, choice.shown).map((sample) => sampleCard(sample, choice.run, most)));
    const kept = written > items.length ? `; the page holds ${items.length} of the ${written} that the run wrote` : "";
    count.textContent = `${fitting.length} of ${items.length} responses${kept}`;
    more.replaceChildren(
      ...(fitting.length > choice.shown
        ? [
            el(
              "button",
              { onclick: () => update({ shown: choice.shown + SHOWN_AT_ONCE }) },
              `Show more (${fitting.length - choice.shown} left)`,
            ),
          ]
        : []),
    );
  }

  slider.addEventListener("input", () => update({}));
  every.addEventListener("change", () => update({}));
  const runs = SEVERAL
    ? select(
        "Run",
        RUNS.map((run, index) => [index, run.label]),
        (value) => openRun(Number(value)),
      )
    : null;
  if (runs) runs.control.value = choice.run;
  openRun(choice.run);
  return el(
    "div",
    {},
    el(
      "div",
      { class: "filters" },
      runs?.label,
      el("label", {}, "Step", slider, output),
      el("label", {}, every, "all steps"),
      source.label,
      outcome.label,
      words,
    ),
    list,
    count,
    more,
  );
}

function select(name, options, chosen) {
  const control = el(
    "select",
    { onchange: () => chosen(control.value) },
    options.map(([value, text]) => el("option", { value }, text)),
  );
  return { control, label: el("label", {}, name, control) };
}

const plainText = (text) => (Array.isArray(text) ? text[0] : text);

function outcomeOf(sample, most) {
  if (sample.error !== null) return "error";
  if (!isNumber(sample.reward) || sample.reward <= 0) return "wrong";
  return sample.reward >= most ? "right" : "partly";
}

const OUTCOMES = {
  right: "\u2713 right",
  partly: "\u25d0 in between",
  wrong: "\u2715 wrong",
  error: "\u26a0 check failed",
};

function sampleCard(sample, run, most) {
  const outcome = outcomeOf(sample, most);
  const reward = isNumber(sample.reward) ? significant(sample.reward, 3) : DASH;
  const facts = [
    `reward ${reward}`,
    `step ${sample.step}`,
    sample.truncated ? "cut off" : null,
    sample.dropped ? "dropped: nobody learns from it" : null,
  ];
  const card = el(
    "article",
    { class: "card sample" },
    el(
      "header",
      {},
      el("b", {}, sample.agent),
      el("span", { class: `verdict ${outcome === "right" ? "right" : "wrong"}` }, OUTCOMES[outcome]),
      el("span", { class: "quiet" }, facts.filter(Boolean).join(" \u00b7 ")),
    ),
    textBlock("Prompt", sample.prompt, "prompt"),
    textBlock("Response", sample.response, "response"),
    sample.error === null ? null : textBlock("Error of the check", sample.error, "prompt"),
    advantages(sample, run),
  );
  const index = AGENTS.indexOf(sample.agent);
  card.style.setProperty("--c", index < 0 ? "var(--ink-3)" : `var(--agent-${index % COLOURS})`);
  return card;
}

function textBlock(name, text, kind) {
  const block = el(
    "div",
    {
      class: `text ${kind}`,
      tabindex: plainText(text).length > 600 ? 0 : null,
      role: "group",
      "aria-label": name,
      dir: "auto",
    },
    visible(plainText(text)),
  );
  if (!plainText(text)) block.append(el("span", { class: "left-out" }, "empty"));
  if (Array.isArray(text)) block.append(el("span", { class: "left-out" }, ` \u2026 ${text[1]} more characters`));
  return block;
}

// A bar to the right or left of 0 for each learner, up to an advantage of 3.
function advantages(sample, run) {
  const entries = Object.entries(sample.advantages);
  if (!entries.length) return null;
  const rows = entries.flatMap(([learner, value]) => {
    const middle = 50,
      reach = isNumber(value) ? Math.max(-1, Math.min(1, value / 3)) * 48 : 0;
    const bar = svg("rect", { x: Math.min(middle, middle + reach), width: Math.abs(reach), y: 2, height: 8, rx: 1 });
    const index = AGENTS.indexOf(learner);
    bar.style.fill = index < 0 ? "var(--ink-3)" : `var(--agent-${index % COLOURS})`;
    return [
      el("span", {}, learner === sample.agent ? `${learner} (own)` : learner),
      svg(
        "svg",
        { viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("line", { x1: 0, x2: 100, y1: 6, y2: 6, class: "gridline", "vector-effect": "non-scaling-stroke" }),
        svg("line", { x1: middle, x2: middle, y1: 0, y2: 12, class: "unity", "vector-effect": "non-scaling-stroke" }),
        bar,
      ),
      el("b", {}, isNumber(value) ? (value > 0 ? "+" : "") + signed(value.toFixed(2)) : DASH),
    ];
  });
  return el("div", {}, el("span", { class: "quiet" }, "advantage for"), el("div", { class: "advantages" }, rows));
}
