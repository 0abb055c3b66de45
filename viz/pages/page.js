"use strict"; /*<![CDATA[*/
/* Charts switch their stack and clock, ranks open their tensors, streams zoom, tables sort, filters hide.
   Without this script everything stands on the page unfiltered, in issue order. */
const all = (root, selector) => [...root.querySelectorAll(selector)];
const show = (elements) => elements.forEach((element) => { element.hidden = false; });

/* ---- memory: which stack, on which clock; the same for all charts of the page ---- */
const view = { stack: "category", clock: "issue" };
const redraw = () => {
  for (const figure of all(document, "figure.memory")) {
    const plots = all(figure, ".plot");
    const chosen = plots.find((plot) => plot.dataset.view === `${view.stack} ${view.clock}`) || plots[0];
    plots.forEach((plot) => { plot.hidden = plot !== chosen; });
    const stack = chosen.dataset.view.split(" ")[0];
    all(figure, "[data-stack]").forEach((legend) => { legend.hidden = legend.dataset.stack !== stack; });
  }
};
for (const field of all(document, "[data-switch]")) {
  field.hidden = false;
  field.addEventListener("change", (event) => {
    view[field.dataset.switch] = event.target.value;
    all(document, `[data-switch="${field.dataset.switch}"] input`).forEach((input) => {
      input.checked = input.value === event.target.value;
    });
    redraw();
  });
}

/* ---- placement: a rank is chosen with the mouse, or with arrows and Enter ---- */
const mesh = (figure) => {
  const map = figure.querySelector(".map");
  const cells = all(map, ".cell");
  const axes = JSON.parse(map.dataset.axes);
  const told = figure.querySelector(".chosen");
  const inspector = figure.querySelector(".inspector");
  let chosen = null;
  const mark = () => {
    const field = figure.querySelector(".peers input:checked");
    const axis = field && axes.find((one) => one[0] === field.value);
    const at = (rank) => rank - (Math.floor(rank / axis[2]) % axis[1]) * axis[2];
    cells.forEach((cell) => {
      const together = chosen && axis && at(+cell.dataset.rank) === at(+chosen.dataset.rank);
      cell.classList.toggle("peer", Boolean(together));
      cell.classList.toggle("picked", cell === chosen);
      cell.setAttribute("aria-pressed", String(cell === chosen));
    });
  };
  const choose = (cell) => {
    chosen = cell;
    told.hidden = false;
    told.textContent = cell.getAttribute("aria-label");
    all(inspector, "[data-class]").forEach((part) => {
      part.hidden = part.dataset.class !== cell.dataset.class;
      const details = part.querySelector("details");
      if (details) details.open = !part.hidden;
    });
    mark();
  };
  cells.forEach((cell, n) => {
    cell.addEventListener("click", () => choose(cell));
    cell.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -n, End: cells.length - 1 - n }[event.key];
      if (event.key === "Enter" || event.key === " ") choose(cell);
      else if (step === undefined || !cells[n + step]) return;
      else {
        cell.setAttribute("tabindex", "-1");
        cells[n + step].setAttribute("tabindex", "0");
        cells[n + step].focus();
      }
      event.preventDefault();
    });
  });
  all(figure, ".peers").forEach((field) => {
    field.hidden = false;
    field.addEventListener("change", mark);
  });
};
all(document, "figure.placement").forEach(mesh);

/* ---- streams: the frame is made wider, and scrolls ---- */
for (const figure of all(document, "figure.timeline")) {
  const frame = figure.querySelector(".zoom");
  const inner = figure.querySelector(".wider");
  let zoom = 1;
  const scale = (wanted) => {
    const middle = (frame.scrollLeft + frame.clientWidth / 2) / (frame.clientWidth * zoom);
    zoom = Math.min(256, Math.max(1, wanted));
    inner.style.width = `${100 * zoom}%`;
    frame.scrollLeft = middle * frame.clientWidth * zoom - frame.clientWidth / 2;
  };
  const steps = { "zoom in": () => scale(zoom * 2), "zoom out": () => scale(zoom / 2), "whole step": () => scale(1) };
  show(all(figure, ".zooms"));
  all(figure, "[data-zoom]").forEach((button) => button.addEventListener("click", steps[button.dataset.zoom]));
  frame.addEventListener("keydown", (event) => {
    const name = { "+": "zoom in", "=": "zoom in", "-": "zoom out", 0: "whole step" }[event.key];
    if (name) { steps[name](); event.preventDefault(); }
  });
}

