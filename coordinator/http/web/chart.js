// The loss chart: every replica faint (of many paths: every path), their mean bold, held-out loss as
// points.  A router has a loss of its own kind, so it is drawn alone.  In place of the loss a number that a trainer
// names can be shown.
import {$, el, svg, digits, loss, number, lane, dashes} from './util.js';

const BINS = 320;        // points drawn per line
const LINES = 24;        // more than so many are a band from the lowest to the highest
const NAMED = 8;         // lines named in the legend and the readout
const KEEP = 20000;      // points kept per replica; beyond it every second one goes
const PAD = {left: 56, right: 26, top: 10, bottom: 26};
const TAG = 11;          // height of a line's number

// Points of all lines by bins of x: [{x, mean, by: Map(key -> mean)}].
export function bin(lines, evals) {
  let lo = Infinity, hi = -Infinity;
  for (const line of lines.values())
    for (const p of line) {
      if (p.x < lo) lo = p.x;
      if (p.x > hi) hi = p.x;
    }
  for (const e of evals) {
    if (e.x < lo) lo = e.x;
    if (e.x > hi) hi = e.x;
  }
  if (hi < lo) return {lo: 0, hi: 1, bins: []};
  const width = Math.max((hi - lo) / BINS, 1e-9);
  const slots = new Map();
  for (const [key, line] of lines) {
    for (const p of line) {
      const i = Math.min(BINS - 1, Math.floor((p.x - lo) / width));
      let slot = slots.get(i);
      if (!slot) slots.set(i, (slot = {x: 0, n: 0, sum: 0, by: new Map()}));
      let own = slot.by.get(key);
      if (!own) slot.by.set(key, (own = {sum: 0, n: 0}));
      own.sum += p.y;
      own.n++;
      slot.sum += p.y;
      slot.x += p.x;
      slot.n++;
    }
  }
  const bins = [...slots.entries()].sort((a, b) => a[0] - b[0]).map(([, s]) => ({
    x: s.x / s.n, mean: s.sum / s.n, by: new Map([...s.by].map(([k, v]) => [k, v.sum / v.n])),
  }));
  return {lo, hi: hi > lo ? hi : lo + 1, bins};
}

// Round values inside [lo, hi], about n of them, at least so far apart.
export function ticks(lo, hi, n, log, least = 0) {
  const out = [];
  if (log) {
    const decades = Math.log10(hi / lo);
    const marks = decades > 3 ? [1] : decades > 1.2 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
    for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++)
      for (const m of marks) {
        const v = m * 10 ** e;
        if (v >= lo && v <= hi) out.push(v);
      }
    if (out.length >= 2) return out;
    out.length = 0;
  }
  const raw = (hi - lo) / n, size = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(least, size * [1, 2, 5, 10].find((m) => m * size >= raw * 0.999));
  for (let v = Math.ceil(lo / step - 1e-9) * step; v <= hi + step * 1e-6; v += step) out.push(v);
  return out;
}

function label(v) {
  if (v === 0) return '0';
  const a = Math.abs(v);
  if (a >= 1e5 || a < 1e-3) return v.toExponential(0);
  return digits(v, 3);
}

export class LossChart {
  constructor(box, readout) {
    this.box = box;
    this.readout = readout;
    this.log = false;
    this.clear();
    new ResizeObserver(() => this.later()).observe(box);
    box.addEventListener('pointermove', (e) => this.point(e.clientX - box.getBoundingClientRect().left));
    box.addEventListener('pointerleave', () => this.hover(null));
    box.addEventListener('blur', () => this.hover(null));
    box.addEventListener('keydown', (e) => this.press(e));
  }

  clear() {
    this.lines = new Map(); // "path/replica" -> [{x, y, lr, numbers}]
    this.series = '';       // the number that is shown; '': the loss
    this.offered = new Set(); // the numbers that there are
    $('shown-series').replaceChildren(el('option', {value: ''}, 'loss'));
    $('shown').hidden = true;
    this.marks = [];        // held-out
    this.paths = [];        // as path_list has them
    this.network = 'main';
    this.looked = null;     // the path that is looked at elsewhere on the page
    this.at = null;         // index of the bin under the cross
    this.later();
  }

  add(p) {
    if (p.loss === null) return;
    const key = `${p.path}/${p.replica}`;
    let line = this.lines.get(key);
    if (!line) this.lines.set(key, (line = []));
    line.push({x: p.step, y: p.loss, lr: p.lr, numbers: p.numbers});
    for (const name of Object.keys(p.numbers || {})) this.offer(name);
    if (line.length > KEEP) this.lines.set(key, line.filter((_, i) => i % 2 === 1));
    this.later();
  }

