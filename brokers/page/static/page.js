// Brings a view up to date, draws the charts, asks before something is done. Without it everything can be read.
"use strict";

const JSON_HEADERS = {"Content-Type": "application/json"};
const $ = (selector, of = document) => of.querySelector(selector);
const all = (selector, of = document) => [...of.querySelectorAll(selector)];
const svg = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

function tell(text, bad = false) {
  const told = $("#told");
  told.textContent = text;
  told.classList.toggle("bad", bad);
}

// What a view leaves for the next one; without storage nothing is.
function keep(name, text) {
  try { sessionStorage.setItem(name, text); } catch { /* none */ }
}

function take(name) {
  try {
    const text = sessionStorage.getItem(name);
    sessionStorage.removeItem(name);
    return text || "";
  } catch {
    return "";
  }
}

async function problemOf(answer) {
  try {
    const found = await answer.json();
    return found.detail || found.error || `the server answers ${answer.status}`;
  } catch {
    return `the server answers ${answer.status}`;
  }
}

// Logging in and out, and the theme.

function logIn() {
  // A link from elsewhere brings no cookie along; this page's own request does.
  const address = new URL(location.href);
  address.searchParams.delete("token"); // it was refused
  fetch(address, {headers: {Accept: "text/html"}}).then((answer) => {
    if (answer.ok) location.replace(address);
  }, () => {});
  for (const form of all("[data-credentials]")) {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const button = $("button", form);
      button.disabled = true;
      tell("");
      try {
        const body = JSON.stringify(Object.fromEntries(new FormData(form)));
        const answer = await fetch("/login", {method: "POST", headers: JSON_HEADERS, body});
        if (answer.ok) {
          location.replace(address);
        } else tell(await problemOf(answer), true);
      } catch {
        tell("The server does not answer.", true);
      } finally {
        button.disabled = false;
      }
    });
  }
}

function onTop(event) {
  const button = event.target.closest("button");
  if (!button) return;
  if ("logout" in button.dataset) {
    fetch("/logout", {method: "POST", headers: JSON_HEADERS, body: "{}"}).finally(() => location.assign("/"));
  } else if ("themeSwitch" in button.dataset) {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this view alone */ }
  }
}

// What is on the view is asked for again, and only what has changed is touched: focus, selection and scrolling stay.

function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const one = [...old.childNodes], two = [...fresh.childNodes];
  const alike = one.length === two.length
    && one.every((node, at) => node.nodeType === two[at].nodeType && node.nodeName === two[at].nodeName);
  if (!alike) {
    old.replaceChildren(...two);
    return;
  }
  one.forEach((node, at) => {
    const next = two[at];
    if (node.nodeType !== Node.ELEMENT_NODE) {
      if (node.nodeValue !== next.nodeValue) node.nodeValue = next.nodeValue;
      return;
    }
    for (const {name} of [...node.attributes]) {
      const opened = name === "open" && node.nodeName === "DETAILS"; // by who looks at it
      if (!opened && !next.hasAttribute(name)) node.removeAttribute(name);
    }
    for (const {name, value} of [...next.attributes]) {
      if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    }
    morph(node, next);
  });
}

let failures = 0;

