// ---- Light and dark ----

const theme = {
  key: "legroom-theme",
  system: window.matchMedia("(prefers-color-scheme: dark)"),

  // A page in a notebook or a locked-down browser may have no storage.
  stored() {
    try {
      return localStorage.getItem(this.key);
    } catch {
      return null;
    }
  },

  set(name, { keep = false } = {}) {
    document.documentElement.dataset.theme = name;
    const other = name === "dark" ? "light" : "dark";
    byId("theme-toggle").textContent = other === "dark" ? "Dark theme" : "Light theme";
    byId("theme-toggle").setAttribute("aria-label", `Switch to the ${other} theme`);
    if (keep) {
      try {
        localStorage.setItem(this.key, name);
      } catch {
        // Then the choice lasts as long as the page.
      }
    }
  },

  start() {
    this.set(this.stored() ?? (this.system.matches ? "dark" : "light"));
    byId("theme-toggle").addEventListener("click", () => {
      this.set(document.documentElement.dataset.theme === "dark" ? "light" : "dark", { keep: true });
      redrawCharts();
    });
    this.system.addEventListener("change", (event) => {
      if (this.stored()) return;
      this.set(event.matches ? "dark" : "light");
      redrawCharts();
    });
  },
};