/* ---- batch ---- */
const batch = (section) => {
  const body = section.querySelector("tbody");
  const rows = all(body, "tr");
  const names = rows.map((row) => row.querySelector("th").textContent);
  const later = section.querySelector(".later");
  let most = 100;
  /* Of the rows that the filters leave, the first are in view; a table of thousands takes long to lay out. */
  const page = () => {
    let count = 0;
    for (const row of body.rows) {
      if (row.hidden || row.classList.contains("opened")) continue;
      row.classList.toggle("late", count >= most);
      count += 1;
    }
    later.hidden = count <= most;
    later.querySelector("output").textContent = `${Math.min(count, most)} of ${count.toLocaleString("en")} rows;`;
  };
  all(later, "button").forEach((button) => button.addEventListener("click", () => {
    most = +button.dataset.more ? most + +button.dataset.more : Infinity;
    page();
  }));
  const opened = JSON.parse(section.querySelector("#opened").textContent);
  const form = section.querySelector(".filters");

  const bars = (title, lines) => {
    const box = document.createElement("div");
    box.append(Object.assign(document.createElement("h4"), { textContent: title }));
    for (const [name, value, share] of lines) {
      const line = document.createElement("p");
      const bar = document.createElement("meter");
      bar.value = share;
      line.append(Object.assign(document.createElement("span"), { textContent: name }), bar,
        Object.assign(document.createElement("span"), { textContent: value }));
      box.append(line);
    }
    return box;
  };
  const more = (n) => {
    const found = opened[n];
    const parts = [Object.assign(document.createElement("h3"), { textContent: found.name })];
    if (found.problems) {
      const list = document.createElement("ul");
      list.className = "problems";
      found.problems.forEach((text) => list.append(Object.assign(document.createElement("li"), { textContent: text })));
      parts.push(list);
    }
    if (found.peak) parts.push(bars(`Highest in ${found.when}`, found.peak));
    if (found.sent) parts.push(bars("Leaves the rank in one step", found.sent));
    if (found.time) parts.push(bars("One step", found.time));
    return parts;
  };
  const toggle = (row) => {
    const button = row.querySelector(".opens");
    const is_open = row.nextElementSibling && row.nextElementSibling.classList.contains("opened");
    if (is_open) row.nextElementSibling.remove();
    else {
      const below = document.createElement("tr");
      const cell = document.createElement("td");
      const box = document.createElement("div");
      below.className = "opened";
      cell.colSpan = row.cells.length;
      box.append(...more(+row.dataset.n));
      cell.append(box);
      below.append(cell);
      row.after(below);
    }
    if (button) button.setAttribute("aria-expanded", String(!is_open));
  };
  body.addEventListener("click", (event) => {
    const button = event.target.closest(".opens");
    if (button) toggle(button.closest("tr"));
  });
  const close = () => {
    all(body, ".opened").forEach((row) => row.remove());
    all(body, ".opens").forEach((button) => button.setAttribute("aria-expanded", "false"));
  };

  const heads = all(section, "thead th");
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const falls = head.getAttribute("aria-sort") === "ascending";
    close();
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    const value = (row) => {
      const cell = row.cells[column];
      return cell.dataset.v === undefined ? cell.textContent : cell.dataset.v;
    };
    const numbers = new Intl.Collator("en", { numeric: true });
    const order = rows.slice().sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");
      const by = Number.isNaN(+a) || Number.isNaN(+b) ? numbers.compare(a, b) : a - b;
      return falls ? -by : by;
    });
    body.append(...order);
    page();
  }));

  /* The Pareto edge is of the points in view, so it is drawn anew. */
  const edges = () => all(section, ".scatter").forEach((plot) => {
    const points = all(plot, ".point").filter((point) => point.style.display !== "none");
    const path = plot.querySelector(".edge");
    const places = points.filter((point) => point.classList.contains("fits")).map((point) => [
      parseFloat(point.getAttribute("cx")) * 10, +point.getAttribute("cy"), point]);
    let lowest = -1;
    let text = "M0 0";
    points.forEach((point) => point.classList.remove("on-edge"));
    places.sort((a, b) => a[0] - b[0] || b[1] - a[1])
      .forEach(([x, y, point]) => {
        if (y <= lowest) return;
        text = lowest < 0 ? `M${x} 22V${y}` : `${text}H${x}V${y}`;
        lowest = y;
        point.classList.add("on-edge");
        point.parentNode.append(point); /* over all others */
      });
    path.setAttribute("d", lowest < 0 ? text : `${text}H1000`);
  });
  const points = all(section, ".point[data-row]");
  points.forEach((point) => point.addEventListener("click", () => {
    const row = rows[+point.dataset.row];
    if (row.querySelector(".opens")) { close(); toggle(row); }
    row.classList.remove("late");
    row.scrollIntoView({ block: "center" });
    rows.forEach((other) => other.classList.toggle("picked", other === row));
  }));

  section.addEventListener("pointerover", (event) => {
    const point = event.target.closest(".point[data-row]");
    if (!point || point.querySelector("title")) return;
    const title = document.createElementNS(point.namespaceURI, "title");
    const cells = [...rows[+point.dataset.row].cells].slice(1, 5).map((cell) => cell.textContent.trim());
    title.textContent = [names[+point.dataset.row], ...cells].join(", ");
    point.append(title);
  });

  page();
  if (!form) return;
  form.hidden = false;
  const fields = all(form, "fieldset");
  const filter = () => {
    const wanted = fields.map((field) => new Set(all(field, "input:checked").map((input) => input.value)));
    const hidden = rows.map((row) => !JSON.parse(row.dataset.f).every((value, n) => !wanted[n].size || wanted[n].has(value)));
    close();
    rows.forEach((row, n) => { row.hidden = hidden[n]; });
    points.forEach((point) => { point.style.display = hidden[+point.dataset.row] ? "none" : ""; });
    const left = hidden.filter((one) => !one).length;
    form.querySelector(".count").textContent = `${left.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
    page();
    edges();
  };
  form.addEventListener("change", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.querySelector(".reset").addEventListener("click", () => {
    all(form, "input").forEach((input) => { input.checked = false; });
    filter();
  });
  const total = rows.length.toLocaleString("en");
  form.querySelector(".count").textContent = `${total} of ${total} shown`;
};
all(document, ".batch").forEach(batch);

/* ---- a link to a report that is folded away opens it ---- */
const unfold = () => {
  const found = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  const folded = found && found.closest("details.whole");
  if (folded) { folded.open = true; found.scrollIntoView(); }
};
addEventListener("hashchange", unfold);
unfold();
/*]]>*/
