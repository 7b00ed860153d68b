// The panels of the page: each function draws one from plain data.
import {$, el, svg, setText, sync, bar, bytes, compact, digits, number, dollars, duration, age, loss, rate, plural, clock, command, DASH} from './util.js';
import {spark} from './chart.js';

export const OVER = new Set(['done', 'failed', 'cancelled']);

const JOB_TONE = {running: 'sea', finishing: 'sea', done: 'ok', failed: 'bad', cancelled: 'warn', ingesting: 'sea', initialising: 'sea',
  encoding: 'sand', features: 'sand', scoring: 'sand', clustering: 'sand', splitting: 'sand'};
const WORKER_TONE = {busy: 'sea', idle: 'ok', late: 'warn', draining: 'warn', quarantined: 'bad', lost: 'bad'};
const TASK_TONE = {leased: 'sea', reported: 'ok', done: 'ok', failed: 'bad'};

function pill(node, text, tone) {
  setText(node, text);
  node.dataset.tone = tone || '';
}

// ---- the job ----

function phaseFraction(job) {
  const open = job.phases.filter((p) => p.steps_total > 0 && p.state !== 'idle' && p.state !== 'reported');
  const all = job.phases.length;
  if (!all) return 0;
  const reported = job.phases.filter((p) => p.state === 'reported').length;
  return (reported + open.reduce((sum, p) => sum + p.steps_done / p.steps_total, 0)) / all;
}

function stat(name, value) {
  return {name, value};
}

// What a job goes through when its data are cut into partitions, in words.
const STAGES = {
  ingesting: ['Ingest', 'archives are read'], encoding: ['Latents', 'shards are encoded'],
  initialising: ['Version 0', ''],
  features: ['Features', 'shards have their features'], scoring: ['Scores', 'shards are scored by the paths'],
  clustering: ['Clusters', ''], splitting: ['Split', 'groups of shards are cut by partition'],
  running: ['Training', ''], finishing: ['Finish', ''],
};

function stages(job) {
  const cut = job.partitions.length > 0 || job.state === 'features';
  const again = job.state === 'scoring' || (job.generation > 0 && (job.state === 'clustering' || job.state === 'splitting'));
  const names = again ? ['scoring', 'clustering', 'splitting', 'running', 'finishing']
    : [...(['ingesting', 'encoding'].includes(job.state) ? [job.state] : []), 'initialising', 'features', 'clustering', 'splitting', 'running', 'finishing'];
  const at = names.indexOf(job.state), {done, total} = job.stage;
  $('stage').hidden = OVER.has(job.state) || (!cut && total < 2);
  if ($('stage').hidden) return;
  $('stages').hidden = !cut;
  sync($('stages'), cut ? names : [], (n) => n, (n) => el('li', {}, STAGES[n][0]), (node, n) => {
    const i = names.indexOf(n);
    node.dataset.at = i < at ? 'past' : i === at ? 'now' : 'next';
    if (i === at) node.setAttribute('aria-current', 'step');
    else node.removeAttribute('aria-current');
  });
  const box = $('stage-bar');
  box.hidden = total < 2;
  bar($('stage-done'), total ? done / total : 0);
  box.setAttribute('aria-valuemax', total);
  box.setAttribute('aria-valuenow', done);
  const what = (STAGES[job.state] || ['', ''])[1];
  setText($('stage-text'), total > 1 ? `${number(done)} of ${number(total)} ${what}` : '');
  $('stage-text').hidden = total < 2;
}

