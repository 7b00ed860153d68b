// The page's state and how it is kept fresh: server-sent events tell that something changed, the
// API is then read (at most once a second).  Without events it is read every two seconds.
import {$, el, setText, bytes, duration, plural} from './util.js';
import {LossChart} from './chart.js';
import * as panels from './panels.js';
import * as paths from './paths.js';
import * as samples from './samples.js';
import * as step from './step.js';

const READ_MIN_MS = 1000;   // between two reads
const READ_LIVE_MS = 2000;  // at least so often with events: ages and speeds come by it
const READ_POLL_MS = 2000;  // without
const RETRY_MS = 3000;
const SILENT_MS = 10000;    // without a byte of an answer

const state = {
  status: null, job: null, open: [], log: [], chosen: null, lastMetric: 0,
  readAt: 0, live: false, gone: false, retryAt: 0,
  sampled: false, // the job's samples are complete
  logged: false, // the log is complete up to its last sentence
};
const chart = new LossChart($('chart'), $('readout'));

class LoggedOut extends Error {}

async function get(path) {
  const asked = new AbortController(), pieces = [];
  let silent;
  const listenOn = () => {
    clearTimeout(silent);
    silent = setTimeout(() => asked.abort(), SILENT_MS);
  };
  listenOn();
  try {
    const answer = await fetch(path, {headers: {Accept: 'application/json'}, cache: 'no-store', signal: asked.signal});
    if (answer.status === 401) throw new LoggedOut();
    if (!answer.ok) {
      const error = new Error(`${path} is answered with ${answer.status}`);
      error.status = answer.status;
      throw error;
    }
    for (const reader = answer.body.getReader(); ;) {
      listenOn();
      const {done, value} = await reader.read();
      if (done) return new Response(new Blob(pieces));
      pieces.push(value);
    }
  } finally {
    clearTimeout(silent);
  }
}

const getJson = async (path) => (await get(path)).json();

// Each has a token of its own, for newcomers of one day.
async function joinCommand() {
  const answer = await fetch('/v1/tokens', {method: 'POST', headers: {'Content-Type': 'application/json'},
    body: JSON.stringify({role: 'worker', life_s: 24 * 3600})});
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return `echo ${(await answer.json()).token} | workerd --join -`;
}

const operates = () => state.status.role === 'operator'; // others may only look
const join = () => (operates() ? joinCommand : null);

// ---- reading ----

const asked = () => Number(new URLSearchParams(location.hash.slice(1)).get('job')) || null; // the job of the address
const known = (jobs, id) => jobs.some((j) => j.id === id);

function choose(jobs) {
  if (asked() && known(jobs, asked())) return asked();
  const active = jobs.filter((j) => !panels.OVER.has(j.state));
  const newest = (list) => (list.length ? list[list.length - 1].id : null);
  return newest(active) || newest(jobs);
}

async function readMetrics(id) {
  for (;;) {
    const text = await (await get(`/v1/jobs/${id}/metrics?after=${state.lastMetric}`)).text();
    const lines = text.split('\n').filter((l) => l);
    if (state.chosen !== id) return;
    for (const line of lines) takeMetric(JSON.parse(line));
    if (!lines.length) return; // an answer is bounded in bytes, too
  }
}

function takeMetric(m) {
  if (m.n <= state.lastMetric) return;
  state.lastMetric = m.n;
  if (m.kind === 'loss') chart.add(m);
  else if (m.kind === 'eval' && m.step !== null && m.eval_loss !== null) chart.mark({path: m.path, x: m.step, y: m.eval_loss, round: m.round});
}

async function readJob() {
  const id = choose(state.status.jobs);
  if (id !== state.chosen) {
    state.chosen = id;
    state.job = null;
    state.sampled = false;
    state.lastMetric = 0;
    chart.clear();
  }
  if (id === null) return;
  const sampled = state.sampled && state.live; // without events nobody tells of new ones
  state.sampled = true;                        // until an event tells of another one
  const [job, leased, pending] = await Promise.all([getJson(`/v1/jobs/${id}?history=0${sampled ? '&samples=0' : ''}`),
    getJson(`/v1/tasks?job=${id}&state=leased`), getJson(`/v1/tasks?job=${id}&state=pending`)]);
  if (sampled) job.samples = state.job.samples;
  await readMetrics(id);
  await step.read(job, get);
  state.job = job;
  state.open = leased.items.concat(pending.items);
  chart.setPaths(job.path_list, job.mixture);
}

