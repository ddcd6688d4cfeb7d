// ---- 1. The verdict ----

const endMs = Math.max(
  data.phases.length ? data.phases[data.phases.length - 1].end_ms : 0,
  data.timeline.length ? data.timeline[data.timeline.length - 1].ms : 0,
  data.profiled_ms,
  1e-3,
);

function drawVerdict() {
  nameWindow(data.command, "profile");
  if (!data.is_complete) {
    byId("badges").append(
      el("span", { class: "badge", id: "incomplete" }, "Cut short: the script failed or was interrupted within this step. The figures cover what ran until then."),
    );
  }
  const peak = el("p", {}, "The step peaks at ", el("strong", { id: "peak", "data-bytes": data.peak_bytes, "data-ms": data.peak_ms }, formatBytes(data.peak_bytes)), ` in ${data.peak_phase}, ${formatMs(data.peak_ms)} into ${formatMs(endMs)}`);
  if (data.peak_operation) peak.append(", while ", el("code", {}, data.peak_operation), " was at work");
  if (data.peak_file) peak.append(data.peak_operation ? " at " : ", at ", place(data.peak_file, data.peak_line));
  if (data.peak_module) peak.append(" in module ", el("code", {}, data.peak_module));
  peak.append(".");

  const holders = el("p");
  const largest = [...KINDS].sort((a, b) => (data.kinds[b.name] ?? 0) - (data.kinds[a.name] ?? 0))[0];
  const largestBytes = largest ? (data.kinds[largest.name] ?? 0) : 0;
  if (largestBytes > 0) {
    holders.append(
      el("strong", { id: "largest-kind", "data-kind": largest.name, "data-bytes": largestBytes }, `${formatShare(largestBytes, data.peak_bytes)} of it is ${largest.title}`),
      ", ", ...withCode(largest.meaning), ".",
    );
  }
  const line = [...data.lines].sort((a, b) => b.peak_bytes - a.peak_bytes)[0];
  if (line && line.peak_bytes > 0) {
    holders.append(
      " The line that holds most is ", place(line.file, line.line), " with ",
      el("strong", { id: "largest-line", "data-bytes": line.peak_bytes }, formatBytes(line.peak_bytes)),
      ` (${formatShare(line.peak_bytes, data.peak_bytes)}).`,
    );
  }
  byId("verdict-text").append(peak, holders);
  drawFigures();
}

function drawFigures() {
  const state = ["weights", "gradients", "optimizer_state"];
  const stateBytes = sum(state, (name) => data.kinds[name] ?? 0);
  const recorded = `${formatMs(data.profiled_ms)} while being recorded`;
  const before = data.resident_before_bytes;
  const figures = [
    ["peak", "Peak", formatBytes(data.peak_bytes), data.steps.length > 1 ? `highest of ${data.steps.length} recorded steps` : `in ${data.peak_phase}`, data.peak_bytes],
    ["stash", "Stash at its largest", formatBytes(data.largest_stash_bytes), "kept by forward for backward", data.largest_stash_bytes],
    ["state", "State at the peak", formatBytes(stateBytes), "weights, gradients, optimizer", stateBytes],
    ["opening", "Alive when the step began", formatBytes(data.opening_bytes), `${formatShare(data.opening_bytes, data.peak_bytes)} of the peak`, data.opening_bytes],
    ["step", "Step time", data.step_ms === null ? "–" : formatMs(data.step_ms), data.step_ms === null ? `not measured; ${recorded}` : recorded, null],
    ["resident", "Growth of the process", data.resident_peak_bytes === null ? "–" : formatBytes(data.resident_peak_bytes), data.resident_peak_bytes === null ? "not told by the system" : before === null ? "resident memory" : `over ${formatBytes(before)} before the first step`, data.resident_peak_bytes],
  ];
  drawFigureBoxes(figures.map(([name, title, value, note, bytes]) => [name, title, value, note, { "data-bytes": bytes, "data-ms": name === "step" ? data.step_ms : undefined }]));
}
