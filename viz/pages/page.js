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
const switched = (field) => {
  field.hidden = false;
  all(field, "input").forEach((input) => { input.checked = input.value === view[field.dataset.switch]; });
  field.addEventListener("change", (event) => {
    view[field.dataset.switch] = event.target.value;
    all(document, `[data-switch="${field.dataset.switch}"] input`).forEach((input) => {
      input.checked = input.value === event.target.value;
    });
    redraw();
  });
};

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

/* ---- streams: the frame is made wider, and scrolls ---- */
const streams = (figure) => {
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
};

/* ---- charts below an element, as soon as they are in the document ---- */
const enliven = (root) => {
  all(root, "[data-switch]").forEach(switched);
  if (root !== document) redraw();
  all(root, "figure.placement").forEach(mesh);
  all(root, "figure.timeline").forEach(streams);
};
enliven(document);

/* ---- search: charts are dragged over, which sets the filters; they are drawn from the filters, too ---- */
const scale = (data) => {
  const [name, low, high, is_log] = [data.split(" ")[0], ...data.split(" ").slice(-3).map(Number)];
  const value = (share) => { const at = low + share * (high - low); return is_log ? 10 ** at : at; };
  const share = (at) => ((is_log ? Math.log10(at) : at) - low) / (high - low);
  return { name, value, share };
};
const set_range = (form, axis, ends) => {
  const inputs = all(form, `[data-measure="${axis.name}"] input`);
  const digits = (value) => +value.toPrecision(6);
  inputs.forEach((input, n) => { input.value = ends ? digits(axis.value(ends[n])) : ""; });
};
const range_of = (form, axis) => all(form, `[data-measure="${axis.name}"] input`).map((input, n) => {
  return input.value === "" ? n : Math.min(1, Math.max(0, axis.share(+input.value)));
});
/* A function that shows in the chart what the filters leave of it; dragging sets them. */
const brush = (chart, form, filter) => {
  const is_axis = chart.classList.contains("axis");
  const frame = is_axis ? chart.querySelector(".drag") : chart;
  const line = chart.querySelector("line.base");
  const [top, bottom] = is_axis ? [+line.getAttribute("y1"), +line.getAttribute("y2")] : [22, +chart.querySelector(".edge").ownerSVGElement.getAttribute("height")];
  const taken = is_axis ? chart.querySelector(".taken") : chart.insertBefore(document.createElementNS(chart.namespaceURI, "rect"), chart.querySelector("svg"));
  const x = !is_axis && scale(chart.dataset.x);
  const y = is_axis ? chart.dataset.axis && scale(chart.dataset.axis) : scale(chart.dataset.y);
  const ticks = all(chart, "[data-value]");
  const boxes = () => all(form, "fieldset[data-key]").find((field) => field.dataset.key === chart.dataset.key);
  const place = (event) => {
    const box = is_axis ? chart.parentNode.getBoundingClientRect() : chart.getBoundingClientRect();
    const up = (bottom - (event.clientY - box.top)) / (bottom - top);
    return [(event.clientX - box.left) / box.width, up].map((share) => Math.min(1, Math.max(0, share)));
  };
  const take = (one, other) => {
    const ends = (n) => one && [Math.min(one[n], other[n]), Math.max(one[n], other[n])];
    if (x) set_range(form, x, ends(0));
    if (y) set_range(form, y, ends(1));
    else {
      const values = ticks.filter((tick) => one && +tick.dataset.at >= ends(1)[0] - 0.02 && +tick.dataset.at <= ends(1)[1] + 0.02).map((tick) => tick.dataset.value);
      all(boxes(), "input").forEach((input) => { input.checked = values.includes(input.value); });
    }
    filter();
  };
  const show_taken = ([left, right], [low, high]) => {
    const is_all = left <= 0 && right >= 1 && low <= 0 && high >= 1;
    taken.setAttribute("visibility", is_all ? "hidden" : "visible");
    taken.setAttribute("y", bottom - (bottom - top) * high);
    taken.setAttribute("height", Math.max(0, (bottom - top) * (high - low)));
    if (x) { taken.setAttribute("x", `${100 * left}%`); taken.setAttribute("width", `${100 * Math.max(0, right - left)}%`); }
  };
  let start = null;
  frame.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    start = place(event);
    event.preventDefault();
  });
  addEventListener("pointermove", (event) => {
    if (!start) return;
    const now = place(event);
    show_taken(x ? [Math.min(start[0], now[0]), Math.max(start[0], now[0])] : [0, 1], [Math.min(start[1], now[1]), Math.max(start[1], now[1])]);
  });
  addEventListener("pointerup", (event) => {
    if (!start) return;
    const [from, now] = [start, place(event)];
    start = null;
    const far = Math.abs(now[1] - from[1]) * (bottom - top) > 4 || (x && Math.abs(now[0] - from[0]) > 0.008);
    if (far) take(from, now);
    else if (!event.target.closest(".point")) take(null);
  });
  taken.classList.add("taken");
  chart.classList.add("brushed");
  show(all(chart.closest("figure"), ".drag-note"));
  const draw = () => {
    if (y) { show_taken(x ? range_of(form, x) : [0, 1], range_of(form, y)); return; }
    taken.setAttribute("visibility", "hidden");
    const chosen = all(boxes(), "input:checked").map((input) => input.value);
    ticks.forEach((tick) => tick.classList.toggle("chosen-value", chosen.includes(tick.dataset.value)));
  };
  draw();
  return draw;
};

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
  const told = JSON.parse(section.querySelector(".opened-rows").textContent);
  const opened = told.rows || told;
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
  const facts = (lines) => {
    const list = document.createElement("dl");
    for (const [name, value] of lines) {
      const line = document.createElement("div");
      line.append(Object.assign(document.createElement("dt"), { textContent: name }),
        Object.assign(document.createElement("dd"), { textContent: value }));
      list.append(line);
    }
    return list;
  };
  const commands = (n, settings) => [["its numbers", ""], ["its page, with memory, streams and ranks",
    ` -o layout-${n + 1}.html`]].map(([title, end]) => {
    const box = document.createElement("div");
    const head = Object.assign(document.createElement("h4"), { textContent: title });
    const text = `rankscope ${end ? "report" : "run"} ${told.path} ${settings}${end}`;
    const line = Object.assign(document.createElement("pre"), { textContent: text, tabIndex: 0 });
    const button = Object.assign(document.createElement("button"), { textContent: "copy", type: "button" });
    button.addEventListener("click", async () => {
      getSelection().selectAllChildren(line); /* where the clipboard is not allowed, the text is selected */
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "copied";
      } catch { button.textContent = document.execCommand("copy") ? "copied" : "selected"; }
    });
    box.className = "command";
    head.append(" ", button);
    box.append(head, line);
    return box;
  });
  const more = (n) => {
    const found = opened[n];
    const parts = [Object.assign(document.createElement("h3"), { textContent: found.name })];
    if (found.problems) {
      const list = document.createElement("ul");
      list.className = "problems";
      found.problems.forEach((text) => list.append(Object.assign(document.createElement("li"), { textContent: text })));
      parts.push(list);
    }
    if (found.facts) parts.push(facts(found.facts));
    if (found.command && told.path) parts.push(...commands(n, found.command.map((place) => told.arguments[place]).join(" ")));
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

  const heads = all(body.parentNode, "thead th");
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

  /* ---- search: the list beside a Pareto chart ---- */
  const names_of = (plot, on_edge) => {
    const list = plot.closest("figure").querySelector(".front-list");
    if (!list) return;
    const [across, upwards] = [plot.dataset.x, plot.dataset.y].map((data) => data.split(" ")[0]);
    list.replaceChildren(...on_edge.slice(0, 24).map((n) => {
      const item = document.createElement("li");
      const link = Object.assign(document.createElement("a"), { textContent: names[n], href: `#${rows[n].id}`, dir: "auto" });
      const value = (measure) => (opened[n].facts.find((fact) => fact[0] === told.words[measure]) || ["", ""])[1].split(" (")[0];
      item.dataset.row = n;
      item.append(link, Object.assign(document.createElement("span"), {
        textContent: ` ${value(upwards)}, ${value(across)}`, className: "note" }));
      return item;
    }));
    const left = on_edge.length - 24;
    if (left > 0) list.append(Object.assign(document.createElement("li"), { textContent: `and ${left} more`, className: "note" }));
  };

  const lists_ties = (plot) => plot.classList.contains("pareto");
  /* The Pareto edge is of the points in view, so it is drawn anew. `right`, `down`: 1 where less across is better, and
     where less upwards is. */
  const edges = () => all(section, ".scatter").forEach((plot) => {
    const [right, down] = [plot.dataset.x, plot.dataset.y].map((data) => data ? +data.split(" ")[1] : 1);
    const bottom = +plot.querySelector(".base:last-of-type, line.base").getAttribute("y1");
    const points = all(plot, ".point").filter((point) => point.style.display !== "none");
    const path = plot.querySelector(".edge");
    const places = points.filter((point) => point.classList.contains("fits")).map((point) => [
      parseFloat(point.getAttribute("cx")) * 10, +point.getAttribute("cy"), point]);
    const joined = [];
    all(plot, ".on-edge").forEach((point) => point.classList.remove("on-edge"));
    places.sort((a, b) => right * (a[0] - b[0]) || down * (b[1] - a[1]) || a[2].dataset.row - b[2].dataset.row);
    for (const place of places) {
      const last = joined[joined.length - 1];
      if (last && down * (place[1] - last[1]) <= 0 && !(lists_ties(plot) && place[0] === last[0] && place[1] === last[1])) continue;
      joined.push(place);
      place[2].classList.add("on-edge");
      place[2].parentNode.append(place[2]); /* over all others */
    }
    const steps = joined.map(([x, y], n) => n ? `H${x}V${y}` : `M${x} ${down > 0 ? 22 : bottom}V${y}`);
    path.setAttribute("d", joined.length ? `${steps.join("")}H${right > 0 ? 1000 : 0}` : "M0 0");
    names_of(plot, joined.map((place) => +place[2].dataset.row));
  });
  const points = all(section, ".point[data-row]");
  const go_to = (row) => {
    if (row.querySelector(".opens")) { close(); toggle(row); }
    row.hidden = false;
    row.classList.remove("late");
    row.scrollIntoView({ block: "center" });
    rows.forEach((other) => other.classList.toggle("picked", other === row));
  };
  points.forEach((point) => point.addEventListener("click", () => go_to(rows[+point.dataset.row])));
  const follow = () => {
    const row = rows.find((one) => one.id === decodeURIComponent(location.hash.slice(1)));
    if (row) go_to(row);
  };
  addEventListener("hashchange", follow);
  const told_of = section.querySelector(".told");
  const lines = new Map(all(section, ".thread-line").map((line) => [+line.dataset.row, line]));
  const lit = (n) => {
    all(section, ".lit").forEach((one) => one.classList.remove("lit"));
    points.filter((point) => +point.dataset.row === n).forEach((point) => point.classList.add("lit"));
    if (lines.has(n)) lines.get(n).classList.add("lit");
    told_of.textContent = `${names[n]}: ${opened[n].facts.slice(2, 7).map((fact) => fact[1].split(" (")[0]).join(", ")}`;
  };
  const light = (event) => {
    const found = event.target.closest(".point[data-row], .thread-line, li[data-row], tbody tr[data-n]");
    if (found && told_of) lit(+(found.dataset.row || found.dataset.n));
  };
  section.addEventListener("focusin", light);
  section.addEventListener("pointerover", (event) => {
    light(event);
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
  const fields = all(form, "fieldset:not(.range)");
  const ranges = all(form, ".range").map((field) => all(field, "input"));
  const texts = rows.map((row) => JSON.parse(row.dataset.f));
  const numbers = rows.map((row) => JSON.parse(row.dataset.m || "[]"));
  const filter = () => {
    const wanted = fields.map((field) => new Set(all(field, "input:checked").map((input) => input.value)));
    const bounds = ranges.map(([from, to]) => [from.value === "" ? -Infinity : +from.value, to.value === "" ? Infinity : +to.value]);
    const hidden = rows.map((row, at) => !(texts[at].every((value, n) => !wanted[n].size || wanted[n].has(value))
      && numbers[at].every((value, n) => value >= bounds[n][0] && value <= bounds[n][1])));
    close();
    rows.forEach((row, n) => {
      row.hidden = hidden[n];
      if (lines.has(n)) lines.get(n).classList.toggle("away", hidden[n]);
    });
    drawn.forEach((draw) => draw());
    points.forEach((point) => { point.style.display = hidden[+point.dataset.row] ? "none" : ""; });
    const left = hidden.filter((one) => !one).length;
    form.querySelector(".count").textContent = `${left.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
    page();
    edges();
  };
  const drawn = all(section, ".axis, .pareto").map((chart) => brush(chart, form, filter));
  form.addEventListener("change", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.querySelector(".reset").addEventListener("click", () => {
    all(form, "input").forEach((input) => { if (input.type === "checkbox") input.checked = false; else input.value = ""; });
    filter();
  });
  const total = rows.length.toLocaleString("en");
  form.querySelector(".count").textContent = `${total} of ${total} shown`;
  follow();
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