export function hero(job, etaLeft) {
  setText($('job-name'), job.name);
  pill($('job-state'), job.paused ? 'paused' : job.state, job.paused ? 'warn' : JOB_TONE[job.state]);
  setText($('job-reason'), job.paused ? job.stalled : job.stalled ? `Stalled: ${job.stalled}` : job.reason);
  const now = OVER.has(job.state) ? 0 : Math.min(phaseFraction(job), 1);
  bar($('bar-done'), job.rounds ? job.round / job.rounds : 0);
  bar($('bar-now'), job.rounds && job.round < job.rounds ? now / job.rounds : 0);
  const progress = $('bar');
  progress.setAttribute('aria-valuemax', job.rounds);
  progress.setAttribute('aria-valuenow', job.round);
  progress.setAttribute('aria-valuetext', job.rounds ? `${job.round} of ${job.rounds} rounds` : 'rounds: not known');
  setText($('bar-left'), !job.rounds ? 'rounds: not known' : `${number(job.round)} of ${plural(job.rounds, 'round')}`
    + (now > 0 ? `, ${Math.round(now * 100)} % of the next` : ''));
  setText($('bar-right'), OVER.has(job.state) ? `ran for ${duration(job.elapsed_ms)}`
    : etaLeft === null ? '' : `about ${duration(etaLeft)} left`);
  stages(job);
  setText($('job-file'), job.spec);
  const each = job.text ? job.cost.per_million_tokens : job.cost.per_million_samples;
  const stats = [
    stat('Loss', loss(job.loss)),
    stat('Held-out loss', loss(job.eval_loss)),
    ...(job.text ? [stat('Bits per byte', loss(job.bits_per_byte))] : []),
    stat(job.text ? 'Rows/s' : 'Images/s', rate(job.images_per_s)),
    stat('Step', job.total_steps ? `${number(job.step)} / ${compact(job.total_steps)}` : number(job.step)),
    ...(OVER.has(job.state) ? [] : [stat('Running for', duration(job.elapsed_ms))]), // then the bar says it
    stat(job.paths > 1 ? 'Parameters of a path' : 'Parameters', compact(job.parameters || null)),
    stat(job.paths > 1 ? 'Paths × replicas' : 'Replicas', job.paths > 1 ? `${job.paths} × ${job.replicas}` : number(job.replicas)),
    ...(job.cost.total > 0 ? [stat('Cost so far', dollars(job.cost.total))] : []),
    ...(job.cost.waiting > 0 ? [stat('Of it waiting', dollars(job.cost.waiting))] : []),
    ...(each > 0 ? [stat(`Cost of a million ${job.text ? 'tokens' : 'images'}`, dollars(each))] : []),
    ...(job.cost.until_end > 0 ? [stat('Cost until the end', dollars(job.cost.until_end))] : []),
    ...(job.network.waited_ms >= 1000 ? [stat('Waited for network', duration(job.network.waited_ms))] : []),
  ];
  sync($('stats'), stats, (s) => s.name,
    (s) => el('div', {}, el('dt', {}, s.name), el('dd')),
    (node, s) => setText(node.lastChild, s.value));
}

// ---- waiting, epochs ----

export function waiting(list, empty, passed) {
  const items = list.map((w, i) => ({...w, i, left: w.until_ms === null ? null : Math.max(0, w.until_ms - passed)}));
  if (!items.length) {
    $('waiting').replaceChildren(el('li', {class: 'none'}, empty));
    return;
  }
  sync($('waiting'), items, (w) => w.i,
    () => el('li', {}, el('b'), el('time', {title: 'When this time has passed, something is done about it.'}), el('p')),
    (node, w) => {
      setText(node.children[0], w.what);
      setText(node.children[1], w.left === null ? '' : w.left > 0 ? `within ${duration(w.left)}` : 'now');
      setText(node.children[2], w.why);
    });
}

export function epochs(list) {
  const box = $('epochs');
  if (!list.length) {
    box.replaceChildren(el('p', {class: 'faint'}, 'No sample has been handed out yet.'));
    return;
  }
  const partitions = new Set(list.map((e) => e.partition)).size > 1;
  // Of one ledger its last epochs, of many the newest of each.
  const newest = new Map(list.map((e) => [e.partition, e]));
  const shown = partitions ? [...newest.values()].sort((a, b) => (a.partition ?? -1) - (b.partition ?? -1)) : list.slice(-4).reverse();
  const items = shown.concat([{legend: true}]);
  sync(box, items, (e) => (e.legend ? 'legend' : `${e.partition}/${e.epoch}`),
    (e) => e.legend
      ? el('p', {class: 'legend'}, ...['done', 'leased', 'pending'].map((k) => el('span', {}, el('i', {class: `swatch ${k}`}), k)))
      : el('div', {class: 'epoch'}, el('p', {}, el('span'), el('span', {class: 'faint'})),
        el('div', {class: 'stack', role: 'img'}, el('i', {class: 'done'}), el('i', {class: 'leased'}))),
    (node, e) => {
      if (e.legend) return;
      const [title, figures] = node.firstChild.children, [done, leased] = node.lastChild.children;
      const of = !partitions ? 'Epoch' : e.partition === null ? 'All the data, epoch' : `Partition ${e.partition}, epoch`;
      setText(title, `${of} ${e.epoch + 1}`);
      const text = `${number(e.done)} done, ${number(e.leased)} leased, ${number(e.pending)} pending`;
      setText(figures, `${number(e.done)} of ${number(e.total)}`);
      node.lastChild.setAttribute('aria-label', text);
      node.title = text;
      bar(done, e.total ? e.done / e.total : 0);
      bar(leased, e.total ? e.leased / e.total : 0);
    });
}

