// Numbers as people read them.
const MINUS = "\u2212",
  TIMES = "\u00d7",
  DASH = "\u2013",
  NARROW = "\u202f",
  PLUS_MINUS = "\u00b1";
const SUPERSCRIPT = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";

const signed = (text) => text.replace("-", MINUS);
const isNumber = (value) => typeof value === "number" && isFinite(value);

function scientific(value, digits) {
  const [mantissa, exponent] = value.toExponential(digits).split("e");
  const power = String(Math.abs(Number(exponent)))
    .split("")
    .map((digit) => SUPERSCRIPT[digit])
    .join("");
  return signed(mantissa) + TIMES + "10" + (Number(exponent) < 0 ? "\u207b" : "") + power;
}

function significant(value, digits) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return scientific(value, digits - 2);
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return signed(value.toFixed(decimals));
}

function scaled(value, units, base) {
  let index = 0;
  while (Math.abs(value) >= base && index < units.length - 1) {
    value /= base;
    index += 1;
  }
  const decimals =
    index === 0 && Number.isInteger(value) ? 0 : Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  return signed(value.toFixed(decimals)) + units[index];
}

const FORMATS = {
  share: (value) => signed((100 * value).toFixed(1)) + NARROW + "%",
  count: (value) => scaled(value, ["", NARROW + "k", NARROW + "M", NARROW + "G"], 1000),
  bytes: (value) =>
    scaled(
      value,
      ["B", "KiB", "MiB", "GiB", "TiB"].map((unit) => NARROW + unit),
      1024,
    ),
  seconds: (value) => significant(value, 3) + NARROW + "s",
  number: (value) => significant(value, 4),
};

// A value with the digits that its kind deserves; ratios near 1 get more.
function written(kind, value) {
  if (!isNumber(value)) return DASH;
  if (kind === "number" && Number.isInteger(value) && Math.abs(value) < 1e6) return signed(String(value));
  if (kind === "number" && value !== 1 && Math.abs(value - 1) < 0.01) return value.toFixed(5);
  return FORMATS[kind](value);
}

// A label of an axis whose ticks are `step` apart.
function tickLabel(kind, value, step) {
  if (kind === "share") {
    const decimals = Math.max(0, -Math.floor(Math.log10(100 * step) + 1e-9));
    return signed((100 * value).toFixed(decimals)) + NARROW + "%";
  }
  if (kind === "bytes")
    return value === 0 ? "0" : FORMATS.bytes(value).replace(/\.0+(?=\D|$)|(\.\d*?)0+(?=\D|$)/, "$1");
  if (Math.abs(value) < step / 1e6) return "0";
  if (step >= 1000)
    return scaled(value, ["", NARROW + "k", NARROW + "M", NARROW + "G"], 1000).replace(/\.0+(?=\D|$)/, "");
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  if (decimals > 4 && Math.abs(value) < 0.1)
    return scientific(value, Math.max(0, Math.floor(Math.log10(Math.abs(value)) + 1e-9) + decimals));
  return signed(value.toFixed(decimals));
}

function duration(seconds) {
  if (!isNumber(seconds)) return DASH;
  if (seconds < 100) return significant(seconds, 2) + NARROW + "s";
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) return minutes + NARROW + "min";
  const hours = Math.floor(minutes / 60);
  return hours + NARROW + "h " + (minutes % 60) + NARROW + "min";
}

const counted = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;
