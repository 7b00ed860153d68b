// Small helpers: making elements, formatting, keeping lists of elements in step with lists of data.

export const $ = (id) => document.getElementById(id);

// An element: el('td', {class: 'n'}, 'text', child, …).  Text is never parsed as HTML.
export function el(name, props, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

const SVG = 'http://www.w3.org/2000/svg';
export function svg(name, props, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(props || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A bar's filled part.
export function bar(node, fraction) {
  node.style.width = `${Math.max(0, Math.min(1, fraction || 0)) * 100}%`;
}

// The colour of path i of n: the palette while it lasts, then hues that are far apart for neighbours, and of other
// lightness, which every eye can tell.
export function lane(i, n) {
  return n <= 8 ? `var(--s${i})` : `oklch(var(--lane-l${i % 2}) 0.11 ${Math.round((i * 360 * 0.381966) % 360)})`;
}

// The dashes of line i: others than its neighbours' and those of the next line of its colour.
const DASHES = ['none', '7 4', '2 4', '10 4 2 4'];
export function dashes(i) {
  return DASHES[(i + (i >> 3)) % DASHES.length];
}

// Children of `parent` follow `items`: one node each, kept by key, so that focus and selection
// survive an update.  make(item) -> node, update(node, item).
export function sync(parent, items, keyOf, make, update) {
  const old = new Map();
  for (const node of [...parent.children]) {
    if (node.dataset.key === undefined) node.remove();
    else old.set(node.dataset.key, node);
  }
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let node = old.get(key);
    if (node) {
      old.delete(key);
    } else {
      node = make(item);
      node.dataset.key = key;
    }
    if (node === before) before = before.nextElementSibling;
    else parent.insertBefore(node, before);
    update(node, item);
  }
  for (const node of old.values()) node.remove();
}

// ---- formatting: null is an en dash everywhere ----

export const DASH = '–';

export function bytes(n) {
  if (n === null || n === undefined) return DASH;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

// Rounded to so many digits, and never as 1e+3.
export function digits(x, n) {
  return String(Number(x.toPrecision(n)));
}

export function compact(n) {
  if (n === null || n === undefined) return DASH;
  for (const [size, unit] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']])
    if (n >= size * 10 || (size > 1e3 && n >= size * 0.9995)) return `${digits(n / size, 3)} ${unit}`;
  return String(Math.round(n));
}

export function number(n) {
  return n === null || n === undefined ? DASH : Math.round(n).toLocaleString('en');
}

export function dollars(x) {
  return x > 0 && x < 0.095 ? `$${x.toPrecision(2)}` : `$${x.toFixed(2)}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return DASH;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, '0')} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor(s / 60) % 60).padStart(2, '0')} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

export function age(ms) {
  if (ms === null || ms === undefined) return DASH;
  return ms < 10000 ? `${(ms / 1000).toFixed(1)} s` : duration(ms);
}

export function loss(x) {
  if (x === null || x === undefined) return DASH;
  const a = Math.abs(x);
  return a >= 1000 || (a < 0.001 && a > 0) ? x.toExponential(2) : x.toPrecision(4);
}

export function rate(x) {
  if (!x) return DASH; // 0: nothing moves
  return x >= 100 ? Math.round(x).toLocaleString('en') : x.toFixed(x >= 10 ? 1 : 2);
}

export function plural(n, one, many) {
  return `${number(n)} ${n === 1 ? one : many || one + 's'}`;
}

const TIME = {hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23'};
const today = new Intl.DateTimeFormat([], TIME), another = new Intl.DateTimeFormat([], {month: 'short', day: 'numeric', ...TIME});

// By the clock of whoever looks; of another day with its date.
export function clock(iso) {
  const d = new Date(iso);
  return (d.toDateString() === new Date().toDateString() ? today : another).format(d);
}

// A command line with a button that copies it.  `shown` may differ from what is copied (secrets).
export function command(shown, text) {
  const button = el('button', {type: 'button', onclick: copy}, 'Copy');
  async function copy() {
    const code = button.previousSibling;
    let line = text || shown;
    try {
      if (typeof text === 'function') line = await text();
    } catch (error) {
      code.textContent = error.message;
      button.hidden = true;
      return;
    }
    try {
      await navigator.clipboard.writeText(line);
      button.textContent = 'Copied';
    } catch {
      // No clipboard on plain HTTP: show it, selected, to be copied by hand.
      code.textContent = line;
      getSelection().selectAllChildren(code);
      button.textContent = 'Select';
    }
    setTimeout(() => (button.textContent = 'Copy'), 2000);
  }
  return el('div', {class: 'command'}, el('code', {tabindex: '0'}, shown), button);
}
