"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const plots = new Map(); // id of a chart -> the models of its figure

  // An element with a class, its text or its children.
  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
  }

  // The policy of the page allows no style attribute in its HTML, so a script sets the lengths of bars.
  for (const styled of document.querySelectorAll("[data-style]")) styled.style.cssText = styled.dataset.style;

  // Colours. The switch wins over the system's choice, and is remembered where the browser allows it.
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = (() => {
    try { return localStorage.getItem("lexforge-theme"); } catch { return null; }
  })();
  if (remembered) root.dataset.theme = remembered;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  // Bokeh draws on a canvas, which does not inherit the colours of the page.
  function colour(models) {
    const style = getComputedStyle(root);
    const [ink, soft, line] = ["--ink", "--soft", "--line"].map((name) => style.getPropertyValue(name).trim());
    for (const model of models) {
      if (model.type.endsWith("Axis")) {
        model.axis_label_text_color = soft;
        model.major_label_text_color = soft;
      } else if (model.type === "Grid") {
        model.grid_line_color = line;
      } else if (model.type === "Scatter" && model.line_width > 1) {
        model.line_color = ink;
      }
    }
  }
  function applyTheme() {
    button.setAttribute("aria-pressed", String(isDark()));
    for (const models of plots.values()) colour(models);
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("lexforge-theme", root.dataset.theme); } catch { /* opened from the disk */ }
    applyTheme();
  });
  system.addEventListener("change", applyTheme);

  // Charts.
  async function draw(id, item) {
    const views = await Bokeh.embed.embed_item(item, document.getElementById(id));
    const models = [...views].flatMap((view) => [...view.model.references()]); // the figure and its tooltips
    plots.set(id, models);
    colour(models);
    const points = models.find((model) => model.type === "GlyphRenderer" && model.name === "queries");
    if (points) {
      const source = points.data_source;
      source.selected.properties.indices.change.connect(() => {
        const [index] = source.selected.indices;
        const place = index === undefined ? -1 : source.data.place[index];
        if (place >= 0) show(place, true);
      });
    }
  }
  for (const toggle of document.querySelectorAll(".legend button")) {
    toggle.addEventListener("click", () => {
      const visible = toggle.getAttribute("aria-pressed") !== "true";
      toggle.setAttribute("aria-pressed", String(visible));
      for (const model of plots.get(toggle.dataset.chart) ?? []) {
        if (model.type === "GlyphRenderer" && model.name === toggle.dataset.series) model.visible = visible;
      }
    });
  }

  // Explorer.
  const list = document.getElementById("query-list");
  const detail = document.getElementById("detail");

  function bars(pairs, most) {
    const rows = pairs.map(([term, weight]) => {
      const bar = make("i");
      bar.style.width = `${(100 * weight) / most}%`;
      return make("li", "", make("code", "", term), bar, make("span", "", weight.toFixed(3)));
    });
    return make("ul", "terms-list", ...rows);
  }

  function ownAndExpansion(query) {
    const most = Math.max(...query.own.concat(query.expansion).map((pair) => pair[1]), 1e-9);
    const own = make("div", "", make("h4", "", "Its own terms"), bars(query.own, most));
    if (!query.own.length) own.append(make("p", "note", "None of its own tokens is active."));
    if (query.lost.length) own.append(make("p", "note", `Own tokens without a weight: ${query.lost.join(", ")}`));
    const expansion = make("div", "", make("h4", "", "Terms of the expansion"), bars(query.expansion, most));
    const more = query.expansion_terms - query.expansion.length;
    if (!query.expansion.length) expansion.append(make("p", "note", "None: the query is not expanded."));
    if (more > 0) expansion.append(make("p", "note", `and ${more} weaker ones`));
    return make("div", "terms", own, expansion);
  }

  function head(rank, id, grade, score) {
    const parts = [make("span", "rank", `${rank}.`), make("code", "", id)];
    if (grade > 0) parts.push(make("span", "badge", grade > 1 ? `✓ relevant (grade ${grade})` : "✓ relevant"));
    if (score !== undefined) parts.push(make("span", "score", score.toFixed(3)));
    return make("span", "head", ...parts);
  }

  function hits(query, texts) {
    const items = query.hits.map((hit, place) => {
      const summary = make("summary", "", head(place + 1, hit.id, hit.grade, hit.score), make("p", "", texts[hit.id]));
      const entry = make("details", "", summary);
      if (hit.terms) {
        const most = Math.max(...hit.terms.map((pair) => pair[1]), 1e-9);
        entry.append(make("div", "", make("h4", "", "Terms that matched, with what each adds to the score"), bars(hit.terms, most)));
      }
      entry.open = place === 0;
      return make("li", "", entry);
    });
    return items.length ? make("ol", "hits", ...items) : make("p", "", "No document shares a term with the query.");
  }

  function others(query, texts) {
    const columns = Object.keys(data.systems).filter((system) => Array.isArray(query[system])).map((system) => {
      const items = query[system].map(([id, grade]) => {
        const mark = grade > 0 ? [" ", make("span", "badge", "✓ relevant")] : [];
        return make("li", "", make("code", "", id), ...mark, make("p", "", texts[id]));
      });
      const found = items.length ? make("ol", "", ...items) : make("p", "note", "Nothing was found.");
      return make("div", "", make("h4", "", `Found by ${data.systems[system] === "BM25" ? "BM25" : "the model before training"}`), found);
    });
    return make("div", "others", ...columns);
  }

  function describe(run, id, text) {
    const query = run.searches[id];
    const part = make("div", "");
    if (data.runs.length > 1) part.append(make("h4", "", run.name));
    if (query?.text !== text) {
      part.append(make("p", "note", "This run has no such query in its sample."));
      return part;
    }
    const values = Object.entries(query.values).map(([system, value]) => `${data.systems[system]} ${value.toFixed(3)}`);
    const relevant = `${query.relevant} relevant document${query.relevant === 1 ? "" : "s"}`;
    const measured = values.length ? `${data.measure}: ${values.join(", ")}. ` : "";
    part.append(make("p", "note", `Query ${id}. ${measured}${relevant}.`));
    if (query.own) part.append(ownAndExpansion(query));
    part.append(make("h4", "", "Found after training"), hits(query, run.texts), others(query, run.texts));
    return part;
  }

  function show(place, jump) {
    const [id, text] = data.queries[place];
    detail.replaceChildren(make("h3", "", text), ...data.runs.map((run) => describe(run, id, text)));
    for (const pick of list.querySelectorAll("button")) {
      pick.setAttribute("aria-pressed", String(Number(pick.dataset.query) === place));
    }
    const current = list.querySelector('[aria-pressed="true"]');
    list.scrollTop = current.offsetTop - list.offsetTop - list.clientHeight / 3;
    if (jump) {
      document.getElementById("explorer").scrollIntoView();
      detail.focus({ preventScroll: true });
    }
  }

  for (const pick of document.querySelectorAll("[data-query]")) {
    const inList = list.contains(pick);
    pick.addEventListener("click", () => show(Number(pick.dataset.query), !inList));
  }
  const filter = document.getElementById("filter");
  filter?.addEventListener("input", () => {
    const wanted = filter.value.trim().toLowerCase();
    let shown = 0;
    for (const entry of list.children) {
      const place = Number(entry.firstElementChild.dataset.query);
      entry.hidden = !`${data.queries[place].join(" ")} ${entry.textContent}`.toLowerCase().includes(wanted);
      shown += entry.hidden ? 0 : 1;
    }
    document.getElementById("filter-count").textContent = wanted ? `${shown} found` : "";
  });
  if (detail) show(0, false);

  // Commands.
  for (const copy of document.querySelectorAll("[data-copy]")) {
    copy.addEventListener("click", async () => {
      const text = copy.parentElement.querySelector("pre").textContent;
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(copy.parentElement.querySelector("pre"));
        copy.textContent = "Selected";
      }
    });
  }

  applyTheme();
  Promise.all(Object.entries(data.charts).map(([id, item]) => draw(id, item))).then(() => {
    root.dataset.ready = "true";
  });
})();
