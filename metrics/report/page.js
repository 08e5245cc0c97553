"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const one = (selector, inside = document) => inside.querySelector(selector);
  const make = (tag, text = "", attributes = {}) => {
    const element = document.createElement(tag);
    element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  document.documentElement.classList.add("js");

  // What the address after # says: recipe=NAME, or metric=NAME&loss=NUMBER.
  const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
  const address = () => Object.fromEntries(location.hash.slice(1).split("&").filter(Boolean).map((part) => {
    const at = part.indexOf("=");
    return [part.slice(0, at), decoded(part.slice(at + 1))];
  }));
  const show = (fragment) => { try { history.replaceState(null, "", "#" + fragment); } catch { /* inside a frame */ } };

  // A recipe that is chosen by a link, a point of a chart or the address is marked everywhere.
  const marked = (recipe) => {
    for (const element of all("[data-recipe]")) element.classList.toggle("chosen", element.dataset.recipe === recipe);
  };
  const follow = () => {
    const { recipe } = address();
    marked(recipe);
    const row = recipe && all("tr[data-recipe]").find((line) => line.dataset.recipe === recipe);
    if (row) { row.scrollIntoView({ block: "center" }); one("a", row)?.focus({ preventScroll: true }); }
  };
  addEventListener("hashchange", follow);
  for (const point of all("g[data-recipe]")) {
    point.addEventListener("click", () => { location.hash = "recipe=" + encodeURIComponent(point.dataset.recipe); });
  }

  // Tables sort by a click on a head: numbers by their value, texts by the alphabet.
  const key = (row, column) => row.cells[column]?.dataset.sort ?? row.cells[column]?.textContent ?? "";
  const order = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // what is missing comes last
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const button = make("button", "", { type: "button", class: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const falling = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          const [x, y] = [key(a, column), key(b, column)];
          return falling && x !== "" && y !== "" ? order(y, x) : order(x, y);
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  // The slider: the fastest recipe that loses no more than the reader allows.
  const choice = one("#choice");
  if (choice) {
    const [metric, loss, exact, together] = ["#metric", "#loss", "#loss-number", "#together"].map((id) => one(id, choice));
    const rows = all("tr[data-worst]");
    const number = (text) => (text === "" || text === undefined ? NaN : Number(text));
    const axis = () => (one("#by-speedup")?.checked ? "speedup" : "tokens");
    const pick = () => {
      const option = metric.selectedOptions[0];
      const limit = number(exact.value) / number(option.dataset.factor);
      const worst = (row) => number(row.dataset[together.checked ? "worstTogether" : "worst"].split(" ")[metric.selectedIndex]);
      const speed = (row) => number(row.dataset[axis()]); // NaN without a speed-up
      const allowed = rows.filter((row) => worst(row) <= limit + 1e-12 && !Number.isNaN(speed(row)));
      const best = allowed.sort((a, b) => speed(b) - speed(a))[0];
      return [best, worst, option];
    };
    const text = (selector, value) => { one(selector, choice).textContent = value; };
    const update = () => {
      const [best, worst, option] = pick();
      const unit = option.dataset.unit ? " " + option.dataset.unit : "";
      text("#unit", option.dataset.unit);
      loss.setAttribute("aria-valuetext", `${exact.value}${unit} of ${option.value}`);
      if (!best) { text("#chosen", "none"); text("#gain", ""); text("#why", "No recipe qualifies."); return; }
      const link = one("#chosen", choice);
      link.textContent = best.dataset.recipe;
      link.setAttribute("href", "#recipe=" + encodeURIComponent(best.dataset.recipe));
      text("#gain", axis() === "speedup" ? best.dataset.speedupText : best.dataset.tokensText);
      const at = worst(best) * number(option.dataset.factor);
      text("#why", at === 0 ? "It keeps the model's distribution, or no loss lies within its interval."
        : `At worst it loses ${Number(at.toPrecision(3))}${unit} of ${option.value}.`);
      for (const point of all("g[data-recipe]")) point.classList.toggle("picked", point.dataset.recipe === best.dataset.recipe);
    };
    const rescale = (value) => {
      const { top, step, start } = metric.selectedOptions[0].dataset;
      for (const input of [loss, exact]) {
        Object.assign(input, { min: 0, max: top, step: input === loss ? step : "any" });
        input.value = value ?? start;
      }
    };
    const remember = () => show(`metric=${encodeURIComponent(metric.value)}&loss=${encodeURIComponent(exact.value)}`);
    metric.addEventListener("change", () => { rescale(); update(); remember(); });
    loss.addEventListener("input", () => { exact.value = loss.value; update(); remember(); });
    exact.addEventListener("input", () => { loss.value = exact.value; update(); remember(); });
    together.addEventListener("change", update);
    for (const radio of all("input[name=axis]")) radio.addEventListener("change", update);
    const given = address();
    if (given.metric && all("option", metric).some((option) => option.value === given.metric)) metric.value = given.metric;
    rescale(given.loss);
    choice.hidden = false;
    update();
  }

  // Samples at full size beside another recipe's, with a map of their difference; arrow keys walk over the table.
  const viewer = one("#viewer");
  if (viewer) {
    const [left, right, map] = [one("#left", viewer), one("#right", viewer), one("#map", viewer)];
    const against = one("#against", viewer);
    let place = null; // table, row, column
    const buttons = (row) => [...row.cells].map((cell) => one("button.zoom img", cell));
    const difference = () => {
      const canvas = map;
      const [w, h] = [right.naturalWidth, right.naturalHeight];
      const same = w > 0 && w === left.naturalWidth && h === left.naturalHeight;
      canvas.parentElement.hidden = !same || left.src === right.src;
      if (canvas.parentElement.hidden) return;
      Object.assign(canvas, { width: w, height: h, className: right.className });
      const context = canvas.getContext("2d", { willReadFrequently: true });
      const pixels = [left, right].map((image) => {
        context.drawImage(image, 0, 0);
        return context.getImageData(0, 0, w, h);
      });
      const [a, b] = pixels.map((found) => found.data);
      let sum = 0;
      for (let i = 0; i < a.length; i += 4) {
        const d = (Math.abs(a[i] - b[i]) + Math.abs(a[i + 1] - b[i + 1]) + Math.abs(a[i + 2] - b[i + 2])) / 3;
        sum += d;
        // Dark where they agree, yellow where they differ most.
        [b[i], b[i + 1], b[i + 2], b[i + 3]] = [Math.min(255, 2 * d), d, 60 * (1 - d / 255), 255];
      }
      context.putImageData(pixels[1], 0, 0);
      one("#mean", viewer).textContent = `difference, ${(sum / (a.length / 4) / 2.55).toFixed(1)} % on average`;
    };
    const put = (image, source, caption) => {
      image.src = source.src;
      image.alt = source.alt;
      image.className = source.className;
      one("figcaption", image.closest("figure")).textContent = caption;
    };
    const display = () => {
      const row = place.table.tBodies[0].rows[place.row];
      const images = buttons(row);
      const heads = all("thead th", place.table).map((head) => head.textContent);
      const base = Number(against.value);
      if (!images[place.column]) return;
      put(right, images[place.column], heads[place.column]);
      put(left, images[base] ?? images[place.column], heads[base]);
      one("#prompt", viewer).textContent = row.cells[0].textContent;
      Promise.all([left.decode(), right.decode()]).then(difference, () => { map.parentElement.hidden = true; });
    };
    const move = (rows, columns) => {
      const lines = place.table.tBodies[0].rows;
      const next = { ...place, row: place.row + rows, column: place.column + columns };
      if (next.row < 0 || next.row >= lines.length || !buttons(lines[next.row])[next.column]) return;
      place = next;
      display();
    };
    for (const button of all("button.zoom")) {
      button.addEventListener("click", () => {
        const cell = button.closest("td");
        const table = button.closest("table");
        const changed = place?.table !== table;
        place = { table, row: cell.parentElement.sectionRowIndex, column: cell.cellIndex };
        if (changed) {
          const heads = all("thead th", table).slice(1);
          against.replaceChildren(...heads.map((head, i) => make("option", head.textContent, { value: i + 1 })));
        }
        display();
        viewer.showModal();
        one("#next", viewer).focus();
      });
    }
    against.addEventListener("change", display);
    viewer.addEventListener("keydown", (event) => {
      if (event.target === against) return;
      const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (steps) { event.preventDefault(); move(...steps); }
    });
    one("#previous", viewer).addEventListener("click", () => move(0, -1));
    one("#next", viewer).addEventListener("click", () => move(0, 1));
    one("#close", viewer).addEventListener("click", () => viewer.close());
    viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
  }

  follow();
})();
