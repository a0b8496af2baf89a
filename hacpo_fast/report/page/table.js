// A table. `keys` has what its rows are sorted by, a number or a text (or neither) for every cell.
function table(columns, rows, { keys = [], words = false } = {}) {
  const among = (at, type) => keys.some((row) => typeof row[at] === type);
  const textual = (at) => !among(at, "number") && among(at, "string");
  const kind = (at) => (textual(at) ? "left" : null);
  const lines = rows.map((row) =>
    el(
      "tr",
      {},
      row.map((cell, at) => (at ? el("td", { class: kind(at) }, cell) : el("th", { scope: "row" }, cell))),
    ),
  );
  const body = el("tbody", {}, lines);
  const heads = columns.map((column, at) => {
    const head = el("th", { scope: "col", class: kind(at) }, keys.length > 1 ? null : column);
    if (keys.length > 1) head.append(el("button", { class: "sort", type: "button", onclick: () => sort(at) }, column));
    return head;
  });

  // First the highest numbers or the first words, then the other way round; what is missing comes last.
  function sort(at) {
    const direction = { ascending: -1, descending: 1 }[heads[at].getAttribute("aria-sort")] || (textual(at) ? 1 : -1);
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[at].setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    const order = keys.map((_, row) => row).sort((one, other) => inOrder(keys[one][at], keys[other][at], direction));
    body.append(...order.map((row) => lines[row]));
  }

  const box = el(
    "div",
    { class: words ? "scroll words" : "scroll", tabindex: 0, role: "region", "aria-label": "Table" },
    el("table", {}, el("thead", {}, el("tr", {}, heads)), body),
  );
  box.addEventListener("scroll", () => showWhetherMore(box));
  new ResizeObserver(() => showWhetherMore(box)).observe(box);
  return box;
}

// A table that goes on to the right fades there.
function showWhetherMore(box) {
  box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
}

function inOrder(one, other, direction) {
  const missing = (value) => (value === null || value === undefined ? 1 : 0);
  if (missing(one) || missing(other)) return missing(one) - missing(other);
  if (isNumber(one) && isNumber(other)) return direction * (one - other);
  return direction * String(one).localeCompare(String(other), undefined, { numeric: true });
}
