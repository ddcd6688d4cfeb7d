// ---- 2. The books at the peak ----

function drawBooks() {
  const bar = byId("kinds-bar");
  const body = byId("kinds-table").tBodies[0];
  const total = sum(KINDS, (kind) => data.kinds[kind.name] ?? 0);
  const described = [];
  for (const kind of KINDS) {
    const bytes = data.kinds[kind.name] ?? 0;
    const focus = (isOn) => () => {
      bar.classList.toggle("has-focus", isOn && bytes > 0);
      for (const part of bar.children) part.classList.toggle("is-focus", isOn && part.dataset.kind === kind.name);
    };
    if (bytes > 0 && total > 0) {
      described.push(`${kind.title} ${formatShare(bytes, total)}`);
      bar.append(
        el("div", {
          "data-kind": kind.name, "data-bytes": bytes,
          style: `flex:${bytes} 0 0;background:${kindVariable(kind.name)};color:${inkOn(kindColour(kind.name))}`,
          title: `${kind.title}: ${formatBytes(bytes)}, ${formatShare(bytes, total)}`,
          onmouseenter: focus(true), onmouseleave: focus(false),
        }),
      );
    }
    body.append(
      el("tr", { "data-kind": kind.name, "data-bytes": bytes, class: bytes ? undefined : "is-zero", onmouseenter: focus(true), onmouseleave: focus(false) },
        el("td", {}, kindLabel(kind.name)),
        el("td", { class: bytes ? "muted" : undefined }, ...withCode(kind.meaning)),
        el("td", { class: "num" }, bytes ? formatBytes(bytes) : "0"),
        el("td", { class: "num" }, bytes ? formatShare(bytes, total) : "–")),
    );
  }
  bar.setAttribute("aria-label", `Memory at the peak: ${described.join(", ")}`);
  const difference = data.peak_bytes - total;
  byId("kinds-table").tFoot.append(
    el("tr", { class: "total", id: "kinds-total", "data-bytes": total },
      el("td", {}, "Sum of the kinds"),
      el("td", { class: "muted" }, difference === 0
        ? `equals the measured peak: ${formatCount(data.peak_bytes)} bytes`
        : `differs from the measured peak by ${formatBytes(difference)}`),
      el("td", { class: "num" }, formatBytes(total)),
      el("td", { class: "num" }, formatShare(total, data.peak_bytes))),
  );
}

// The fullest label that fits into each part of the bar.
function labelBar() {
  const whole = sum([...byId("kinds-bar").children], (part) => Number(part.dataset.bytes));
  for (const part of byId("kinds-bar").children) {
    const bytes = Number(part.dataset.bytes);
    const share = formatShare(bytes, whole);
    const title = TITLES.get(part.dataset.kind);
    for (const text of [`${title}, ${formatBytes(bytes)}, ${share}`, `${title}, ${share}`, share, ""]) {
      const label = el("span", {}, text);
      part.replaceChildren(label);
      if (label.offsetWidth <= part.clientWidth - 12) break;
    }
  }
}
