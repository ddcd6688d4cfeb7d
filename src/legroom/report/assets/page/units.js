// ---- Units: the same rules as legroom/units.py ----

function formatBytes(count) {
  const sign = count < 0 ? "-" : "";
  let value = Math.abs(count);
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1023.95 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  if (unit === 0) return `${sign}${Math.trunc(value)} B`;
  return `${sign}${value.toFixed(value < 9.995 ? 2 : 1)} ${units[unit]}`;
}

function formatMs(ms) {
  if (ms >= 60000) return `${(ms / 60000).toFixed(1)} min`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms >= 100) return `${ms.toFixed(0)} ms`;
  if (ms >= 1) return `${ms.toFixed(1)} ms`;
  return `${(ms * 1000).toFixed(0)} µs`;
}

function formatShare(part, whole) {
  if (!(whole > 0)) return "–";
  const share = (100 * part) / whole;
  return share >= 9.95 ? `${share.toFixed(0)} %` : `${share.toFixed(1)} %`;
}

const formatCount = (count) => count.toLocaleString("en-US");
const formatShape = (shape) => (shape.length ? shape.join("×") : "scalar");
const plural = (count, noun) => `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
const sum = (items, value) => items.reduce((total, item) => total + value(item), 0);
const byId = (id) => document.getElementById(id);
