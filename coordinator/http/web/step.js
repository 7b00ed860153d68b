// A step on the devices of a worker: the picture that the coordinator draws of it, taken over into
// the page, and what was planned and measured.
import {$, el, setText, sync, digits, number, plural, DASH} from './util.js';

let shown = null; // the task whose step is drawn
let at = null;    // the bar that is looked at

const percent = (x) => (x === null ? DASH : `${Math.round(100 * x)} %`);
const seconds = (x) => (x === null ? DASH : `${digits(x, 3)} s`);
const bars = () => [...$('step-chart').querySelectorAll('.instr')];
const row = (bar) => Number(bar.getAttribute('y'));
const left = (bar) => Number(bar.getAttribute('x'));
const lane = (y) => [...$('step-chart').querySelectorAll('.device')].find((t) => Number(t.dataset.row) === y);

const SCHEDULES = {data: 'data parallelism', '1f1b': '1F1B', split: 'split backward', bidirectional: 'bidirectional', joined: 'joined', divided: 'divided'};

function facts(plan) {
  if (!plan) return [];
  const pipeline = plan.stages > 1;
  return [
    ['Schedule', SCHEDULES[plan.schedule] || DASH],
    ['Stages × copies', pipeline ? `${plan.stages} × ${plan.copies}` : `1 × ${plan.copies}`],
    ...(plan.widest_stage > 1 ? [['Devices', `${number(plan.devices)}, up to ${plan.widest_stage} a stage`]] : []),
    ...(pipeline ? [['Micro-batches', number(plan.micro_batches)],
      ['Bubbles', plan.filled_with ? `${percent(plan.idle_before)}, filled ${percent(plan.idle)}` : percent(plan.idle_before)]] : []),
    ...(plan.filled_with ? [['Filled with', `encoders of ${plan.filled_with}`], ['Of their work inside', percent(plan.inside)]] : []),
    ['A step, predicted', seconds(plan.predicted_s)],
    ['Measured', seconds(plan.measured_s)],
  ];
}

function look(bar) {
  if (at) at.classList.remove('at');
  at = bar;
  if (!bar) {
    setText($('step-readout'), bars().length ? 'Point at a bar, or walk along them with the arrow keys.' : '');
    return;
  }
  bar.classList.add('at');
  const device = lane(row(bar));
  setText($('step-readout'), `${device ? `${device.textContent}: ` : ''}${bar.querySelector('title').textContent}`);
}

// Along a device with left and right, to what another one does at that time with up and down.
function press(e) {
  const all = bars(), here = at ? all.filter((b) => row(b) === row(at)) : all;
  if (!all.length) return;
  const i = here.indexOf(at), last = here.length - 1;
  const rows = [...new Set(all.map(row))].sort((a, b) => a - b);
  const beside = (step) => {
    const there = all.filter((b) => row(b) === rows[rows.indexOf(row(at)) + step]);
    const gap = (b) => Math.abs(left(b) - left(at));
    return there.reduce((best, b) => (!best || gap(b) < gap(best) ? b : best), null) || at;
  };
  const to = {ArrowRight: () => here[Math.min(i + 1, last)], ArrowLeft: () => here[Math.max(i - 1, 0)], Home: () => here[0], End: () => here[last],
    ArrowDown: () => (at ? beside(1) : here[0]), ArrowUp: () => (at ? beside(-1) : here[0])}[e.key];
  if (!to) return;
  e.preventDefault();
  look(to());
  const box = $('step-chart'), edge = box.getBoundingClientRect(), where = at.getBoundingClientRect();
  if (where.left < edge.left || where.right > edge.right) box.scrollLeft += where.left - edge.left - edge.width / 2;
}

function takeOver(text) {
  const picture = new DOMParser().parseFromString(text, 'image/svg+xml').documentElement;
  if (picture.nodeName !== 'svg') return;
  picture.setAttribute('aria-hidden', 'true'); // the box has its name, and the readout says the rest
  $('step-chart').replaceChildren(document.importNode(picture, true));
  look(null);
}

// get(path) fetches; of a trace that is shown already nothing is.
export async function read(job, get) {
  if (!job.trace || job.trace.task === shown) return;
  const task = job.trace.task;
  try {
    takeOver(await (await get(`/v1/jobs/${job.id}/trace.svg`)).text());
  } catch (error) {
    if (error.status !== 404) throw error;
    $('step-chart').replaceChildren(); // what came is no trace
  }
  shown = task;
}

export function draw(job, workers) {
  $('step-card').hidden = !job.trace;
  if (!job.trace) return;
  const t = job.trace, worker = workers.find((w) => w.id === t.worker);
  setText($('step-of'), `${t.worker_name || 'a worker'}, round ${t.round}${job.path_list.length > 1 ? `, path ${t.path}` : ''}`
    + `${job.replicas > 1 ? `, replica ${t.replica}` : ''}`);
  const plan = worker ? worker.plan : null;
  $('step-chart').setAttribute('aria-label', `What ${plan ? plural(plan.devices, 'device') : 'the devices'} did in one step; arrow keys walk from bar to bar`);
  sync($('step-facts'), facts(plan), ([name]) => name, ([name]) => el('div', {}, el('dt', {}, name), el('dd')),
    (node, [, value]) => setText(node.lastChild, value));
}

export function start() {
  const box = $('step-chart');
  box.addEventListener('keydown', press);
  box.addEventListener('pointerover', (e) => e.target.classList.contains('instr') && look(e.target));
  box.addEventListener('click', (e) => e.target.classList.contains('instr') && look(e.target)); // a finger
}
