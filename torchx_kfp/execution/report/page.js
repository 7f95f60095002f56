"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // The page shows everything without this script; the controls are hidden until it runs.
  // Highlight what belongs to the element that is pointed at or has the focus.
  const light = (panel, belonging) => {
    for (const [start, end] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
      panel.addEventListener(start, (event) => belonging(event).forEach((it) => it.classList.add("lit")));
      panel.addEventListener(end, (event) => belonging(event).forEach((it) => it.classList.remove("lit")));
    }
  };

  // Highlight a box's lines, which are hard to tell apart in a large graph.
  const graph = document.querySelector(".graph");
  if (graph) {
    const lines = all("[data-from]", graph);
    light(graph, (event) => {
      const path = event.target.closest(".node")?.dataset.path;
      return path ? lines.filter(({ dataset }) => dataset.from === path || dataset.to === path) : [];
    });
  }
  // Highlight a trial in all figures of its search, and in the table.
  for (const search of all(".search")) {
    light(search, (event) => {
      const link = event.target.closest("a") || event.target.closest("tr")?.querySelector("a");
      const same = link ? all("a", search).filter((it) => it.getAttribute("href") === link.getAttribute("href")) : [];
      return same.flatMap((it) => [it, it.closest("tr")]).filter(Boolean);
    });
  }

  // The target of a link may be folded.
  const open = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target.scrollIntoView({ block: target.tagName === "TR" ? "center" : "start" });
  };
  addEventListener("hashchange", open);
  // A second click on the same link works too.
  addEventListener("click", (event) => {
    const link = event.target.closest("a");
    const to = link && link.getAttribute("href");
    if (to && to === location.hash) open();
  });
  open();

  const find = document.getElementById("find");
  const found = document.getElementById("found");
  const chips = all(".chips button");
  const sections = all(".stage").map((element) => ({
    element,
    path: element.dataset.path,
    items: all("[data-state]", element).map((item) => ({ element: item, state: item.dataset.state, text: null })),
  }));
  const others = all(".node, .row[data-path]");
  // Ignore text about other stages: reads, and reasons why a stage was not run.
  const textOf = ({ element }) => [element.dataset.name, ...all(".find, td:not(.more)", element).map((it) => it.textContent)]
    .join(" ").toLowerCase();
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const states = new Set(chips.filter((chip) => chip.ariaPressed === "true").map((chip) => chip.dataset.state));
    const active = words.length > 0 || states.size > 0;
    const shown = new Set();
    let count = 0, total = 0;
    for (const section of sections) {
      let here = 0;
      for (const item of section.items) {
        const matches = (!states.size || states.has(item.state))
          && words.every((word) => (item.text ??= textOf(item)).includes(word));
        item.element.hidden = !matches && section.items.length > 1;
        here += matches;
      }
      total += section.items.length;
      count += here;
      section.element.hidden = here === 0;
      if (here) shown.add(section.path);
    }
    for (const element of others) {
      const matches = !active || shown.has(element.dataset.path);
      if (element.classList.contains("row")) element.hidden = !matches;
      else element.classList.toggle("dim", !matches);
    }
    found.textContent = active ? `${count.toLocaleString("en")} of ${total.toLocaleString("en")}` : "";
    const nothing = document.getElementById("nothing");
    nothing.hidden = !active || count > 0;
  };
  if (sections.length) {
    document.getElementById("filter").hidden = false;
    let timer = 0;
    find.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(filter, 80); });
    for (const chip of chips) {
      chip.addEventListener("click", () => { chip.ariaPressed = String(chip.ariaPressed !== "true"); filter(); });
    }
    addEventListener("keydown", (event) => {
      if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) {
        event.preventDefault();
        find.focus();
      }
    });
  }

  // Nothing can be opened on paper, so open everything that is short enough.
  addEventListener("beforeprint", () => {
    const folded = all("details.failure:not([open]), .stage:not([open])");
    if (sections.length > 60) return;
    for (const element of folded) {
      if (all("[data-state]", element).length > 60) continue;
      element.open = true;
      element.dataset.printed = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const element of all("[data-printed]")) { element.open = false; delete element.dataset.printed; }
  });
})();
