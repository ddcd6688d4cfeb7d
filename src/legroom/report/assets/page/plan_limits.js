// ---- 6. What is not planned ----

function drawLimits() {
  for (const [what, why, bytes] of data.not_planned) {
    byId("limits-list").append(
      el("li", { "data-what": what, "data-bytes": bytes }, el("b", {}, what), el("p", {}, sentence(why), bytes === null ? "" : ` (${formatBytes(bytes)})`)),
    );
  }
  if (!data.not_planned.length) byId("limits-list").append(el("li", { class: "muted", id: "all-planned" }, "Nothing: the whole step was captured."));
  drawFacts([
    ["Command", data.target || "–"],
    ["Device", data.device],
    ["Times", describeTimes()],
    ["Ways", data.ways.join(", ")],
    ["Rewritten by", (data.rewrites ?? []).join(", ") || "nothing"],
    ["Exactness", data.exactness],
    ["Graph", `${plural(data.num_operations, "operation")}, ${plural(data.num_tensors, "tensor")}, ${plural(data.num_pieces, "piece")}`],
    ["Captured in", `${data.capture_s.toFixed(1)} s`],
    ["Solved in", `${data.solve_s.toFixed(1)} s`],
    ...(chosen ? [["Candidate", chosen.preset], ["Order of operations", chosen.order]] : []),
    ["Torch", data.torch_version],
    ["Format", data.schema],
  ]);
}
