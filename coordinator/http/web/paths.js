// The grid of modules and paths, and what is known of each path, partition and figure.
import {$, el, svg, setText, sync, bar, compact, number, loss, plural, lane, dashes, DASH} from './util.js';

const LANES_MAX = 64; // beyond it only the lane of the path that is looked at is drawn
const SEEN = /^routed (\d+)$/; // share of the held-out samples that the router sends to an expert
const STRATEGY = /^loss (\S+)$/;
const SHARES = /accuracy|variance kept|routed to the best|^routed \d/;

let job = null;
let main = [];     // paths of the main network
let levels = [];   // [{key, title, network, modules}], from the input to the output
let held = null;   // what was chosen by a click: {path} or {module}
let over = null;   // what the pointer or the focus is at
let onLook = null; // called with a path, or null

const byId = new Map(); // module id -> module
const isRouter = (p) => p.network === 'router';
const color = (p) => (isRouter(p) ? 'var(--faint)' : lane(p.path, main.length));
const pathName = (p) => (isRouter(p) ? 'Router' : `${job.mixture ? 'Expert' : 'Path'} ${p.path}`);
const crossing = (module) => job.path_list.filter((p) => p.modules.includes(module.id));
const phasesOf = (p) => job.phases.filter((x) => x.path === p.path);

// ---- the lattice ----

function levelTitle(list, base, fragments, several) {
  const m = list[0];
  const cut = fragments ? ` · ${m.fragment + 1}` : '';
  if (m.network === 'router') return 'Router';
  if (several && list.length === main.length && list.length > 1 && list.every((x) => x.paths === 1)) return `Private${cut}`;
  return (job.mixture ? 'Experts' : `Level ${base}`) + cut;
}

