// ---- 4. Findings ----

function drawFindings() {
  const host = byId("findings-list");
  if (!data.findings.length) {
    host.append(el("p", { class: "empty", id: "no-findings" }, "None: no known hidden consumer is in this step."));
    return;
  }
  for (const finding of data.findings) {
    const where = el("span", { class: "muted" });
    if (finding.file) where.append(place(finding.file, finding.line, { full: true }));
    if (finding.module) where.append(finding.file ? " in " : "in ", el("code", {}, finding.module));
    const known = finding.tensors.filter((id) => data.tensors.some((t) => t.id === id));
    host.append(
      el("article", { class: "finding", "data-finding": finding.name, "data-bytes": finding.bytes },
        el("header", {},
          el("h3", {}, sentence(finding.title).replace(/\.$/, "")),
          el("span", { class: "amount" }, formatBytes(finding.bytes), el("span", {}, `  ${formatShare(finding.bytes, data.peak_bytes)} of the peak`))),
        el("p", { class: "detail" }, sentence(finding.detail)),
        el("p", { class: "remedy" }, el("span", { class: "label" }, "What would remove it"), sentence(finding.remedy)),
        el("footer", {}, where,
          known.length ? el("button", { type: "button", class: "quiet", onclick: () => tensors.showIds(known, finding.title) }, known.length === 1 ? "Show its tensor" : `Show its ${known.length} tensors`) : null)),
    );
  }
}
