// ---- 1. The verdict of a plan ----

const chosen = data.budget_bytes === null ? null : data;
// "hold" is grey, the others take colours in the order of the registry.
const wayNames = [...new Set(["hold", ...data.ways, ...(chosen?.decisions ?? []).map((d) => d.way)])];
const wayVariable = (name) => `--way-${wayNames.indexOf(name) === 0 ? 0 : 1 + ((wayNames.indexOf(name) - 1) % 7)}`;
const wayColour = (name) => cssColour(wayVariable(name));
const waySwatch = (name) => el("i", { class: "swatch", style: `background:var(${wayVariable(name)})` });
const wayLabel = (name, text = name) => el("span", { class: "kind" }, waySwatch(name), text);
// The way, and where a tensor is held if that is not what the way says.
const formOf = (d) => (d.tier && d.tier !== "device" && d.tier !== d.way ? `${d.way} on ${d.tier}` : d.way);

const formatAdded = (ms) => (ms === 0 ? "0" : `${ms > 0 ? "+" : "−"}${formatMs(Math.abs(ms))}`);
const ofStep = (ms) => `${formatShare(ms, data.step_ms)} of a step`;

function describeTimes() {
  if (data.measured_share >= 0.9995) return "all times measured";
  if (data.measured_share <= 0) return "all times modelled, none measured";
  return `${formatShare(data.measured_share, 1)} of the time measured, the rest modelled`;
}

function drawVerdict() {
  nameWindow(data.target, "plan");
  if (chosen?.timed_out) {
    byId("badges").append(el("span", { class: "badge", id: "timed-out" },
      `Planning reached its time limit: this is the best plan so far, at most ${formatShare(chosen.gap, 1)} slower than the best there is.`));
  }
  byId("verdict-text").append(
    el("p", {}, "The plain step peaks at ", el("strong", { id: "plain-peak", "data-bytes": data.plain_peak_bytes }, formatBytes(data.plain_peak_bytes)),
      "; plans go down to ", el("strong", { id: "floor-peak", "data-bytes": data.floor_peak_bytes }, formatBytes(data.floor_peak_bytes)),
      `, ${formatShare(data.floor_peak_bytes, data.plain_peak_bytes)} of it.`),
  );
  if (chosen) {
    const totalMs = chosen.added_ms + (chosen.executor_ms ?? 0);
    const isPlain = totalMs === 0 && chosen.decisions.every((d) => d.way === "hold");
    byId("verdict-text").append(
      el("p", {}, "It fits into ", el("strong", { id: "budget", "data-bytes": chosen.budget_bytes }, formatBytes(chosen.budget_bytes)),
        ...(data.asked_budget ? [` (${data.asked_budget})`] : []),
        ...(isPlain ? [" as it is."] : [" at ", el("strong", { id: "added", "data-ms": totalMs }, formatAdded(totalMs)), ` (${ofStep(totalMs)}).`])),
    );
  } else {
    byId("verdict-text").append(el("p", { class: "quiet-line", id: "no-budget" }, "No budget was asked for: --budget 4GiB or --budget 50% shows what a plan does to which lines."));
  }
  drawPlanFigures();
}

function drawPlanFigures() {
  const plan = chosen;
  drawFigureBoxes([
    ["plain", "Plain peak", formatBytes(data.plain_peak_bytes), "the step as it is", { "data-bytes": data.plain_peak_bytes }],
    ["floor", "Lowest peak", formatBytes(data.floor_peak_bytes), "that any plan reaches", { "data-bytes": data.floor_peak_bytes }],
    ["state", "State", formatBytes(data.state_bytes), "weights, gradients, optimizer", { "data-bytes": data.state_bytes }],
    ["step", "Plain step", formatMs(data.step_ms), describeTimes(), { "data-ms": data.step_ms }],
    ["predicted", "Peak of the plan", plan ? formatBytes(plan.predicted_peak_bytes) : "–", plan ? `in ${plan.peak_phase || "the step"}` : "no budget given", { "data-bytes": plan?.predicted_peak_bytes }],
    ["gap", "Gap", plan ? formatShare(plan.gap, 1) : "–", plan ? `no plan adds less than ${formatMs(plan.bound_ms)}` : "no budget given", { "data-gap": plan?.gap }],
  ]);
}