function readLevels() {
  const groups = new Map();
  byId.clear();
  for (const m of job.modules) {
    byId.set(m.id, m);
    const key = `${m.network}/${m.level}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(m);
  }
  const ordered = [...groups].sort(([, a], [, b]) => (a[0].network === 'router') - (b[0].network === 'router') || a[0].level - b[0].level);
  const fragments = job.modules.some((m) => m.fragment > 0);
  const several = ordered.filter(([, l]) => l[0].network !== 'router' && l[0].fragment === 0).length > 1;
  let base = -1;
  levels = ordered.map(([key, list]) => {
    list.sort((a, b) => a.index - b.index);
    if (list[0].fragment === 0) base++;
    return {key, title: levelTitle(list, base, fragments, several), network: list[0].network, modules: list};
  });
}

function moduleText(m) {
  const level = levels.find((l) => l.modules.includes(m));
  const through = crossing(m).map((p) => (isRouter(p) ? 'router' : p.path));
  const shown = through.length > 12 ? `${through.slice(0, 12).join(', ')} …` : through.join(', ');
  return `${level.title}, module ${m.index}: ${m.version === null ? 'no version yet' : `version ${m.version}`}, ${compact(m.parameters || null)} parameters, `
    + `crossed by ${through.length === 1 ? `path ${shown}` : `${through.length} paths (${shown})`}; `
    + `outer step ${m.outer}${m.reason ? `: ${m.reason}` : ''}`;
}

const ended = (p) => p.state === 'done' || p.state === 'stopped';

function nowText(p) {
  const at = phasesOf(p).filter((x) => x.state === 'leased');
  if (at.length) return at.map((x) => `${x.worker_name} trains round ${x.round}${x.steps_total ? `, step ${x.steps_done} of ${x.steps_total}` : ''}`).join('; ');
  return ended(p) ? `${p.state} after ${plural(p.round, 'round')}` : p.state === 'waiting' ? 'waits for its modules or its data' : 'waits for a worker';
}

function pathText(p) {
  const through = p.modules.map((id, i) => `${(byId.get(id) || {index: '?'}).index} (v${p.versions[i]})`).join(' → ');
  return `${pathName(p)}: modules ${through} · ${p.partition === null ? 'all the data' : `partition ${p.partition}`} · ${nowText(p)}`;
}

function makeCell(m) {
  const cell = el('button', {type: 'button', class: 'cell', tabindex: '-1'}, el('span', {class: 'lanes'}),
    el('b'), el('small'), el('i', {class: 'outer'}));
  const look = (what) => () => {
    over = what;
    light();
  };
  cell.addEventListener('pointerenter', look({module: m.id}));
  cell.addEventListener('pointerleave', look(null));
  cell.addEventListener('focus', look({module: m.id}));
  cell.addEventListener('blur', look(null));
  cell.addEventListener('click', () => hold({module: m.id}));
  return cell;
}

function updateCell(cell, m) {
  const [strip, index, version] = cell.children;
  const through = crossing(m);
  sync(strip, through.slice(0, LANES_MAX), (p) => p.path, () => el('i'), (node, p) => node.style.setProperty('--lane', color(p)));
  setText(index, String(m.index));
  setText(version, m.version === null ? DASH : `v${m.version}`);
  cell.dataset.module = m.id;
  cell.dataset.outer = m.outer;
  cell.classList.toggle('busy', through.some((p) => phasesOf(p).some((x) => x.state === 'leased')));
  cell.setAttribute('aria-label', moduleText(m));
  cell.setAttribute('aria-pressed', !!held && held.module === m.id);
}

function lattice() {
  const box = $('lattice');
  sync($('levels'), levels, (l) => l.key,
    () => el('div', {class: 'level'}, el('span', {class: 'faint'}), el('div', {class: 'cells'})),
    (node, l) => {
      setText(node.firstChild, l.title);
      node.classList.toggle('apart', l.network === 'router');
      node.lastChild.classList.toggle('many', l.modules.length > 24);
      sync(node.lastChild, l.modules, (m) => m.id, makeCell, updateCell);
    });
  if (!box.querySelector('.cell[tabindex="0"]')) {
    const first = box.querySelector('.cell');
    if (first) first.tabIndex = 0;
  }
  drawLanes();
}

// Where a path enters and leaves a cell: the middle of its segment of the strip.
function stop(p, id, frame) {
  const cell = $('lattice').querySelector(`[data-module="${id}"]`);
  if (!cell) return null;
  const r = cell.getBoundingClientRect(), through = crossing(byId.get(id));
  const x = r.left - frame.left + 3 + (r.width - 6) * (through.findIndex((q) => q.path === p.path) + 0.5) / through.length;
  return {x, top: r.top - frame.top, bottom: r.bottom - frame.top};
}

function drawLanes() {
  const layer = $('threads'), frame = $('lattice').getBoundingClientRect();
  const rows = levels.filter((l) => l.network !== 'router').length;
  const looked = lookedPaths();
  const drawn = rows < 2 || !frame.width ? [] : main.length <= LANES_MAX ? main : main.filter((p) => looked && looked.has(p.path));
  layer.setAttribute('viewBox', `0 0 ${frame.width || 1} ${frame.height || 1}`);
  sync(layer, drawn, (p) => p.path, () => svg('path'), (node, p) => {
    const stops = p.modules.map((id) => stop(p, id, frame)).filter((s) => s);
    let d = '';
    for (let i = 1; i < stops.length; i++) {
      const a = stops[i - 1], b = stops[i], mid = (a.bottom + b.top) / 2;
      d += `M${a.x.toFixed(1)} ${a.bottom.toFixed(1)}C${a.x.toFixed(1)} ${mid.toFixed(1)} ${b.x.toFixed(1)} ${mid.toFixed(1)} ${b.x.toFixed(1)} ${b.top.toFixed(1)}`;
    }
    node.setAttribute('d', d);
    node.setAttribute('stroke-dasharray', dashes(p.path));
    node.style.setProperty('--lane', color(p));
  });
  light();
}

// ---- looking at a path or a module ----

function lookedPaths() {
  const what = over || held;
  if (!what) return null;
  if (what.path !== undefined) return new Set([what.path]);
  const m = byId.get(what.module);
  return m ? new Set(crossing(m).map((p) => p.path)) : null;
}

function light() {
  if (!job) return;
  const what = over || held, paths = lookedPaths();
  const lit = (on, node) => {
    node.classList.toggle('on', !!paths && on);
    node.classList.toggle('off', !!paths && !on);
  };
  const modules = new Set();
  for (const p of job.path_list) if (paths && paths.has(p.path)) p.modules.forEach((id) => modules.add(id));
  for (const cell of $('lattice').querySelectorAll('.cell')) {
    const id = Number(cell.dataset.module);
    lit(what && what.module !== undefined ? id === what.module : modules.has(id), cell);
  }
  for (const thread of $('threads').children) lit(paths && paths.has(Number(thread.dataset.key)), thread);
  for (const row of $('paths').children) lit(paths && paths.has(Number(row.dataset.key)), row);
  const one = paths && paths.size === 1 ? job.path_list.find((p) => paths.has(p.path)) : null;
  setText($('lattice-text'), one && what.path !== undefined ? pathText(one) : paths ? moduleText(byId.get(what.module))
    : 'A cell is a module at its newest version, a colour is a path. Point at one to see what belongs together; a click holds it.');
  if (onLook) onLook(one && !isRouter(one) ? one.path : null);
}

function hold(what) {
  const same = held && held.path === what.path && held.module === what.module;
  held = same ? null : what;
  over = null;
  for (const cell of $('lattice').querySelectorAll('.cell'))
    cell.setAttribute('aria-pressed', !!held && held.module === Number(cell.dataset.module));
  for (const row of $('paths').children)
    row.querySelector('button').setAttribute('aria-pressed', !!held && held.path === Number(row.dataset.key));
  light();
}

// One tab stop for all cells, and one for all paths; arrow keys move inside.
function roam(list, from, to) {
  if (to < 0 || to >= list.length) return;
  list[from].tabIndex = -1;
  list[to].tabIndex = 0;
  list[to].focus();
}

function latticeKey(e) {
  if (e.key === 'Escape' && held) hold(held);
  const cells = [...$('lattice').querySelectorAll('.cell')], at = cells.indexOf(document.activeElement);
  if (at < 0 || !e.key.startsWith('Arrow')) return;
  e.preventDefault();
  if (e.key === 'ArrowLeft' || e.key === 'ArrowRight') {
    roam(cells, at, at + (e.key === 'ArrowRight' ? 1 : -1));
    return;
  }
  // To the nearest cell of the next line.
  const here = cells[at].getBoundingClientRect(), down = e.key === 'ArrowDown';
  const lines = cells.map((c, i) => ({i, r: c.getBoundingClientRect()}))
    .filter(({r}) => (down ? r.top > here.top + 2 : r.top < here.top - 2))
    .sort((a, b) => Math.abs(a.r.top - here.top) - Math.abs(b.r.top - here.top) || Math.abs(a.r.left - here.left) - Math.abs(b.r.left - here.left));
  if (lines.length) roam(cells, at, lines[0].i);
}

function pathsKey(e) {
  if (e.key === 'Escape' && held) hold(held);
  const names = [...$('paths').querySelectorAll('button')], at = names.indexOf(document.activeElement);
  const step = {ArrowDown: 1, ArrowUp: -1}[e.key];
  if (at < 0 || !step) return;
  e.preventDefault();
  roam(names, at, at + step);
}

// ---- the table of paths ----

const COLUMNS = [
  {name: 'Path', make: () => el('td', {}, el('button', {type: 'button', class: 'path'}, el('i', {class: 'dye'}), el('span')), el('span', {class: 'sub2'})),
    draw: (td, p) => {
      td.firstChild.style.setProperty('--lane', color(p));
      setText(td.firstChild.lastChild, pathName(p));
      setText(td.lastChild, p.modules.map((id) => (byId.get(id) || {index: '?'}).index).join(' → '));
      td.lastChild.hidden = p.modules.length < 2;
    }},
  {name: 'Learns from', make: () => el('td', {}, el('span'), el('span', {class: 'faint'}), el('div', {class: 'mini'}, el('i'))),
    draw: (td, p, most) => {
      setText(td.children[0], p.samples ? plural(p.samples, 'sample') : DASH);
      setText(td.children[1], ` · ${p.partition === null ? 'all the data' : `partition ${p.partition}`}${p.tokens ? `, ${compact(p.tokens)} tokens` : ''}`);
      bar(td.children[2].firstChild, most ? p.samples / most : 0);
      td.children[2].firstChild.style.background = color(p);
    }},
  {name: 'Round', n: true, draw: (td, p) => setText(td, `${number(p.round)} / ${number(p.rounds)}`)},
  {name: 'Trained by', make: () => el('td', {}, el('span'), el('span', {class: 'faint'}), el('div', {class: 'mini'}, el('i'))), draw: drawTrainer},
  {name: 'Loss', n: true, draw: (td, p) => setText(td, loss(p.loss))},
  {name: 'Held-out', n: true, draw: (td, p) => {
    setText(td, loss(p.eval_loss));
    td.title = p.eval_round === null ? '' : `after ${plural(p.eval_round, 'round')}, of ${plural(p.holdout, 'sample')}`;
  }},
  {name: 'Bits/byte', n: true, when: () => job.text, draw: (td, p) => setText(td, loss(p.bits_per_byte))},
  {name: 'Best (round)', n: true, when: () => job.path_list.some((p) => p.best_round !== null), draw: (td, p) => {
    setText(td, p.best_round === null ? DASH : `${loss(p.best_loss)} (${p.best_round})`);
    td.title = p.best_round === null ? '' : `the weights of round ${p.best_round} are kept`;
  }},
];

function drawTrainer(td, p) {
  const phases = phasesOf(p), at = phases.filter((x) => x.state === 'leased');
  const steps = at.reduce((s, x) => s + x.steps_done, 0), total = at.reduce((s, x) => s + x.steps_total, 0);
  const sent = phases.filter((x) => x.state === 'reported').length;
  setText(td.children[0], at.length ? at.map((x) => x.worker_name).join(', ') : ended(p) ? p.state : sent === phases.length && sent ? 'sent' : p.state === 'waiting' ? 'waits' : 'queued');
  td.children[0].classList.toggle('faint', !at.length);
  setText(td.children[1], ended(p) || !at.length ? '' : (total ? ` · step ${number(steps)} of ${number(total)}` : ` · step ${number(steps)}`)
    + (phases.length > 1 && sent ? `, ${sent} of ${phases.length} sent` : ''));
  td.children[2].hidden = !at.length || !total;
  bar(td.children[2].firstChild, total ? steps / total : 0);
}

function makeRow(columns) {
  return (p) => {
    const row = el('tr', {}, ...columns.map((c) => (c.make ? c.make() : el('td', c.n ? {class: 'n'} : {}))));
    const name = row.querySelector('button');
    const look = (what) => () => {
      over = what;
      light();
    };
    row.addEventListener('pointerenter', look({path: p.path}));
    row.addEventListener('pointerleave', look(null));
    name.addEventListener('focus', look({path: p.path}));
    name.addEventListener('blur', look(null));
    name.addEventListener('click', () => hold({path: p.path}));
    name.tabIndex = -1;
    return row;
  };
}

// The head follows the columns; another set of columns makes the rows anew.
function head(node, body, columns) {
  const names = columns.map((c) => c.name).join('|');
  if (node.dataset.of === names) return;
  node.dataset.of = names;
  node.replaceChildren(el('tr', {}, ...columns.map((c) => el('th', c.n ? {class: 'n'} : {}, c.name))));
  body.replaceChildren();
}

function table() {
  const columns = COLUMNS.filter((c) => !c.when || c.when());
  const most = Math.max(...job.path_list.map((p) => (p.partition === null ? 0 : p.samples)), 0) || Math.max(...job.path_list.map((p) => p.samples), 0);
  head($('paths-head'), $('paths'), columns);
  sync($('paths'), job.path_list, (p) => p.path, makeRow(columns), (row, p) => columns.forEach((c, i) => c.draw(row.children[i], p, most)));
  if (!$('paths').querySelector('button[tabindex="0"]')) {
    const first = $('paths').querySelector('button');
    if (first) first.tabIndex = 0;
  }
  const busy = new Set(job.phases.filter((x) => x.state === 'leased').map((x) => x.path));
  setText($('paths-sum'), `${plural(main.length, job.mixture ? 'expert' : 'path')}${job.replicas > 1 ? ` of ${job.replicas} replicas` : ''}, ${plural(job.modules.length, 'module')}`
    + (busy.size ? `; ${busy.size} of ${job.path_list.length} train now` : ''));
  setText($('paths-title'), job.mixture ? 'Experts and router' : 'Paths');
}

// ---- partitions ----

const PARTS = [
  {name: 'Partition', make: () => el('td', {}, el('span', {class: 'strong'})), draw: (td, p) => setText(td.firstChild, String(p.partition))},
  {name: 'Samples', wide: true, make: () => el('td', {class: 'size'}, el('span'), el('div', {class: 'mini mean'}, el('i'), el('b'))), draw: drawSize},
  {name: 'Held-out', n: true, draw: (td, p) => setText(td, number(p.holdout_samples))},
  {name: 'Tokens', n: true, when: () => job.text, draw: (td, p) => setText(td, compact(p.tokens))},
  {name: 'Router sends', n: true, when: () => job.figures.some((f) => SEEN.test(f.name)), draw: (td, p) => {
    const sent = job.figures.find((f) => f.name === `routed ${p.partition}`);
    setText(td, sent && sent.value !== null ? percent(sent.value) : DASH);
  }},
];

function percent(x) {
  return `${(x * 100).toFixed(1)} %`;
}

// A tick stands where all partitions would end if they were equal.
function drawSize(td, p, most) {
  const of = main.find((q) => q.partition === p.partition), bars = td.lastChild.children;
  setText(td.firstChild, number(p.samples) + (p.share === null ? '' : ` · ${percent(p.share)}`));
  bar(bars[0], most ? p.samples / most : 0);
  bars[0].style.background = of ? color(of) : '';
  const mean = job.partitions.reduce((s, q) => s + q.samples, 0) / job.partitions.length;
  bars[1].style.left = `${most ? (mean / most) * 100 : 0}%`;
}

function partitions() {
  const list = job.partitions, known = job.generation > 0 && list.some((p) => p.samples > 0);
  $('partitions-card').hidden = !list.length;
  if (!list.length) return;
  const columns = PARTS.filter((c) => !c.when || c.when());
  const most = Math.max(...list.map((p) => p.samples), 0), mean = list.reduce((s, p) => s + p.samples, 0) / list.length;
  head($('partitions-head'), $('partitions'), columns);
  sync($('partitions'), known ? list : [], (p) => p.partition,
    () => el('tr', {}, ...columns.map((c) => (c.make ? c.make() : el('td', c.n ? {class: 'n'} : {})))),
    (row, p) => columns.forEach((c, i) => c.draw(row.children[i], p, most)));
  setText($('partitions-sum'), known ? `largest ${(most / mean).toFixed(2)} × the mean`
    + (job.reshards ? `, routed anew ${job.resharded} of ${plural(job.reshards, 'time')}` : '') : '');
  $('partitions').closest('.scroll').hidden = !known;
  $('partitions-empty').hidden = known;
}

// ---- figures ----

const KINDS = {cluster: 'Clustering', eval: 'Evaluation', split: 'Splitting', score: 'Scores', feature: 'Features'};

function figureValue(f) {
  if (f.value === null) return DASH;
  if (!f.unit && SHARES.test(f.name) && f.value >= 0 && f.value <= 1) return percent(f.value);
  const text = Number.isInteger(f.value) ? number(f.value) : loss(f.value);
  return f.unit ? `${text} ${f.unit}` : text;
}

function figureName(f) {
  const p = f.path === null ? null : job.path_list.find((q) => q.path === f.path);
  const of = !p || (isRouter(p) && /router/.test(f.name)) || f.kind !== 'eval' ? '' : ` (${pathName(p).toLowerCase()})`;
  return f.name[0].toUpperCase() + f.name.slice(1) + of;
}

function strategies(list) {
  const found = list.filter((f) => f.value !== null).sort((a, b) => a.value - b.value);
  const over = (f) => `+${((f.value / found[0].value - 1) * 100).toFixed(2)} %`;
  return found.map((f, i) => ({key: `s/${f.name}`, name: STRATEGY.exec(f.name)[1], value: loss(f.value), more: i === 0 ? 'lowest' : over(f)}));
}

function figures() {
  const all = job.figures.filter((f) => !SEEN.test(f.name));
  $('figures-card').hidden = !job.partitions.length && !all.length;
  const mixed = all.filter((f) => STRATEGY.test(f.name)), rest = all.filter((f) => !STRATEGY.test(f.name));
  const groups = [];
  if (mixed.length) groups.push({title: `Held-out loss by strategy of mixing, after ${plural(mixed[0].round, 'round')}`, rows: strategies(mixed)});
  for (const kind of [...new Set(rest.map((f) => f.kind))]) {
    const rows = rest.filter((f) => f.kind === kind).map((f) => ({key: `${kind}/${f.path}/${f.name}`, name: figureName(f), value: figureValue(f),
      more: kind === 'eval' || f.round > 0 ? `round ${f.round}` : ''}));
    groups.push({title: KINDS[kind] || kind, rows});
  }
  sync($('figures'), groups, (g) => g.title, (g) => el('div', {class: 'figures'}, el('h3', {}, g.title), el('dl')),
    (node, g) => sync(node.lastChild, g.rows, (r) => r.key,
      () => el('div', {}, el('dt'), el('dd', {}, el('span'), el('span', {class: 'faint'}))),
      (row, r) => {
        setText(row.children[0], r.name);
        setText(row.children[1].firstChild, r.value);
        setText(row.children[1].lastChild, r.more);
      }));
  $('figures').hidden = !groups.length;
  $('figures-empty').hidden = groups.length > 0;
}

export function draw(of) {
  if (!job || job.id !== of.id) held = over = null;
  job = of;
  main = job.path_list.filter((p) => !isRouter(p));
  readLevels();
  const plain = job.path_list.length < 2 && job.modules.length < 2;
  $('paths-card').hidden = plain;
  if (!plain) {
    table();
    lattice();
  }
  partitions();
  figures();
  for (const [one, other] of [['partitions', 'figures'], ['figures', 'partitions']])
    $(`${one}-card`).classList.toggle('full', $(`${other}-card`).hidden);
}

export function start(look) {
  onLook = look;
  $('lattice').addEventListener('keydown', latticeKey);
  $('paths').addEventListener('keydown', pathsKey);
  new ResizeObserver(() => job && !$('paths-card').hidden && drawLanes()).observe($('lattice'));
}
