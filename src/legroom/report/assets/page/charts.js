// ---- Charts: what all of them share ----

// The binary unit in which an amount of that size is read.
function byteUnit(bytes) {
  const exponent = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, bytes)) / 10)));
  return { factor: 1024 ** exponent, name: ["B", "KiB", "MiB", "GiB", "TiB"][exponent] };
}

const chartFont = () => getComputedStyle(document.body).fontFamily;

const tooltipStyle = () => ({
  confine: true, transitionDuration: 0, backgroundColor: cssColour("--surface"), borderColor: cssColour("--line-strong"), padding: [8, 12],
});

// An axis for bytes, up to a little above the largest.
function byteAxis(largest, unit) {
  return {
    type: "value", min: 0, max: (Math.max(largest, 1) / unit.factor) * 1.12, splitNumber: 4, axisLine: { show: false }, axisTick: { show: false },
    axisLabel: { color: cssColour("--muted"), showMaxLabel: false, formatter: (value) => (value ? `${Number(value.toFixed(2))} ${unit.name}` : "0") },
    splitLine: { lineStyle: { color: cssColour("--line") } },
  };
}

const tipRow = (title, value, name = "row") => el("div", { class: name }, title, el("span", { class: "amount" }, value));
