
"use strict";
(() => {
  const [form, field, main, status, served] = ["form", "q", "main", "status", "served"].map((id) => document.getElementById(id));
  const [query, queryTerms, list, more] = ["query", "query-terms", "hits", "more"].map((id) => document.getElementById(id));
  const PAGE = 10; // hits that are asked for at first, and further ones per click
  const SHOWN = 10; // terms that are shown at once, where there are several more
  const FEW = 3; // so many more are shown, too
  const SLOW_MS = 200; // an answer that comes sooner is not announced before
  const mostHits = Number(document.body.dataset.maxK);
  const number = new Intl.NumberFormat("en");
  let asking = new AbortController(); // the search under way

  // An element with a class, its text or its children. Text is added as text, whatever stands in it.
  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
  }

  // Text of a document, which may run from right to left.
  function foreign(tag, className, ...children) {
    const element = make(tag, className, ...children);
    element.dir = "auto";
    return element;
  }

  // A tokenizer marks the start of a word with one of these characters.
  const spelled = (term) => (term.length > 1 ? term.replace(/^[▁Ġ]/, "") : term);

  function chips(terms) {
    const items = terms.map(({ term, score, own }) => {
      const kind = make("b", "unseen", own ? "in the query: " : "added: ");
      const name = foreign("bdi", "", spelled(term));
      return make("li", own ? "own" : "", kind, own ? "" : "+ ", name, make("span", "", score.toFixed(2)));
    });
    return make("ul", "chips", ...items);
  }

  function allChips(terms) {
    if (terms.length <= SHOWN + FEW) return [chips(terms)];
    const rest = terms.slice(SHOWN);
    const summary = make("summary", "", `${rest.length} weaker terms`);
    return [chips(terms.slice(0, SHOWN)), make("details", "", summary, chips(rest))];
  }

  // The snippet with its marked words. The places count code points, and a string of JavaScript other units.
  function marked(snippet, marks) {
    const characters = Array.from(snippet);
    const part = (start, end) => characters.slice(start, end).join("");
    const pieces = [];
    let done = 0;
    for (const [start, end, own] of marks) {
      pieces.push(part(done, start), make("mark", own ? "own" : "", part(start, end)));
      done = end;
    }
    return foreign("p", "snippet", ...pieces, part(done));
  }

  function hit({ rank, id, document: whole, score, title, snippet, marks, terms }) {
    const rankText = make("span", "rank", `${rank}. `);
    const heading = make("h3", "", rankText, foreign("bdi", "", title || whole || id));
    const head = make("div", "head", heading, make("span", "score", `score ${score.toFixed(3)}`));
    const item = make("li", "", head);
    if (title || id !== whole) item.append(foreign("p", "id", id));
    if (snippet) item.append(marked(snippet, marks));
    item.append(...(terms.length ? allChips(terms) : []));
    return item;
  }

  function say(text, isBad) {
    status.className = isBad ? "bad" : "";
    status.textContent = text;
  }

  function show(answer) {
    const { hits, documents } = answer;
    const terms = answer.query_terms;
    query.hidden = !terms.length;
    queryTerms.replaceChildren(...allChips(terms));
    list.replaceChildren(...hits.map(hit));
    more.hidden = hits.length < wantedHits() || hits.length >= mostHits;
    const all = `${number.format(documents)} ${documents === 1 ? "passage" : "passages"}`;
    const time = `${answer.seconds.toFixed(3)} s`;
    if (hits.length) say(`The best ${hits.length} of ${all}, in ${time}.`);
    else say(`Nothing was found in ${all}: none shares a term with the query. Try other words.`);
  }

  function clear() {
    query.hidden = more.hidden = true;
    list.replaceChildren();
  }

  // The address of the page says what is shown, so reloading, going back and sharing it work.
  const wanted = () => new URLSearchParams(location.search).get("q")?.trim() ?? "";
  function wantedHits() {
    const hits = Number(new URLSearchParams(location.search).get("k"));
    return Number.isInteger(hits) && hits >= 1 ? Math.min(hits, mostHits) : Math.min(PAGE, mostHits);
  }
  function address(text, hits) {
    const parameters = new URLSearchParams(text ? { q: text } : {});
    if (hits > PAGE) parameters.set("k", hits);
    return text ? `?${parameters}` : location.pathname;
  }

  async function search() {
    asking.abort();
    asking = new AbortController();
    const { signal } = asking;
    const text = wanted();
    document.title = text ? `${text} · lexforge` : "Search · lexforge";
    main.setAttribute("aria-busy", String(Boolean(text)));
    if (!text) {
      clear();
      say("Type a question or a few words. The results show which terms made them match. The key / leads back to this field.");
      return;
    }
    const slow = setTimeout(() => say("Searching…"), SLOW_MS);
    try {
      const parameters = new URLSearchParams({ q: text, k: wantedHits() });
      const answer = await fetch(`search?${parameters}`, { signal, cache: "no-store" });
      const content = await answer.json();
      if (signal.aborted) return;
      if (answer.ok) {
        show(content);
      } else {
        clear();
        say(`There is no answer: ${content.error}.`, true);
      }
    } catch {
      if (signal.aborted) return; // another search has begun
      clear();
      say("The server does not answer. Is it still running?", true);
    } finally {
      clearTimeout(slow);
      if (!signal.aborted) main.setAttribute("aria-busy", "false");
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (text !== wanted()) history.pushState(null, "", address(text, PAGE));
    search();
  });
  more.addEventListener("click", async () => {
    const before = list.children.length;
    history.replaceState(null, "", address(wanted(), Math.min(wantedHits() + PAGE, mostHits)));
    await search();
    const next = list.children[before]; // a reader of the keyboard goes on at the first new hit
    if (next) {
      next.tabIndex = -1;
      next.focus();
    }
  });
  addEventListener("popstate", () => {
    field.value = wanted();
    search();
  });
  addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    field.focus();
    field.select();
  });

  field.value = wanted();
  if (!field.value) field.focus(); // with a query, a telephone would cover the results with its keyboard
  search();
  fetch("health", { cache: "no-store" }).then((answer) => answer.json()).then((health) => {
    served.replaceChildren(`${number.format(health.documents)} ${health.documents === 1 ? "passage" : "passages"} · `, foreign("bdi", "", health.model));
  }).catch(() => { served.textContent = ""; }); // the search says that the server does not answer
})();