// ---- workers ----

const speeds = new Map(); // worker id -> the last images/s

export function noteSpeed(worker) {
  let list = speeds.get(worker.id);
  if (!list) speeds.set(worker.id, (list = []));
  list.push(worker.images_per_s || 0);
  if (list.length > 60) list.shift();
}

function workerRow() {
  const n = () => el('td', {class: 'n'});
  return el('tr', {},
    el('td', {}, el('span', {class: 'strong'}), el('span', {class: 'sub2'})),
    el('td', {}, el('span', {class: 'pill'})),
    el('td', {}, el('span'), el('span', {class: 'sub2'}), el('div', {class: 'mini'}, el('i'))),
    el('td', {}, el('span'), el('span', {class: 'sub2'}), el('span', {class: 'sub2'})),
    el('td', {class: 'n'}, svg('svg', {class: 'spark', viewBox: '0 0 72 20', 'aria-hidden': 'true'}), el('span')),
    el('td', {class: 'n'}, el('span'), el('span', {class: 'sub2'})),
    n(), n(), n(), n(), n());
}

const sum = (list, key) => list.reduce((s, d) => s + (d[key] || 0), 0);
const most = (list, key) => list.reduce((m, d) => (d[key] !== null && (m === null || d[key] > m) ? d[key] : m), null);

// What of a device a person should look at.
function deviceWarning(d) {
  return [d.trouble, d.throttled && `held down: ${d.throttled}`, d.ecc_errors && plural(d.ecc_errors, 'memory error')].filter((t) => t).join(', ');
}

function deviceFacts(list) {
  const known = list.filter((d) => d.utilization !== null), total = sum(list, 'memory_total');
  const hottest = most(list, 'temperature'), power = sum(list, 'power');
  return [
    known.length ? `${Math.round(sum(known, 'utilization') / known.length)} % busy` : '',
    total ? `${bytes(sum(list, 'memory_used'))} of ${bytes(total)}` : '',
    [hottest === null ? '' : `${hottest} °C`, power ? `${number(power)} W` : ''].filter((t) => t).join(', '),
  ];
}

// One line for all devices of a worker; each of them on its own when pointed at.
function workerDevices(cell, w, away) {
  const list = away ? [] : w.devices, [busy, memory, heat] = deviceFacts(list);
  setText(cell.children[0], busy || (list.length ? '' : DASH));
  setText(cell.children[1], [memory, heat].filter((t) => t).join(' · '));
  const warnings = list.map((d) => ({name: d.name, text: deviceWarning(d)})).filter((x) => x.text);
  setText(cell.children[2], warnings.map((x) => (list.length > 1 ? `${x.name} ${x.text}` : x.text)).join('; '));
  cell.children[2].classList.toggle('hot-text', list.some((d) => d.trouble || d.ecc_errors));
  cell.title = list.map((d) => [`${d.name} ${d.model}`, ...deviceFacts([d]), deviceWarning(d)].filter((t) => t).join(', ')).join('\n');
}

function workerFlops(cell, w) {
  setText(cell.children[0], w.flops ? compact(w.flops) : DASH);
  setText(cell.children[1], w.mfu === null ? '' : `${(w.mfu * 100).toFixed(w.mfu < 0.1 ? 1 : 0)} % of peak`);
  cell.title = w.peak_flops ? `Model FLOP/s of its newest phase; products reach ${compact(w.peak_flops)}FLOP/s on its devices` : '';
}

