// Samples by whom they are of: the mixture and each expert, or the paths.  The sides lie beside each
// other as small pictures (texts as tabs); the chosen one is large, with a slider over its rounds.
import {$, el, setText, sync, number, plural, clock} from './util.js';

let job = null;
let sides = [];     // [{key, name, list}], the mixture first
let chosen = null;  // key
let follow = true;  // the slider stays at the newest until someone moves it

const blobUrl = (s) => `/v1/blobs/${s.blob}`;
const side = () => sides.find((s) => s.key === chosen);
const newest = (s) => s.list[s.list.length - 1];

function sidesOf(of) {
  const byPath = new Map();
  for (const s of of.samples) {
    if (!byPath.has(s.path)) byPath.set(s.path, []);
    byPath.get(s.path).push(s);
  }
  const name = (path) => (path === null ? (of.mixture ? 'Mixture' : 'Model') : `${of.mixture ? 'Expert' : 'Path'} ${path}`);
  return [...byPath].map(([path, list]) => ({key: String(path), path, name: name(path), list}))
    .sort((a, b) => (a.path === null ? -1 : a.path) - (b.path === null ? -1 : b.path));
}

function describe(s, name) {
  const what = s.text === null ? plural(s.count, 'sample') : 'text';
  return `${sides.length > 1 ? `${name}, ` : ''}after ${plural(s.round, 'round')} · ${what} · ${clock(s.at)}`;
}

function picture(s, alt) {
  for (const id of ['picture', 'dialog-picture']) {
    if ($(id).getAttribute('src') !== blobUrl(s)) $(id).src = blobUrl(s);
    $(id).alt = alt;
  }
}

function show() {
  const from = side();
  if (!from) return;
  const slider = $('slider'), last = from.list.length - 1;
  slider.max = last;
  slider.closest('label').hidden = last < 1;
  if (follow) slider.value = last;
  const s = from.list[Number(slider.value)];
  slider.setAttribute('aria-valuetext', `round ${s.round}`);
  const isText = s.text !== null;
  $('enlarge').hidden = isText;
  $('sample-text').hidden = !isText;
  const alt = `Grid of ${s.count} samples${sides.length > 1 ? ` of ${from.name.toLowerCase()}` : ''} after ${plural(s.round, 'round')}`;
  if (isText) setText($('sample-text'), s.text);
  else picture(s, alt);
  setText($('dialog-caption'), alt);
  setText($('caption'), describe(s, from.name) + (last > 0 ? ` · ${number(Number(slider.value) + 1)} of ${number(last + 1)}` : ''));
}

function choose(key, focus) {
  chosen = key;
  follow = true;
  strip();
  show();
  if (focus) $('sides').querySelector('[aria-selected=true]').focus();
}

function makeTab(s) {
  return el('button', {type: 'button', role: 'tab', 'aria-controls': 'sample', onclick: () => choose(s.key)},
    el('img', {alt: '', loading: 'lazy'}), el('span'));
}

function strip() {
  const box = $('sides');
  box.hidden = sides.length < 2;
  box.classList.toggle('words', sides.every((s) => newest(s).text !== null));
  sync(box, sides, (s) => s.key, makeTab, (tab, s) => {
    const on = s.key === chosen, last = newest(s), [img, name] = tab.children;
    tab.setAttribute('aria-selected', on);
    tab.tabIndex = on ? 0 : -1;
    img.hidden = last.text !== null;
    if (last.text === null && img.getAttribute('src') !== blobUrl(last)) img.src = blobUrl(last);
    setText(name, s.name);
  });
}

export function draw(of, empty) {
  if (of.id !== job) {
    follow = true;
    chosen = null;
  }
  job = of.id;
  sides = sidesOf(of);
  if (!side() && sides.length) chosen = sides[0].key;
  $('samples').hidden = !sides.length;
  $('samples-empty').hidden = sides.length > 0;
  setText($('samples-empty'), empty);
  strip();
  show();
}

// Whose samples are looked at: what drawing on demand asks for.
export function asked() {
  const from = side();
  return from && sides.length > 1 && from.path !== null ? {path: from.path} : {};
}

function key(e) {
  const step = {ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity}[e.key];
  if (!step) return;
  e.preventDefault();
  const at = sides.findIndex((s) => s.key === chosen) + step;
  choose(sides[Math.max(0, Math.min(sides.length - 1, at))].key, true);
}

export function start() {
  $('sides').addEventListener('keydown', key);
  $('slider').addEventListener('input', () => {
    follow = Number($('slider').value) === side().list.length - 1;
    show();
  });
  $('enlarge').addEventListener('click', () => $('dialog').showModal());
  $('dialog').addEventListener('click', (e) => {
    if (e.target === $('dialog')) $('dialog').close();
  });
}
