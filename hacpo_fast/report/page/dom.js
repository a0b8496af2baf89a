// Elements. Text only ever becomes text nodes: what models wrote is never read as HTML.
function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const byId = (id) => document.getElementById(id);

// Characters that cannot be seen, or that reorder or hide others; line breaks and tabs are wanted.
const SIGNS = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u;

// Text of models with such characters made visible.
function visible(text) {
  const parts = [];
  let plain = "";
  for (const character of text) {
    if (SIGNS.test(character) && character !== "\n" && character !== "\t") {
      const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      if (plain) parts.push(plain);
      plain = "";
      parts.push(el("span", { class: "sign" }, "U+" + code));
    } else plain += character;
  }
  if (plain) parts.push(plain);
  return parts;
}