function workerUpdate(row, w, passed) {
  const [name, state, doing, device, speed, flops, newest, up, down, beat, strikes] = row.children;
  const away = w.state === 'lost' || w.state === 'left';
  row.className = away ? 'away' : '';
  setText(name.children[0], w.name);
  setText(name.children[1], `#${w.id} · ${w.device}`);
  pill(state.firstChild, w.state, WORKER_TONE[w.state]);
  state.firstChild.title = w.reason;
  setText(doing.children[0], w.task && !away ? w.activity || w.task_kind || '' : w.reason || (away ? '' : 'waits for a task'));
  const where = w.task_kind === 'train' ? `path ${w.path}, replica ${w.replica}` : w.task_kind || '';
  setText(doing.children[1], w.task && !away ? where + (w.steps_total ? ` · ${number(w.steps_done)} of ${number(w.steps_total)}` : '') : '');
  doing.lastChild.hidden = !w.task || away || !w.steps_total;
  bar(doing.lastChild.firstChild, w.steps_total ? w.steps_done / w.steps_total : 0);
  workerDevices(device, w, away);
  const seen = speeds.get(w.id) || [];
  spark(speed.firstChild, seen.some((v) => v > 0) && !away ? seen : []);
  setText(speed.lastChild, rate(w.images_per_s));
  workerFlops(flops, w);
  setText(newest, loss(w.loss));
  for (const [cell, way] of [[up, 'up'], [down, 'down']]) {
    setText(cell, bytes(w.bytes.data[way] + w.bytes.control[way]));
    cell.title = `data ${bytes(w.bytes.data[way])}, control ${bytes(w.bytes.control[way])}`;
  }
  const silent = w.heartbeat_age_ms === null ? null : w.heartbeat_age_ms + passed;
  setText(beat, away ? `${duration(silent)} ago` : age(silent));
  beat.classList.toggle('hot-text', w.state === 'late' || w.state === 'lost');
  setText(strikes, number(w.strikes));
  strikes.classList.toggle('hot-text', w.strikes > 0);
}

export function workers({workers: list, workers_count: all}, passed, joinCommand, unit) {
  setText($('workers-rate'), unit === 'rows' ? 'Rows/s' : 'Images/s');
  const rank = ({state}) => ({quarantined: 0, late: 0, draining: 0, lost: 2, left: 2})[state] ?? 1;
  const sorted = [...list].sort((a, b) => rank(a) - rank(b) || a.id - b.id);
  sync($('workers'), sorted, (w) => w.id, workerRow, (row, w) => workerUpdate(row, w, passed));
  const more = all.known - list.length;
  setText($('workers-sum'), list.length ? `${number(all.here)} here, ${number(all.busy)} at work`
    + (all.images_per_s ? `, ${rate(all.images_per_s)} ${unit}/s` : '') + (more > 0 ? `; \`skerry workers\` lists ${number(more)} more` : '') : '');
  $('workers').closest('.scroll').hidden = !list.length;
  const empty = $('workers-empty');
  empty.hidden = list.length > 0;
  if (!list.length && !empty.firstChild)
    empty.append(...(joinCommand ? [el('p', {}, 'No worker has joined. On each machine that shall compute, run:'), command('workerd --join …', joinCommand)]
      : [el('p', {}, 'No worker has joined.')]));
}

// ---- tasks ----

function pathName(job, path) {
  const p = job.path_list.find((q) => q.path === path);
  return p && p.network === 'router' ? 'router' : `${job.mixture ? 'expert' : 'path'} ${path}`;
}

function taskName(job, t) {
  if (t.kind === 'eval' || t.kind === 'sample' || t.kind === 'score' || t.kind === 'velocity')
    return t.mixture ? `${t.kind} of the mixture` : job.path_list.length > 1 ? `${t.kind}, ${pathName(job, t.path)}` : t.kind;
  return t.kind;
}

export function tasks(job, open) {
  const items = job.phases.map((p) => ({
    key: `p${p.path}/${p.replica}`, state: p.state, worker: p.worker_name, done: p.steps_done, total: p.steps_total, loss: p.loss,
    name: (job.path_list.length > 1 ? `${pathName(job, p.path)}, ` : '') + `replica ${p.replica}`, more: `round ${p.round}` + (p.task ? ` · task ${p.task}` : ''),
  })).concat(open.filter((t) => t.kind !== 'train').map((t) => ({
    key: `t${t.id}`, state: t.state, worker: t.worker_name, done: t.steps_done, total: t.steps_total, loss: t.loss, name: taskName(job, t),
    more: `task ${t.id}` + (t.reason ? ` · ${t.reason}` : ''),
  })));
  // Phases say nothing while the data are being cut, nor at the end.
  const shown = (job.state === 'running' ? items : items.filter((i) => i.key[0] === 't')).slice(0, 200);
  sync($('tasks'), shown, (t) => t.key,
    () => el('tr', {}, el('td', {}, el('span', {class: 'strong'}), el('span', {class: 'sub2'})), el('td', {}, el('span', {class: 'pill'})),
      el('td'), el('td', {}, el('span'), el('div', {class: 'mini'}, el('i'))), el('td', {class: 'n'})),
    (row, t) => {
      const c = row.children;
      setText(c[0].children[0], t.name);
      setText(c[0].children[1], t.more);
      pill(c[1].firstChild, t.state, TASK_TONE[t.state]);
      setText(c[2], t.worker || DASH);
      setText(c[3].firstChild, t.state === 'reported' ? 'sent' : t.total ? `${number(t.done)} / ${number(t.total)}` : t.done ? number(t.done) : '');
      bar(c[3].lastChild.firstChild, t.state === 'reported' ? 1 : t.total ? t.done / t.total : 0);
      setText(c[4], loss(t.loss));
    });
  const reported = job.phases.filter((p) => p.state === 'reported').length;
  setText($('round-sum'), (job.state === 'running' ? `${reported} of ${job.phases.length} contributions ${reported === 1 ? 'is' : 'are'} in` : ''));
  $('tasks').closest('section').hidden = OVER.has(job.state) && !shown.length;
  $('tasks').closest('.scroll').hidden = !shown.length;
  $('tasks-empty').hidden = shown.length > 0;
}