async function refresh() {
  try {
    const answer = await fetch(location.href, {headers: {Accept: "text/html"}});
    if (answer.status === 401) return location.reload();
    if (answer.status === 404) tell("This is not there any more.", true);
    if (!answer.ok) throw new Error(`${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const parts = all("[data-live]", fresh);
    all("[data-live]").forEach((old, at) => parts[at] && morph(old, parts[at]));
    document.body.dataset.poll = fresh.body.dataset.poll;
    failures = 0;
  } catch {
    failures += 1;
  }
  const state = $("[data-state]");
  if (state && failures) {
    state.textContent = "No answer";
    state.className = "bad";
  }
  const sign = $("#fresh");
  if (sign) {
    sign.hidden = false;
    sign.classList.toggle("late", failures > 0);
    sign.textContent = failures
      ? "no answer: these figures are old"
      : `every ${Math.round(Number(document.body.dataset.poll))} s`;
  }
}

async function keepFresh() {
  for (;;) {
    await new Promise((done) => setTimeout(done, 1000 * Number(document.body.dataset.poll)));
    if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, {once: true}));
    if ($("[data-live]") && !$("dialog[open]")) await refresh();
    await charts.refresh();
  }
}

// The charts: lines over time, drawn from the API.

const WIDTH = 300, HEIGHT = 84, BEATS = 180, BEATS_LEAST = 24;
const charts = {
  times: [],
  lines: {},
  owners: [],

  async refresh() {
    const place = $("[data-charts]");
    if (!place) return;
    const wanted = new URL(place.dataset.charts, location.href);
    if (this.times.length) wanted.searchParams.set("after", this.times.at(-1));
    const answer = await fetch(wanted).catch(() => null);
    if (!answer || !answer.ok) return;
    const more = await answer.json();
    this.seconds = more.seconds;
    this.add(more);
    for (const figure of all("figure", place)) this.draw(figure);
  },

  add(more) {
    const had = this.times.length, count = more.times.length;
    this.times = [...this.times, ...more.times].slice(-BEATS);
    for (const name of new Set([...Object.keys(this.lines), ...Object.keys(more.lines)])) {
      const of = (this.lines[name] ||= {});
      for (const owner of new Set([...Object.keys(of), ...Object.keys(more.lines[name] || {})])) {
        const before = of[owner] || Array(had).fill(null);
        of[owner] = [...before, ...((more.lines[name] || {})[owner] || Array(count).fill(null))].slice(-BEATS);
        if (owner && !this.owners.includes(owner)) this.owners = [...this.owners, owner].sort();
      }
    }
  },

  beats() {
    return Math.min(Math.max(this.times.length, BEATS_LEAST), BEATS);
  },

  draw(figure) {
    const {line, unit} = figure.dataset;
    const of = Object.entries(this.lines[line] || {});
    const scale = unit === "%" ? 100 : 1;
    const peak = Math.max(0, ...of.flatMap(([, values]) => values.map((value) => (value || 0) * scale)));
    const top = niceAbove(peak, unit);
    const beats = this.beats();
    const x = (at) => WIDTH * (beats - this.times.length + at) / (beats - 1);
    const y = (value) => HEIGHT - 1 - (HEIGHT - 3) * (value * scale) / top;
    const picture = $("svg", figure);
    picture.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    const drawn = [0.5, 1].map((part) => svg("line", {
      class: "grid", x1: 0, x2: WIDTH, y1: y(top * part / scale), y2: y(top * part / scale),
    }));
    for (const [owner, values] of of) {
      let path = "", pen = "M";
      values.forEach((value, at) => {
        if (value === null) { pen = "M"; return; }
        path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = "L";
      });
      drawn.push(svg("path", {class: `s${this.colour(owner)}`, d: path, "data-owner": owner}));
    }
    const at = figure.cursorAt ?? this.times.length - 1;
    if (figure.cursorAt !== undefined) drawn.push(svg("line", {class: "cursor", x1: x(at), x2: x(at), y1: 0, y2: HEIGHT}));
    picture.replaceChildren(...drawn);
    this.caption(figure, of, at, top);
  },

  caption(figure, of, at, top) {
    const {unit} = figure.dataset;
    const texts = [];
    const legend = of.map(([owner, values]) => {
      const item = document.createElement("li");
      const text = amount(values[at], unit);
      if (owner) {
        const swatch = svg("svg", {viewBox: "0 0 14 8", "aria-hidden": "true"});
        swatch.append(svg("line", {class: `s${this.colour(owner)}`, x1: 0, x2: 14, y1: 4, y2: 4}));
        item.append(swatch, `${owner} `);
      }
      const figureText = document.createElement("b");
      figureText.textContent = text;
      item.append(figureText);
      texts.push(`${owner} ${text}`.trim());
      return item;
    });
    $(".legend", figure).replaceChildren(...legend);
    let topValue = $(".top-value", figure);
    if (!topValue) {
      topValue = document.createElement("span");
      topValue.className = "top-value";
      $("figcaption", figure).append(topValue);
    }
    const name = $("figcaption", figure).firstChild.textContent.trim();
    const when = this.times[at] ? new Date(this.times[at]).toLocaleTimeString() : "";
    topValue.textContent = figure.cursorAt === undefined ? `scale to ${amount(top / (unit === "%" ? 100 : 1), unit)}` : when;
    const minutes = Math.round(this.beats() * this.seconds / 60);
    $("[data-since]", figure).textContent = minutes < 120 ? `${minutes} min ago` : `${Math.round(minutes / 60)} h ago`;
    $("svg", figure).setAttribute("aria-label", `${name}, at ${when}: ${texts.join(", ") || "no figures yet"}`);
  },

  colour(owner) {
    return owner ? this.owners.indexOf(owner) % 6 : 0;
  },

  point(figure, at) {
    figure.cursorAt = at === undefined ? undefined : Math.min(Math.max(at, 0), this.times.length - 1);
    this.draw(figure);
  },

  listen() {
    for (const figure of all("[data-charts] figure")) {
      const picture = $("svg", figure);
      picture.addEventListener("pointermove", (event) => {
        const box = picture.getBoundingClientRect();
        const beat = Math.round((event.clientX - box.left) / box.width * (this.beats() - 1));
        this.point(figure, beat - (this.beats() - this.times.length));
      });
      picture.addEventListener("pointerleave", () => this.point(figure));
      picture.addEventListener("blur", () => this.point(figure));
      picture.addEventListener("keydown", (event) => {
        const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
        if (!step) return;
        event.preventDefault();
        this.point(figure, (figure.cursorAt ?? this.times.length - 1) + step);
      });
    }
  },
};

function niceAbove(peak, unit) {
  if (unit === "%") return peak <= 25 ? 25 : peak <= 50 ? 50 : Math.max(100, Math.ceil(peak / 100) * 100);
  if (peak <= 0) return unit.startsWith("B") ? 1024 : 10;
  if (peak <= 1) return 1;
  const base = unit.startsWith("B") ? 2 : 10;
  const power = base ** Math.floor(Math.log(peak) / Math.log(base));
  return (base === 2 ? [1, 1.5, 2] : [1, 2, 5, 10]).map((step) => step * power).find((step) => step >= peak);
}

function amount(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "%") return `${(100 * value).toPrecision(value < 0.1 ? 2 : 3).replace(/\.0+$/, "")} %`;
  if (unit.startsWith("B")) {
    const names = ["B", "KiB", "MiB", "GiB"];
    let at = 0;
    while (value >= 1023.5 && at < 3) { value /= 1024; at += 1; }
    return `${three(value)} ${names[at]}`;
  }
  return three(value);
}

function three(value) {
  if (value >= 99.95 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

// Actions: a window asks, says what will happen where the server can tell, and does it.

const RESULTS = {left: "left where they are"};

function inWords(answer) {
  const parts = Object.entries(answer).filter(([, value]) => value !== null && typeof value !== "object");
  return parts.map(([name, value]) => {
    const words = RESULTS[name] || name.replaceAll("_", " ");
    return typeof value === "number" && !["offset", "before", "first"].includes(name)
      ? `${value.toLocaleString("en")} ${words}`
      : `${words} ${value}`;
  }).join(", ");
}

function argumentsOf(form) {
  const found = {}, changes = "changes" in form.dataset;
  for (const field of form.elements) {
    if (!field.name) continue;
    if (field.type === "checkbox") {
      if (field.checked || field.defaultChecked) found[field.name] = field.checked;
    } else if (changes && field.value === presentOf(field)) continue;
    else if (field.value !== "") found[field.name] = valueOf(field);
    else if (changes) found[field.name] = null; // as the settings say
  }
  return found;
}

function presentOf(field) {
  if (!field.options) return field.defaultValue;
  const present = [...field.options].find((option) => option.defaultSelected) || field.options[0];
  return present ? present.value : "";
}

function valueOf(field) {
  if (field.type === "number") return Number(field.value);
  if (field.dataset.kind === "list") return field.value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (!["table", "rows"].includes(field.dataset.kind)) return field.value;
  try {
    return JSON.parse(field.value);
  } catch {
    throw new Error(`${field.name}: this is not JSON`);
  }
}

// What is wrong stands at the field that it names first, else below all of them.
function showWrong(form, text) {
  const places = [...form.elements].filter((field) => field.name && document.getElementById(`${field.id}-wrong`))
    .map((field) => ({field, at: text.search(new RegExp(`(^|[^\\w-])${field.name}([^\\w-]|$)`))}))
    .filter(({at}) => at >= 0).sort((one, two) => one.at - two.at);
  const preview = $(".preview", form);
  clearWrong(form);
  if (!places.length) {
    preview.classList.add("bad");
    preview.textContent = text;
    return;
  }
  const {field} = places[0], wrong = document.getElementById(`${field.id}-wrong`);
  field.setAttribute("aria-invalid", "true");
  wrong.textContent = text;
  wrong.hidden = false;
  field.focus();
}

function clearWrong(form) {
  for (const field of all("[aria-invalid]", form)) field.removeAttribute("aria-invalid");
  for (const wrong of all(".wrong", form)) wrong.hidden = true;
  $(".preview", form).classList.remove("bad");
  $(".preview", form).textContent = "";
}

async function call(form, dryRun) {
  const {url, method} = form.dataset;
  const body = JSON.stringify(argumentsOf(form));
  const answer = await fetch(url + (dryRun ? "?dry_run=1" : ""), {method, headers: JSON_HEADERS, body});
  if (answer.status === 401) location.reload();
  if (!answer.ok) throw new Error(await problemOf(answer));
  return answer.json();
}

async function preview(form) {
  const place = $(".preview", form), button = $("[type=submit]", form);
  button.disabled = true;
  clearWrong(form);
  place.textContent = "Asking the server what would happen …";
  try {
    place.textContent = `What will happen: ${inWords(await call(form, true))}.`;
    form.dataset.seen = "yes";
  } catch (error) {
    showWrong(form, error.message);
  }
  button.disabled = "dryRuns" in form.dataset && !form.dataset.seen && !fieldOf(form);
  nameButton(form);
}

// Where there is something to fill in, the first press only asks what would happen.
function nameButton(form) {
  const button = $("[type=submit]", form);
  const asks = "dryRuns" in form.dataset && !form.dataset.seen && fieldOf(form);
  button.textContent = asks ? "Say what would happen" : button.dataset.name;
}

const fieldOf = (form) => $("input:not([type=hidden]), textarea, select", form);

function openAction(dialog, position) {
  const form = $("form", dialog);
  form.reset();
  if (position) form.elements.position.value = position;
  delete form.dataset.seen;
  clearWrong(form);
  $("[type=submit]", form).disabled = false;
  nameButton(form);
  dialog.showModal();
  (fieldOf(form) || $("[data-closes]", form)).focus();
  if ("dryRuns" in form.dataset && (!fieldOf(form) || (position && form.checkValidity()))) preview(form);
}

async function act(form) {
  const title = $("h2", form).textContent;
  if ("dryRuns" in form.dataset && !form.dataset.seen) return preview(form);
  const button = $("[type=submit]", form);
  button.disabled = true;
  try {
    const done = `${title}: ${inWords(await call(form, false))}.`;
    form.closest("dialog").close();
    if (form.dataset.leaves) {
      keep("told", done); // for the view that comes next
      return location.assign(form.dataset.leaves);
    }
    tell(done);
    await refresh();
  } catch (error) {
    showWrong(form, error.message);
  }
  button.disabled = false;
}

function listenToActions() {
  document.addEventListener("click", (event) => {
    const opens = event.target.closest("[data-opens]");
    if (opens) openAction(document.getElementById(opens.dataset.opens), opens.dataset.position);
    const tries = event.target.closest("[data-tries]");
    if (tries && tries.form.reportValidity()) preview(tries.form);
    const closes = event.target.closest("[data-closes]");
    if (closes) closes.closest("dialog").close();
  });
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-action]");
    if (form) {
      delete form.dataset.seen;
      clearWrong(form);
      nameButton(form);
    }
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-action]")) return;
    event.preventDefault();
    act(event.target);
  });
}

// The log and the trace, as they come. What a line holds is shown as text, never as HTML.

const LINES_MAX = 500;

function follow(place) {
  const rows = $("tbody", place), missing = $("[data-missing]"), hold = $("[data-pause]");
  const wanted = new URL(place.dataset.stream, location.href);
  const isTrace = wanted.pathname.endsWith("/trace");
  let held = null;
  const show = (line) => {
    if (held) { held.push(line); held.splice(0, held.length - LINES_MAX); return; }
    rows.prepend(isTrace ? traceRow(line) : logRow(line));
    while (rows.children.length > LINES_MAX) rows.lastElementChild.remove();
    missing.hidden = true;
    place.hidden = false;
  };
  const say = (text) => { missing.textContent = text; missing.hidden = false; };
  if (hold) hold.addEventListener("click", () => {
    const lines = held;
    held = held ? null : [];
    hold.setAttribute("aria-pressed", String(held !== null));
    if (lines) lines.forEach(show);
  });
  fetch(wanted).then(async (answer) => {
    if (!answer.ok) return say(answer.status === 404 ? "This server does not offer it." : await problemOf(answer));
    const {items} = await answer.json();
    if (!items.length) say(isTrace ? "No message has passed yet. It is shown here when one does." : "No line has been written yet.");
    items.forEach(show);
    wanted.searchParams.set("follow", "1");
    wanted.searchParams.set("after", items.length ? items.at(-1).id : 0);
    const source = new EventSource(wanted);
    source.addEventListener("message", (event) => show(JSON.parse(event.data)));
    source.addEventListener("missed", () => say("Some were left out, for there were too many."));
    source.addEventListener("error", () => { if (!rows.children.length) say("The connection is lost. It is tried again."); });
    return undefined;
  }, () => say("The server does not answer."));
}

function rowOf(cells, className = "") {
  const row = document.createElement("tr");
  row.append(...cells.map((text) => {
    const made = document.createElement("td");
    made.textContent = text;
    return made;
  }));
  row.cells[1].className = className;
  return row;
}

const clock = (text) => {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? String(text ?? "") : at.toLocaleTimeString("en-GB") + `.${String(at.getMilliseconds()).padStart(3, "0")}`;
};
const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function logRow({id, time, level = "", event = "", fields = {}}) {
  const details = Object.entries(fields).map(([name, value]) => `${name}=${written(value)}`).join("  ");
  return rowOf([clock(time), level, event, details], `level-${String(level).replace(/[^a-z]/g, "")}`);
}

function traceRow({id, time, protocol = "", name = "", text, base64, ...rest}) {
  const shown = text ?? base64 ?? JSON.stringify(rest);
  return rowOf([clock(time), protocol, name, shown.length > 500 ? `${shown.slice(0, 500)}…` : shown]);
}

// The start.

if ("login" in document.body.dataset) logIn();
else {
  $(".top").addEventListener("click", onTop);
  // Where the menu is one line that is wider than the window, the view that is shown stands in it.
  // (scrollIntoView would have the Tab key go on from there.)
  const here = $("nav [aria-current]");
  if (here) $("nav").scrollLeft = here.offsetLeft - ($("nav").clientWidth - here.offsetWidth) / 2;
  tell(take("told"));
  listenToActions();
  charts.listen();
  charts.refresh();
  all("[data-stream]").forEach(follow);
  keepFresh();
  document.addEventListener("keydown", (event) => {
    const filter = $("[data-filter]");
    if (event.key !== "/" || !filter || event.target.closest("input, textarea, select, dialog")) return;
    event.preventDefault();
    filter.focus();
  });
}