  // A number that can be shown.
  offer(name) {
    if (this.offered.has(name)) return;
    this.offered.add(name);
    $('shown-series').append(el('option', {value: name}, name));
    $('shown').hidden = false;
  }

  setSeries(name) {
    this.series = name;
    this.at = null;
    this.later();
  }

  // A held-out loss: {path, x, y, round}.
  mark(m) {
    this.marks.push(m);
    this.later();
  }

  setPaths(list, mixture) {
    this.paths = list;
    this.mixture = mixture;
    const both = new Set(list.map((p) => p.network)).size > 1;
    $('loss-of').hidden = !both;
    $('loss-network').options[0].textContent = mixture ? 'experts' : 'paths';
    if (!both) this.network = 'main';
    $('loss-network').value = this.network;
    this.later();
  }

  setNetwork(network) {
    this.network = network;
    this.at = null;
    this.later();
  }

  look(path) {
    if (this.looked === path) return;
    this.looked = path;
    this.later();
  }

  // The paths of the network that is shown.
  get shown() {
    return this.paths.filter((p) => p.network === this.network);
  }

  // Lines to draw: by path where there are several, else by replica.
  get groups() {
    const known = new Set(this.shown.map((p) => p.path)), groups = new Map();
    this.byPath = known.size > 1;
    for (const [key, points] of this.lines) {
      const [path, replica] = key.split('/').map(Number);
      if (!known.has(path)) continue;
      const name = this.byPath ? path : replica, own = this.valuesOf(points);
      if (own.length) groups.set(name, groups.has(name) ? groups.get(name).concat(own) : own);
    }
    return new Map([...groups].sort((a, b) => a[0] - b[0]));
  }

  valuesOf(points) {
    if (!this.series) return points;
    return points.filter((p) => p.numbers && Object.hasOwn(p.numbers, this.series)).map((p) => ({x: p.x, y: p.numbers[this.series]}));
  }

  // Held-out points: of the path that is looked at, else the mean of all, weighed by what each is judged by.
  get evals() {
    if (this.series) return [];
    const known = new Map(this.shown.map((p) => [p.path, p.holdout || 1]));
    if (this.byPath && known.has(this.looked)) return this.marks.filter((m) => m.path === this.looked).sort((a, b) => a.x - b.x);
    const rounds = new Map();
    for (const m of this.marks) {
      if (!known.has(m.path)) continue;
      const w = known.get(m.path), r = rounds.get(m.round) || {x: m.x, sum: 0, weight: 0, round: m.round};
      r.sum += w * m.y;
      r.weight += w;
      r.x = Math.max(r.x, m.x);
      rounds.set(m.round, r);
    }
    return [...rounds.values()].map((r) => ({x: r.x, y: r.sum / r.weight, round: r.round})).sort((a, b) => a.x - b.x);
  }

  setLog(on) {
    this.log = on;
    this.later();
  }

  later() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  scales(data, evals) {
    let lo = Infinity, hi = -Infinity;
    const take = (y) => { // of many paths there are more than a call may have arguments
      lo = Math.min(lo, y);
      hi = Math.max(hi, y);
    };
    for (const b of data.bins) {
      take(b.mean);
      b.by.forEach(take);
    }
    for (const e of evals) take(e.y);
    const log = this.log && lo > 0;
    if (hi - lo < 1e-9 * Math.abs(hi) || hi === lo) {
      hi += Math.abs(hi) * 0.05 || 0.5;
      lo -= Math.abs(lo) * 0.05 || 0.5;
    }
    if (log) {
      const pad = (hi / lo) ** 0.04;
      lo /= pad;
      hi *= pad;
    } else {
      const pad = (hi - lo) * 0.05;
      lo = lo >= 0 ? Math.max(0, lo - pad) : lo - pad;
      hi += pad;
    }
    const f = log ? Math.log : (v) => v;
    const {width, height} = this.size;
    const w = width - PAD.left - PAD.right, h = height - PAD.top - PAD.bottom;
    this.x = (v) => PAD.left + ((v - data.lo) / (data.hi - data.lo)) * w;
    this.y = (v) => PAD.top + h - ((f(v) - f(lo)) / (f(hi) - f(lo))) * h;
    return {lo, hi, log};
  }