// ---- modules, bytes, log ----

export function modules(list) {
  sync($('modules'), list, (m) => m.id,
    () => el('tr', {}, el('td', {class: 'strong'}), el('td', {class: 'n'}), el('td', {class: 'mono'}), el('td', {class: 'n'}), el('td')),
    (row, m) => {
      const c = row.children;
      setText(c[0], `${m.network === 'router' ? 'router ' : ''}${m.level},${m.index}`);
      setText(c[1], m.version === null ? DASH : number(m.version));
      setText(c[2], m.sha256 ? m.sha256.slice(0, 12) : DASH);
      c[2].title = m.sha256 || '';
      setText(c[3], compact(m.parameters || null));
      setText(c[4], m.outer + (m.reason ? `: ${m.reason}` : ''));
    });
  $('modules').closest('.scroll').hidden = !list.length;
  $('modules-empty').hidden = list.length > 0;
}

export function wire(status, job) {
  const ratio = job.bytes.ratio;
  const times = ratio ? 1 / ratio : null; // fewer
  setText($('ratio'), times === null ? DASH : `${times >= 99.5 ? number(times) : digits(times, 2)}×`);
  setText($('ratio-text'), times === null ? 'against fp32 data-parallel training: known after the first round'
    : 'fewer parameter bytes than fp32 data-parallel training');
  const rows = [];
  const per = (x) => (x === null ? '' : ` · ${x.toFixed(3)} B per parameter and round`);
  rows.push({name: 'Contributions up', n: job.bytes.up, more: per(job.bytes.per_param_up), plane: ''});
  rows.push({name: 'Versions down', n: job.bytes.down, more: per(job.bytes.per_param_down), plane: ''});
  rows.push({name: 'Data shards down', n: job.bytes.data_down, more: '', plane: 'data'});
  rows.push({name: 'Control plane, all jobs', n: status.bytes.control.up + status.bytes.control.down,
    more: ` · ${bytes(status.bytes.control.up)} up`, plane: 'control'});
  const most = Math.max(...rows.map((r) => r.n), 1);
  sync($('bytes'), rows, (r) => r.name,
    (r) => el('div', {}, el('p', {}, el('span', {}, r.name), el('span')), el('div', {class: `mini ${r.plane}`}, el('i'))),
    (node, r) => {
      setText(node.firstChild.lastChild, bytes(r.n) + r.more);
      bar(node.lastChild.firstChild, r.n / most);
    });
}

export function log(list) {
  sync($('log'), list.slice(-200).reverse(), (e) => `${e.n} ${e.text}`, // another coordinator counts anew
    (e) => el('li', {}, el('time', {datetime: e.at}), el('span', {}, e.text)),
    (node, e) => setText(node.firstChild, clock(e.at)));
  $('log').hidden = !list.length;
  $('log-empty').hidden = list.length > 0;
}

export function welcome(status, joinCommand) {
  const card = $('welcome');
  card.hidden = status.jobs.length > 0;
  if (card.hidden || !joinCommand || $('welcome-steps').firstChild) return; // a viewer waits until somebody has done so
  $('welcome-steps').append(
    el('li', {}, el('div', {}, el('strong', {}, 'Add workers'), ' on every machine that shall compute. The command holds a secret; newcomers may use it for a day.',
      command('workerd --join …', joinCommand))),
    el('li', {}, el('div', {}, el('strong', {}, 'Write a job file'), ' that fits your data and this machine: images, captioned images (--captions) or text (--text).',
      command('skerry new NAME --images DIR'))),
    el('li', {}, el('div', {}, el('strong', {}, 'Submit it'), ' and watch this page.', command('skerry submit NAME.yaml'))));
}