let reading = false;
async function read() {
  if (reading) return;
  reading = true;
  state.readAt = performance.now();
  let heard = false;
  try {
    const status = await getJson('/v1/status');
    heard = true;
    if (!state.logged || !state.live) {
      state.logged = true; // until a sentence is missed
      state.log = (await getJson('/v1/log')).items;
    }
    if (state.status && status.uptime_ms < state.status.uptime_ms) state.chosen = undefined; // another one: some points may not have outlived the one before
    state.status = status;
    status.workers.forEach(panels.noteSpeed);
    await readJob();
    state.freshAt = performance.now();
    back();
    draw();
  } catch (error) {
    state.sampled = false;
    if (error instanceof LoggedOut) location.reload();
    else if (error.status === 404) state.chosen = undefined; // the job went away between two reads
    else if (heard && error.name === 'AbortError') back(); // it is there, but what has not been written is not told
    else lost(error);
  } finally {
    reading = false;
  }
}

// ---- events ----

let source = null;
let wanted = false; // something changed since the last read

// Not while nobody looks: a browser has six connections to a host, and one page less for each that is kept.
function listen() {
  if (source || document.hidden) return;
  source = new EventSource('/v1/events');
  source.onopen = () => {
    state.live = true;
    state.logged = state.sampled = false; // nothing is sent again
    wanted = true;
    link();
  };
  source.onerror = () => {
    state.live = false;
    link();
    if (source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(listen, RETRY_MS);
    }
  };
  const on = (name, take) => source.addEventListener(name, (e) => take(JSON.parse(e.data)));
  for (const name of ['job', 'round']) on(name, () => (wanted = true));
  on('sample', () => {
    state.sampled = false;
    wanted = true;
  });
  on('worker', takeWorker);
  on('loss', (m) => m.job === state.chosen && state.job && m.n === state.lastMetric + 1 && takeMetric(m));
  on('log', (e) => {
    const last = state.log.length ? state.log[state.log.length - 1].n : 0;
    if (e.n > last + 1) {
      state.logged = false;
      wanted = true;
    }
    if (e.n !== last + 1) return; // it came with the others, or will
    state.log = state.log.concat(e).slice(-200);
    panels.log(state.log);
  });
}

function see() {
  if (!document.hidden) {
    read();
    listen();
  } else if (source) {
    source.close();
    source = null;
    state.live = false;
    link();
  }
}

function takeWorker(worker) {
  if (!state.status) return;
  const list = state.status.workers, i = list.findIndex((w) => w.id === worker.id);
  if (i < 0) {
    if (list.length === state.status.workers_count.known) wanted = true; // a newcomer; else one of those that are not shown
    return;
  }
  // Ages count from the last read: put the fresh one on the same footing.
  if (worker.heartbeat_age_ms !== null) worker.heartbeat_age_ms -= performance.now() - state.freshAt;
  if (worker.state !== list[i].state) wanted = true;
  list[i] = worker;
  panels.noteSpeed(worker);
}

// ---- the connection ----

function link() {
  const [name, text] = state.gone ? ['gone', 'no connection'] : state.live ? ['live', 'live'] : ['poll', 'polling'];
  $('link').dataset.state = name;
  setText($('link-text'), text);
}

function lost(error) {
  state.gone = true;
  state.logged = false;
  state.retryAt = performance.now() + RETRY_MS;
  state.why = error.status ? `It answers with an error (${error.status}).` : '';
  document.body.classList.add('gone');
  link();
  tick();
}

function back() {
  if (state.gone) wanted = true;
  state.gone = false;
  document.body.classList.remove('gone');
  link();
}

function banner() {
  const box = $('banner');
  const store = state.status && !state.status.store.ok ? state.status.store.error : '';
  const slow = state.status && state.status.store.writing_ms >= 1000 ? state.status.store.writing_ms : 0;
  const removed = state.status && asked() && !known(state.status.jobs, asked());
  box.hidden = !state.gone && !store && !slow && !removed;
  box.classList.toggle('warn', !state.gone);
  if (state.gone) {
    const s = Math.max(0, Math.ceil((state.retryAt - performance.now()) / 1000));
    setText(box, `The coordinator does not answer. ${state.why} What you see is ${state.status ? `${duration(performance.now() - state.freshAt)} old` : 'not there yet'}; `
      + (s ? `trying again in ${s} s.` : 'trying again …'));
  } else if (store) {
    setText(box, `The coordinator cannot write its state, so nothing moves on until it can: ${store}`);
  } else if (slow) {
    setText(box, `The coordinator's disk is slow: a commit has been under way for ${duration(slow)}. What you see is as it was before.`);
  } else if (removed) {
    setText(box, `Job ${asked()} is not on record here any more.${state.job ? ` What you see is job ${state.job.id}.` : ''}`);
  }
}

