// ---- 9. Limits ----

function drawLimits() {
  for (const limit of data.limits) {
    byId("limits-list").append(
      el("li", { "data-limit": limit.name, "data-bytes": limit.bytes },
        el("b", {}, limit.name), el("p", {}, sentence(limit.text), limit.bytes ? ` (${formatBytes(limit.bytes)})` : "")),
    );
  }
  if (!data.limits.length) byId("limits-list").append(el("li", { class: "muted" }, "Nothing is known to be missing."));
  const percent = (share) => formatShare(share, 1);
  const cost = data.step_ms ? `${formatMs(data.profiled_ms)} recorded, ${formatMs(data.step_ms)} not recorded (${(data.profiled_ms / data.step_ms).toFixed(2)} times)` : `${formatMs(data.profiled_ms)} recorded; no step ran without recording`;
  const facts = [
    ["Charged to a line or module", `${percent(data.coverage.peak_share)} of the peak, ${percent(data.coverage.stash_share)} of the stash, ${percent(data.coverage.time_share)} of the time`],
    ["Step time", cost],
    ["Recorded steps", data.steps.map((step) => `${formatBytes(step.peak_bytes)} in ${formatMs(step.profiled_ms)}`).join("; ") || "–"],
    ["Command", data.command || "–"],
    ["Device", data.device],
    ["Recorded on", data.created.replace("T", " ").replace("+00:00", " UTC")],
    ["Versions", `legroom ${data.legroom_version}, torch ${data.torch_version}, Python ${data.python_version}`],
    ["Format", data.schema],
  ];
  drawFacts(facts);
}