  axes(root, data, range) {
    const {width, height} = this.size;
    for (const v of ticks(range.lo, range.hi, Math.max(3, height / 42), range.log)) {
      const y = this.y(v);
      root.append(svg('line', {class: 'gridline', x1: PAD.left, x2: width - PAD.right, y1: y, y2: y}));
      const text = svg('text', {x: PAD.left - 8, y: y + 4, 'text-anchor': 'end'});
      text.textContent = label(v);
      root.append(text);
    }
    for (const v of ticks(data.lo, data.hi, Math.max(2, width / 130), false, 1)) {
      const text = svg('text', {x: this.x(v), y: height - 7, 'text-anchor': this.x(v) > width - 40 ? 'end' : 'middle'});
      text.textContent = v === 0 ? 'step 0' : number(v);
      root.append(text);
    }
  }

  // One point is a dot.
  line(points) {
    return points.map(([x, y], i) => `${i ? 'L' : 'M'}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join('') + (points.length === 1 ? 'h0' : '');
  }

  // There along the highest, back along the lowest.
  band(bins) {
    const high = bins.map((b) => [b.x, Math.max(...b.by.values())]), low = bins.map((b) => [b.x, Math.min(...b.by.values())]);
    return bins.length ? `${this.line(high)}L${this.line(low.reverse()).slice(1)}Z` : '';
  }

  // The numbers of the paths, where their lines end.
  tags(root, bins) {
    const ends = this.names.map((name) => {
      const last = bins.findLast((b) => b.by.has(name));
      return {name, x: this.x(last.x), y: this.y(last.by.get(name)) + 4};
    }).sort((a, b) => a.y - b.y);
    ends.forEach((e, i) => (e.y = i ? Math.max(e.y, ends[i - 1].y + TAG) : e.y));
    let below = this.size.height - PAD.bottom + TAG;
    for (const e of ends.reverse()) {
      below = Math.min(e.y, below - TAG);
      const text = svg('text', {class: 'tag', x: e.x + 6, y: below});
      text.textContent = e.name;
      root.append(text);
    }
  }

  draw() {
    const rect = this.box.getBoundingClientRect();
    this.size = {width: rect.width, height: rect.height};
    if (rect.width < 10) return;
    const groups = this.groups, evals = this.evals, data = bin(groups, evals);
    this.bins = data.bins;
    this.names = [...groups.keys()];
    this.points = evals;
    if (!data.bins.length && !evals.length) {
      this.box.replaceChildren(el('p', {class: 'nothing'}, 'Loss appears here with the first training steps.'));
      this.readout.replaceChildren();
      this.box.setAttribute('aria-label', 'Loss over steps: nothing yet');
      return;
    }
    const root = svg('svg', {viewBox: `0 0 ${rect.width} ${rect.height}`, 'aria-hidden': 'true'});
    this.axes(root, data, this.scales(data, evals));
    this.crowded = groups.size > LINES;
    if (this.crowded) root.append(svg('path', {class: 'band', d: this.band(data.bins)}));
    if (groups.size > 1)
      this.names.filter((name) => !this.crowded || (this.byPath && name === this.looked)).forEach((name) => {
        const points = data.bins.filter((b) => b.by.has(name)).map((b) => [b.x, b.by.get(name)]);
        const line = svg('path', {class: `replica${this.byPath && name === this.looked ? ' on' : ''}`, d: this.line(points)});
        line.style.setProperty('--lane', this.color(name));
        line.setAttribute('stroke-dasharray', dashes(name));
        root.append(line);
      });
    if (this.byPath && groups.size > 1 && groups.size <= NAMED) this.tags(root, data.bins);
    root.append(svg('path', {class: 'mean', d: this.line(data.bins.map((b) => [b.x, b.mean]))}));
    root.classList.toggle('alone', data.bins.length === 1);
    const on = root.querySelector('.replica.on');
    if (on) root.append(on); // in front
    root.classList.toggle('looking', !!on);
    root.append(svg('path', {class: 'eval', d: this.line(evals.map((e) => [e.x, e.y]))}));
    for (const e of evals) root.append(svg('circle', {class: 'eval-dot', r: evals.length > 60 ? 2.5 : 4, cx: this.x(e.x), cy: this.y(e.y)}));
    this.cross = svg('g');
    root.append(this.cross);
    this.box.replaceChildren(root);
    this.hover(this.at !== null && this.at < this.bins.length ? this.at : null);
    const last = data.bins[data.bins.length - 1];
    this.box.setAttribute('aria-label', `${this.series || 'Loss'} over steps: ${last ? `${loss(last.mean)} at step ${number(last.x)}` : 'held-out points only'}. `
      + 'Left and right arrow keys read values.');
  }

  point(px) {
    if (!this.bins || !this.bins.length) return;
    let best = 0;
    for (let i = 1; i < this.bins.length; i++)
      if (Math.abs(this.x(this.bins[i].x) - px) < Math.abs(this.x(this.bins[best].x) - px)) best = i;
    this.hover(best);
  }

  press(e) {
    const n = this.bins ? this.bins.length : 0;
    const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -n, End: n}[e.key];
    if (!step || !n) return;
    e.preventDefault();
    this.hover(Math.max(0, Math.min(n - 1, (this.at === null ? n - 1 : this.at + step))));
  }

  hover(at) {
    this.at = at;
    if (!this.cross) return;
    this.cross.replaceChildren();
    if (at === null || !this.bins[at]) {
      this.legend();
      return;
    }
    const b = this.bins[at], x = this.x(b.x);
    this.cross.append(svg('line', {class: 'cross', x1: x, x2: x, y1: PAD.top, y2: this.size.height - PAD.bottom}),
      svg('circle', {class: 'hot', r: 4, cx: x, cy: this.y(b.mean)}));
    const parts = [el('span', {}, 'step ', el('b', {}, number(b.x))), el('span', {}, 'mean ', el('b', {}, loss(b.mean)))];
    if (b.by.size > 1) parts.push(...this.values(b));
    const evals = this.points.filter((e) => e.x <= b.x + 1e-9);
    if (evals.length) parts.push(el('span', {}, 'held-out ', el('b', {}, loss(evals[evals.length - 1].y))));
    this.readout.replaceChildren(...parts);
  }

  // All lines while they are few, else the lowest and the highest and the one that is looked at.
  values(b) {
    const all = [...b.by].sort((x, y) => x[0] - y[0]);
    let some = all;
    if (all.length > NAMED) {
      const sorted = [...all].sort((x, y) => x[1] - y[1]);
      some = [...new Set([...sorted.slice(0, 3), ...sorted.slice(-3), ...all.filter(([name]) => this.byPath && name === this.looked)])];
    }
    const parts = some.map(([name, v]) => el('span', {}, this.key(name), `${this.name(name)} `, el('b', {}, loss(v))));
    if (some.length < all.length) parts.push(el('span', {}, `${all.length - some.length} between`));
    return parts;
  }

  color(name) {
    return lane(this.byPath ? name : name % 8, this.byPath ? this.shown.length : 8);
  }

  name(name) {
    return this.byPath ? `${this.mixture ? 'expert' : 'path'} ${name}` : `replica ${name}`;
  }

  key(name) {
    const key = svg('svg', {class: 'key lane', viewBox: '0 0 24 8', 'aria-hidden': 'true'},
      svg('path', {d: 'M0 4H24', 'stroke-dasharray': dashes(name)}));
    key.style.setProperty('--lane', this.color(name));
    return key;
  }

  legend() {
    const many = this.names.length > 1, parts = [];
    if (this.bins.length) parts.push(el('span', {}, el('i', {class: 'key'}), many ? 'mean' : this.series || 'training loss'));
    if (this.crowded) {
      parts.push(el('span', {}, el('i', {class: 'key wide'}), `lowest to highest of ${this.names.length} ${this.byPath ? (this.mixture ? 'experts' : 'paths') : 'replicas'}`));
      if (this.byPath && this.names.includes(this.looked)) parts.push(el('span', {}, this.key(this.looked), this.name(this.looked)));
    } else if (this.byPath) {
      for (const name of this.names.slice(0, NAMED)) parts.push(el('span', {}, this.key(name), this.name(name)));
      if (this.names.length > NAMED) parts.push(el('span', {}, `and ${this.names.length - NAMED} more`));
    } else if (many) {
      parts.push(el('span', {}, el('i', {class: 'key thin'}), `${this.names.length} replicas`));
    }
    if (this.points.length)
      parts.push(el('span', {}, el('i', {class: 'key eval'}), this.byPath && this.shown.some((p) => p.path === this.looked) ? `held-out, ${this.name(this.looked)}` : 'held-out'));
    this.readout.replaceChildren(...parts);
  }
}

// A line without axes for the last values of something.
export function spark(node, values) {
  const w = 72, h = 20, hi = Math.max(...values, 1e-9);
  const step = values.length > 1 ? w / (values.length - 1) : w;
  const d = values.map((v, i) => `${i ? 'L' : 'M'}${(i * step).toFixed(1)} ${(h - 1.5 - (v / hi) * (h - 3)).toFixed(1)}`).join('');
  let path = node.firstElementChild;
  if (!path) node.append((path = svg('path')));
  path.setAttribute('d', values.length > 1 ? d : '');
}
