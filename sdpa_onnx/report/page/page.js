// Without scripts the page is complete: charts are drawn, tables are open, nothing is hidden.
const root = document.documentElement;

function startTheme() {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => button.setAttribute("aria-pressed", isDark());
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("sdpa-onnx-theme", root.dataset.theme); } catch { /* a page from disk may not store */ }
    show();
  });
  system.addEventListener("change", show);
  show();
}

// A link to evidence opens the folds that hold it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target?.closest("details");
  if (!fold) return;
  for (let one = fold; one; one = one.parentElement.closest("details")) one.open = true;
  fold.scrollIntoView();
  fold.querySelector("summary").focus({ preventScroll: true });
}

function startTable(table) {
  const rows = table.tBodies[0].rows.length;
  if (rows < 2 || DataTable.isDataTable(table)) return;
  const region = table.closest(".scroll");
  new DataTable(table, {
    autoWidth: false,
    order: [],
    paging: rows > 200,
    pageLength: 100,
    lengthChange: false,
    info: rows > 10,
    searching: rows > 10,
    layout: { topStart: rows > 10 ? "search" : null, topEnd: null, bottomStart: rows > 10 ? "info" : null, bottomEnd: rows > 200 ? "paging" : null },
    language: { search: "Filter", info: "_TOTAL_ rows", infoFiltered: "of _MAX_", infoEmpty: "0 rows", zeroRecords: "No row has this text." },
  });
  // The controls stay where they are, and only the rows scroll.
  const box = table.closest(".dt-layout-table");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", region.getAttribute("aria-label"));
  for (const name of ["tabindex", "role", "aria-label", "class"]) region.removeAttribute(name);
}

// A closed fold costs nothing until it is opened.
function startTables() {
  for (const table of document.querySelectorAll("table.data")) {
    const fold = table.closest("details");
    if (fold && !fold.open) fold.addEventListener("toggle", () => startTable(table), { once: true });
    else startTable(table);
  }
}

// Legends and panels that fit a width; what does not fit is put below.
function arranged(spec, columns, shrink, width) {
  const copy = structuredClone(spec);
  copy.columns = columns;
  copy.background = null;
  copy.padding = 2;
  for (const panel of copy.concat) panel.width = Math.max(110, panel.width - shrink);
  const most = width < 480 ? 1 : width < 700 ? 2 : 4;
  const visit = (node) => {
    if (!node || typeof node !== "object") return;
    if (width < 480 && node.axis?.labelLimit === 0) Object.assign(node.axis, { labelLimit: 150, labelFontSize: 10 }); // the tooltip has the rest
    if (node.legend?.columns) node.legend.columns = Math.min(node.legend.columns, most);
    Object.values(node).forEach(visit);
  };
  copy.concat.forEach((panel) => { const { data, ...rest } = panel; visit(rest); });
  return copy;
}

async function drawChart(figure, spec) {
  const width = figure.clientWidth;
  const holder = figure.querySelector(".drawn") ?? document.createElement("div");
  holder.className = "drawn scroll";
  holder.tabIndex = 0;
  holder.setAttribute("role", "region");
  holder.setAttribute("aria-label", `${figure.querySelector("h3").textContent}, chart`);
  figure.querySelector("figcaption").after(holder);
  figure.classList.add("drawing"); // takes the width that it will have
  let columns = spec.columns;
  let shrink = 0;
  for (let attempt = 0; attempt < 7; attempt += 1) {
    await vegaEmbed(holder, arranged(spec, columns, shrink, width), {
      actions: false, ast: true, renderer: "svg", defaultStyle: false,
      tooltip: { disableDefaultStyle: true },
    });
    const over = holder.querySelector("svg").getBoundingClientRect().width - width;
    if (over <= 0 || shrink > 400) break;
    if (columns > 1) columns = columns > 2 ? 2 : 1;
    else shrink += Math.ceil(over);
  }
  figure.querySelector(".fallback")?.remove();
  figure.classList.add("done");
}

// The drawn picture is shown until the chart is near the screen; then the interactive one takes its place.
function startCharts() {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const figures = [...document.querySelectorAll("figure.chart")];
  const draw = (figure) => drawChart(figure, specs[figure.dataset.chart]).catch((error) => {
    figure.querySelector(".drawn")?.remove(); // the picture stays
    throw error;
  });
  const near = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      near.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "400px" });
  figures.forEach((figure) => near.observe(figure));
  let last = innerWidth;
  let timer = 0;
  addEventListener("resize", () => {
    if (innerWidth === last) return; // a phone that hides its address bar
    last = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(() => figures.filter((figure) => figure.classList.contains("done")).forEach(draw), 200);
  });
}

// A cell that a spreadsheet would run as a formula is quoted.
function csvCell(value) {
  if (value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}

function csv(rows) {
  const flat = rows.map((row) => {
    const sizes = Object.entries(row.sizes ?? {}).map(([name, size]) => [`sizes.${name}`, size]);
    return Object.fromEntries([...Object.entries(row).filter(([name]) => name !== "sizes"), ...sizes]);
  });
  const heads = [...new Set(flat.flatMap(Object.keys))];
  return [heads.map(csvCell), ...flat.map((row) => heads.map((head) => csvCell(row[head])))].map((line) => line.join(",")).join("\r\n");
}

function startDownloads() {
  const rows = JSON.parse(document.getElementById("records").textContent);
  const box = document.getElementById("downloads");
  const kinds = [...new Set(rows.map((row) => row.kind))];
  const offer = (label, name, type, make) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([make()], { type }));
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    box.append(button);
  };
  if (rows.length) offer("All as JSON", "records.json", "application/json", () => JSON.stringify(rows, null, 2));
  for (const kind of kinds) {
    const some = rows.filter((row) => row.kind === kind);
    offer(`${kind} as CSV (${some.length})`, `${kind}.csv`, "text/csv", () => csv(some));
  }
}

startTheme();
startDownloads();
startTables();
addEventListener("hashchange", reveal);
reveal();
root.classList.add("ready");
// The script of the charts comes after this one.
addEventListener("DOMContentLoaded", () => { if (window.vegaEmbed) startCharts(); });