// ---- drawing ----

function header() {
  const s = state.status;
  setText($('cluster'), `cluster ${s.cluster.slice(0, 8)} · up ${duration(s.uptime_ms)}`);
  const select = $('job');
  const same = select.dataset.of === JSON.stringify(s.jobs.map((j) => [j.id, j.name, j.state, j.paused]));
  if (!same) {
    select.dataset.of = JSON.stringify(s.jobs.map((j) => [j.id, j.name, j.state, j.paused]));
    select.replaceChildren(...[...s.jobs].reverse().map((j) => el('option', {value: j.id}, `#${j.id} ${j.name} (${j.paused ? 'paused' : j.state})`)));
  }
  select.disabled = s.jobs.length === 0;
  if (state.chosen) select.value = String(state.chosen);
  setText($('foot'), `Skerry ${s.version} · coordinatord uses ${bytes(s.rss_bytes)} of memory · `
    + `${plural(s.tasks.leased, 'task')} leased, ${s.tasks.pending} pending`);
  const j = state.job;
  document.title = !j ? 'Skerry' : j.rounds ? `${j.round}/${j.rounds} ${j.name}: Skerry` : `${j.name}: Skerry`;
}

function waitingText() {
  if (panels.OVER.has(state.job.state)) return `For nothing: this job is ${state.job.state}.`;
  return 'For nothing: everything moves.';
}

function samplesText(job) {
  const over = panels.OVER.has(job.state);
  return over ? 'None were drawn.' : 'They are drawn every few rounds (sample.every of the job file) and at the end.';
}

// Everything that changes with time alone; called every second and after each read.
function tick() {
  banner();
  if (!state.status) return;
  const passed = performance.now() - state.freshAt;
  panels.workers(state.status, passed, join(), state.job && state.job.text ? 'rows' : 'images');
  const job = state.job;
  if (!job) return;
  panels.waiting(panels.OVER.has(job.state) ? [] : job.waiting_for, waitingText(), passed);
  panels.hero(job, job.eta_ms === null ? null : Math.max(0, job.eta_ms - passed));
}

function draw() {
  header();
  panels.welcome(state.status, join());
  panels.log(state.log);
  const job = state.job;
  document.body.classList.toggle('jobless', !job);
  $('hero').hidden = !job;
  $('workers-title').closest('section').hidden = !job && !state.status.workers.length; // the welcome says it
  if (job) {
    panels.wire(state.status, job);
    panels.epochs(job.epochs);
    panels.tasks(job, state.open);
    panels.modules(job.modules);
    paths.draw(job);
    step.draw(job, state.status.workers);
    samples.draw(job, samplesText(job));
    $('draw').hidden = !operates() || !job.modules.some((m) => m.version !== null);
  }
  tick();
}

// ---- start ----

async function drawNow() {
  const button = $('draw');
  button.disabled = true;
  try {
    const answer = await fetch(`/v1/jobs/${state.chosen}/sample`, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(samples.asked())});
    const body = await answer.json();
    button.textContent = answer.ok ? `Task ${body.task}` : body.error.message;
  } catch {
    button.textContent = 'No connection';
  }
  setTimeout(() => {
    button.textContent = 'Draw now';
    button.disabled = false;
  }, 4000);
}

function beat() {
  const since = performance.now() - state.readAt;
  const due = state.gone ? performance.now() >= state.retryAt
    : since >= (state.live ? (wanted ? READ_MIN_MS : READ_LIVE_MS) : READ_POLL_MS);
  if (due && !document.hidden) {
    wanted = false;
    read();
  }
  tick();
}

$('job').addEventListener('change', () => {
  location.hash = `job=${$('job').value}`;
});
addEventListener('hashchange', () => read());
document.addEventListener('visibilitychange', see);
$('log-y').addEventListener('change', () => chart.setLog($('log-y').checked));
$('shown-series').addEventListener('change', () => chart.setSeries($('shown-series').value));
$('loss-network').addEventListener('change', () => chart.setNetwork($('loss-network').value));
$('draw').addEventListener('click', drawNow);
samples.start();
step.start();
paths.start((path) => chart.look(path));
await read();
listen();
setInterval(beat, 1000);
